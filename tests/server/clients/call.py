"""Calls a function of a script, or of the code blocks of a page, with arguments as JSON on standard input.

The Python of a client's environment runs this file: `python -I call.py SOURCE FUNCTION`.
"""

import asyncio
import base64
import contextlib
import inspect
import io
import json
import re
import sys
from pathlib import Path


def decode_bytes(value):
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value


def functions(source):
    text = Path(source).read_text(encoding="utf-8")
    if source.endswith(".md"):
        text = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    names = {"__name__": "client"}
    exec(compile(text, source, "exec"), names)
    return names


def main(source, name):
    given = json.load(sys.stdin, object_hook=decode_bytes)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        result = functions(source)[name](*given["values"], **given["options"])
        if inspect.isawaitable(result):
            result = asyncio.run(result)
    json.dump({"result": result, "printed": printed.getvalue()}, sys.stdout)


main(*sys.argv[1:])
