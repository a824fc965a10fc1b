"""Models by name: downloads from a real HTTP server, with interruptions, damage and changes on the way."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from commands import one_line, run
from headsync import Recognizer, read_audio, shipped_models
from headsync.errors import ModelError
from headsync.model_download import pull
from headsync.model_folder import CHECKSUMS, cached, find
from recordings import DIGIT_RECORDINGS

DEMO = sorted(DIGIT_RECORDINGS.glob("*.flac"))[0]


class Site:
    """A web server for a folder; it can break connections, ignore ranges and redirect."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[tuple[str, str | None]] = []  # path and range
        self.break_after: int | None = None
        self.ranges = True
        self.redirect: str | None = None
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range")
        self.requests.append((handler.path, asked))
        path = self.folder / handler.path.lstrip("/")
        if self.redirect:
            handler.send_response(302)
            handler.send_header("Location", self.redirect)
            handler.end_headers()
        elif not path.is_file():
            handler.send_error(404)
        else:
            content = path.read_bytes()
            begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
            if begin >= len(content) > 0:
                handler.send_error(416)
                return
            handler.send_response(206 if begin else 200)
            handler.send_header("Content-Length", str(len(content) - begin))
            handler.end_headers()
            handler.wfile.write(content[begin:][: self.break_after])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server with the shipped model as /models/digits, and an empty cache."""
    monkeypatch.setenv("HEADSYNC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADSYNC_OFFLINE", raising=False)
    folder = tmp_path / "site" / "models" / "digits"
    shutil.copytree(shipped_models()["digits-en"], folder)
    write_checksums(folder)
    site = Site(tmp_path / "site")
    thread = threading.Thread(target=site.server.serve_forever, daemon=True)
    thread.start()
    yield site
    site.server.shutdown()
    site.server.server_close()
    thread.join()


def write_checksums(folder: Path) -> None:
    files = [path for path in sorted(folder.iterdir()) if path.name not in ("config.toml", "README.md", CHECKSUMS)]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files if path.is_file()]
    (folder / CHECKSUMS).write_text("".join(lines))


def test_a_pulled_model_is_found_by_its_name_and_recognises(site: Site, tmp_path: Path) -> None:
    result = run("models", "pull", f"{site.address}/models/digits")
    assert result.exit_code == 0, result.stderr
    assert "--model digits" in result.stdout
    folder = tmp_path / "cache" / "digits"
    assert cached() == {"digits": folder}
    for path in (tmp_path / "site/models/digits").iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    finals = Recognizer.load("digits").transcribe(DEMO)
    assert finals == Recognizer.load("digits-en").transcribe(*read_audio(DEMO))
    assert "digits " in run("models").stdout
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["digits", "digits.source"]


def test_pulling_again_downloads_nothing_large(site: Site) -> None:
    pull(f"{site.address}/models/digits")
    site.requests.clear()
    pull(f"{site.address}/models/digits")
    assert not any("weights" in path for path, _ in site.requests)


def test_the_layout_of_hugging_face(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", site.address)
    (tmp_path / "site/somebody/english/resolve").mkdir(parents=True)
    shutil.move(tmp_path / "site/models/digits", tmp_path / "site/somebody/english/resolve/main")
    shutil.copytree(tmp_path / "site/somebody/english/resolve/main", tmp_path / "site/somebody/english/resolve/v2")
    assert pull("somebody/english").name == "english"
    assert pull("somebody/english@v2", name="newer").name == "newer"
    assert list(cached()) == ["english", "newer"]


def test_a_broken_download_continues_where_it_stopped(site: Site, tmp_path: Path) -> None:
    site.break_after = 50_000
    with pytest.raises(ModelError, match=r"the connection failed .* run the same command again, which continues"):
        pull(f"{site.address}/models/digits")
    assert cached() == {}
    with pytest.raises(ModelError, match="neither a folder nor the name of a model"):
        find("digits")
    (part,) = (tmp_path / "cache/digits.download").glob("*.part")
    assert part.stat().st_size == 50_000
    site.break_after = None
    site.requests.clear()
    assert pull(f"{site.address}/models/digits").is_dir()
    address = f"/models/digits/{part.stem}"
    assert [request for request in site.requests if request[0] == address] == [(address, "bytes=50000-")]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_part_of_another_version_is_not_kept(site: Site, tmp_path: Path, ranges: bool) -> None:
    site.ranges = ranges
    staging = tmp_path / "cache/digits.download"
    staging.mkdir(parents=True)
    (staging / "weights.safetensors.part").write_bytes(b"older bytes")
    folder = pull(f"{site.address}/models/digits")
    original = tmp_path / "site/models/digits/weights.safetensors"
    assert (folder / "weights.safetensors").read_bytes() == original.read_bytes()


def test_a_complete_part_needs_no_further_bytes(site: Site, tmp_path: Path) -> None:
    staging = tmp_path / "cache/digits.download"
    staging.mkdir(parents=True)
    shutil.copy(tmp_path / "site/models/digits/weights.safetensors", staging / "weights.safetensors.part")
    assert pull(f"{site.address}/models/digits").is_dir()


def test_damage_on_the_server_is_an_error_and_the_cached_model_stays(site: Site, tmp_path: Path) -> None:
    folder = pull(f"{site.address}/models/digits")
    before = (folder / "weights.safetensors").read_bytes()
    weights = tmp_path / "site/models/digits/weights.safetensors"
    weights.write_bytes(before[:-100] + bytes(100))
    write_checksums(weights.parent)
    weights.write_bytes(before[:-100] + bytes(99) + b"1")
    with pytest.raises(ModelError, match=r"weights\.safetensors: the checksum differs"):
        pull(f"{site.address}/models/digits")
    assert (folder / "weights.safetensors").read_bytes() == before
    Recognizer.load("digits")


def test_offline(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"{site.address}/models/digits"
    with pytest.raises(ModelError, match=r"not in the cache .* network access is off"):
        pull(source, offline=True)
    folder = pull(source)
    site.requests.clear()
    monkeypatch.setenv("HEADSYNC_OFFLINE", "1")
    assert pull(source) == folder
    assert run("models", "pull", source).exit_code == 0
    assert site.requests == []


def test_a_name_belongs_to_one_source(site: Site, tmp_path: Path) -> None:
    pull(f"{site.address}/models/digits")
    shutil.copytree(tmp_path / "site/models", tmp_path / "site/other")
    with pytest.raises(ModelError, match=r"is a model from .*/models/digits; choose another name"):
        pull(f"{site.address}/other/digits")
    assert pull(f"{site.address}/other/digits", name="second").name == "second"


def test_a_language_model_in_the_folder_is_pulled_too(site: Site, tmp_path: Path) -> None:
    inner = tmp_path / "site/models/digits/lm"
    inner.mkdir()
    for name in ("config.toml", "weights.safetensors"):
        (inner / name).write_text(name)
    write_checksums(inner)
    folder = pull(f"{site.address}/models/digits")
    assert (folder / "lm/weights.safetensors").read_text() == "weights.safetensors"
    assert (folder / "lm/config.toml").read_text() == "config.toml"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("http://example.org/model", "only https:// addresses"),
        ("file:///etc", "only https:// addresses"),
        ("english", "neither an https:// address nor a repository OWNER/NAME"),
        ("{site}/nowhere", "SHA256SUMS: not found"),
        ("{site}/models/..", "cannot be the name of a model"),
        ("http://127.0.0.1:9/model", "the connection failed"),
    ],
)
def test_wrong_sources_are_one_sentence(site: Site, source: str, message: str) -> None:
    result = run("models", "pull", source.replace("{site}", site.address))
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert message in result.stderr


@pytest.mark.parametrize("listed", ["../escape", "/etc/passwd", "lm/../../x", ".hidden"])
def test_a_listing_cannot_name_files_outside_the_folder(site: Site, tmp_path: Path, listed: str) -> None:
    (tmp_path / "site/models/digits" / CHECKSUMS).write_text(f"{'0' * 64}  {listed}\n")
    with pytest.raises(ModelError, match="not a list of checksums"):
        pull(f"{site.address}/models/digits")


def test_a_redirection_must_not_leave_https(site: Site) -> None:
    site.redirect = "http://example.org/model"
    with pytest.raises(ModelError, match=r"http://example\.org/model: only https:// addresses"):
        pull(f"{site.address}/models/digits")


# push


def test_a_pushed_model_can_be_pulled(site: Site, tmp_path: Path) -> None:
    model = tmp_path / "trained"
    shutil.copytree(shipped_models()["digits-en"], model)
    (model / CHECKSUMS).unlink()  # as a training run leaves it
    (model / "lm").mkdir()
    (model / "lm" / "weights.safetensors").write_text("weights")
    (model / "lm" / "config.toml").write_text("config")
    result = run("models", "push", str(model), str(tmp_path / "site/pushed"))
    assert result.exit_code == 0, result.stderr
    folder = pull(f"{site.address}/pushed")
    pulled = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    original = {path.relative_to(model): path.read_bytes() for path in model.rglob("*") if path.is_file()}
    sums = {Path(CHECKSUMS), Path("lm", CHECKSUMS)}
    assert {name: content for name, content in pulled.items() if name not in sums} == original
    assert sums <= pulled.keys()


def test_push_refuses_a_folder_with_files_and_a_damaged_model(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    refused = run("models", "push", "digits-en", str(tmp_path / "full"))
    assert (refused.exit_code, "not an empty folder" in refused.stderr) == (1, True)
    damaged = Path(shutil.copytree(shipped_models()["digits-en"], tmp_path / "damaged"))
    (damaged / "weights.safetensors").write_bytes(b"damaged")
    refused = run("models", "push", str(damaged), str(tmp_path / "new"))
    assert (refused.exit_code, one_line(refused.stderr)) == (1, True)
    assert not (tmp_path / "new").exists()
