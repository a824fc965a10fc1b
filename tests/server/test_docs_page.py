"""The page of the OpenAPI description."""

from __future__ import annotations

from html.parser import HTMLParser

import httpx

from serving import Running


class Links(HTMLParser):
    """Addresses that a page loads or links to, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        self.links += [str(value) for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_docs_describe_every_path_and_load_nothing_from_elsewhere(running: Running) -> None:
    answer = httpx.get(f"{running.http}/docs")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = Links()
    page.feed(answer.text)
    assert page.links == ["/style.css", "/openapi.json"]
    for link in page.links:
        assert httpx.get(f"{running.http}{link}").status_code == 200
    schema = httpx.get(f"{running.http}/openapi.json").json()
    assert len(schema["paths"]) > 4
    for path, methods in schema["paths"].items():
        assert all(f"{method.upper()} {path}" in page.text for method in methods)
    assert "timestamp_granularities[]" in page.text
    for path in ("/v1/stream", "/v1/realtime", "/vosk"):
        assert f"WebSocket {path}" in page.text
