"""`/docs`: the OpenAPI description as a page of plain HTML, which loads nothing from other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

WEBSOCKETS = {
    "/v1/stream": "Live streams",
    "/v1/realtime": "OpenAI's Realtime API, transcription sessions",
    "/v1/listen": "Deepgram's live API",
    "/vosk": "The protocol of vosk-server",
}


def render(schema: dict[str, Any]) -> str:
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    head = f'<meta charset="utf-8"><title>{title}</title><link rel="stylesheet" href="/style.css">'
    operations = (
        _operation(method, path, details, schema)
        for path, methods in schema["paths"].items()
        for method, details in methods.items()
    )
    sockets = (f"<h2>WebSocket <code>{path}</code></h2><p>{escape(text)}.</p>" for path, text in WEBSOCKETS.items())
    link = '<p>For programs: <a href="/openapi.json">openapi.json</a>.</p>'
    body = f"<h1>{title}</h1><p>{escape(schema['info']['description'])}</p>{link}{''.join([*operations, *sockets])}"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'


def _operation(method: str, path: str, details: dict[str, Any], schema: dict[str, Any]) -> str:
    fields = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{'required' if required else ''}</td><td>{escape(text)}</td></tr>"
        for name, required, text in _fields(details, schema)
    )
    table = f"<table><tr><th>field</th><th></th><th>meaning</th></tr>{fields}</table>" if fields else ""
    responses = "".join(
        f"<li><code>{status}</code> {escape(response['description'])}</li>"
        for status, response in details["responses"].items()
    )
    text = escape(details.get("description", ""))
    return f"<h2>{method.upper()} <code>{escape(path)}</code></h2><p>{text}</p>{table}<ul>{responses}</ul>"


def _fields(details: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, bool, str]]:
    """Name, whether it is required, and meaning of the parameters and form fields of an operation."""
    for parameter in details.get("parameters", ()):
        yield parameter["name"], parameter.get("required", False), parameter.get("description", "")
    for content in details.get("requestBody", {}).get("content", {}).values():
        form = schema["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        for name, field in form["properties"].items():
            choices = ", ".join(field.get("enum", ()))
            yield name, name in form.get("required", ()), field.get("description", choices)
