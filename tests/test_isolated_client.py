"""The environments of client libraries."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from isolated_client import CLIENTS, install, isolated_client

LIST = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"


def normalised(lines: str) -> set[str]:
    return {re.sub(r"[-_.]+", "-", re.sub(r"\[.*\]", "", line)).lower() for line in lines.splitlines()}


@pytest.mark.parametrize("name", ["openai", "deepgram", "wyoming", "vosk"])
def test_an_environment_has_its_pins_and_nothing_else(name: str) -> None:
    words = [str(isolated_client(name).python), "-I", "-c", LIST]
    installed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert normalised(installed) == normalised((CLIENTS / f"requirements-{name}.txt").read_text(encoding="utf-8"))


def test_without_a_package_index_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"cannot be reached to install requirements-wyoming\.txt"):
        install(tmp_path / "environment", CLIENTS / "requirements-wyoming.txt")


def test_a_pin_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("wyoming==0.0.0.1\n", encoding="utf-8")
    isolated_client("wyoming")  # the index can be reached
    with pytest.raises(AssertionError, match=r"wyoming==0\.0\.0\.1"):
        install(tmp_path / "environment", tmp_path / "requirements.txt")
