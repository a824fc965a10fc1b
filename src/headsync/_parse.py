"""Parsing of untrusted JSON and TOML: every error is a ValueError with a one-line reason."""

from __future__ import annotations

import json
import tomllib
from typing import Any

TOO_DEEP = "it is nested too deeply"


def parse_json(text: str) -> Any:
    """The value of a JSON text of valid Unicode; JSON can escape surrogates that UTF-8 cannot encode."""
    try:
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    return value


def parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
