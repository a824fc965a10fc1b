"""Models from the network: a model folder on a web server, or a Hugging Face repository, downloaded into a cache.

    https://example.org/models/english   a folder whose files are served by their names
    OWNER/NAME or OWNER/NAME@REVISION    the same files in a repository on huggingface.co

The folder's SHA256SUMS lists the files and their checksums; config.toml and README.md are fetched besides. Files are
downloaded into `NAME.download` beside the final folder, which appears when all of them are complete: a stopped download
continues, and an incomplete model is never found.

Environment: HEADSYNC_CACHE is the cache folder, HEADSYNC_OFFLINE=1 forbids network access, HF_ENDPOINT is a mirror of
huggingface.co.
"""

from __future__ import annotations

import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from headsync.errors import ModelError
from headsync.model_folder import (
    CARD,
    CHECKSUMS,
    CONFIG,
    LANGUAGE_MODEL,
    cache_folder,
    checksummed,
    find,
    load_folder,
    sha256,
)

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_BLOCK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 30.0

DownloadProgress = Callable[[str, int], None]  # file name and bytes so far


def pull(source: str, name: str | None = None, offline: bool = False, progress: DownloadProgress | None = None) -> Path:
    """Download a model, or what is missing of it, and return its folder."""
    address = _address(source)
    name = _check_name(name or source.partition("@")[0].rstrip("/").rpartition("/")[2])
    folder, origin = cache_folder() / name, cache_folder() / f"{name}.source"
    if folder.is_dir() and _read(origin) != address:
        other = _read(origin) or "another source"
        raise ModelError(f"{folder}: is a model from {other}; choose another name for {source}")
    if offline or os.environ.get("HEADSYNC_OFFLINE") == "1":
        if folder.is_dir():
            return folder
        raise ModelError(f"{source}: not in the cache {cache_folder()}, and network access is off; pull it first")
    staging = cache_folder() / f"{name}.download"
    try:
        staging.mkdir(parents=True, exist_ok=True)
        _download_folder(address, staging, folder, progress or (lambda _name, _count: None))
        origin.write_text(address, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(staging, folder)
    except OSError as error:
        raise ModelError(f"{staging}: cannot be written ({error.strerror or error}); {_AGAIN}") from None
    return folder


def push(model: str | Path | None, folder: Path) -> None:
    """Write a model as a folder that `pull` can download from a web server or a repository."""
    source = find(model)
    load_folder(source)  # raises for an incomplete or damaged model
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{folder}: exists and is not an empty folder; name another one")
    _copy_with_checksums(source, folder)
    if (source / LANGUAGE_MODEL).is_dir():
        _copy_with_checksums(source / LANGUAGE_MODEL, folder / LANGUAGE_MODEL)


def _copy_with_checksums(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with checksummed(folder):
        for file in source.iterdir():
            if file.is_file() and file.name != CHECKSUMS and not file.name.startswith("."):
                shutil.copyfile(file, folder / file.name)


_AGAIN = "free some space or check the folder, and run the same command again, which continues"


def _address(source: str) -> str:
    """The URL of the folder that a source names."""
    if "://" in source:
        parts = urlsplit(source)
        if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
            return source.rstrip("/")
        raise ModelError(f"{source}: only https:// addresses are accepted")
    if found := re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", source):
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        return _address(f"{endpoint}/{found[1]}/resolve/{quote(found[2] or 'main', safe='')}")
    raise ModelError(f"{source}: neither an https:// address nor a repository OWNER/NAME")


def _check_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", name) or name.endswith((".download", ".source")):
        raise ModelError(f'"{name}" cannot be the name of a model; use letters, digits, "-", "_" and "."')
    return name


def _download_folder(address: str, staging: Path, current: Path, progress: DownloadProgress) -> None:
    """All files of a model folder, and of the language model in it, if there is one."""
    _download_files(address, staging, current, progress)
    sums = _fetch(f"{address}/{LANGUAGE_MODEL}/{CHECKSUMS}", missing_ok=True)
    if sums is not None:
        (staging / LANGUAGE_MODEL).mkdir(exist_ok=True)
        _download_files(f"{address}/{LANGUAGE_MODEL}", staging / LANGUAGE_MODEL, current / LANGUAGE_MODEL, progress)


def _download_files(address: str, staging: Path, current: Path, progress: DownloadProgress) -> None:
    listing = _fetch(f"{address}/{CHECKSUMS}")
    assert listing is not None
    for name, checksum in _parse_checksums(listing, address).items():
        if _sha256(current / name) == checksum and not (staging / name).exists():
            shutil.copyfile(current / name, staging / name)
        _download(f"{address}/{quote(name)}", staging / name, checksum, progress)
    for name in (CONFIG, CARD):
        content = _fetch(f"{address}/{name}", missing_ok=name == CARD)
        if content is not None:
            (staging / name).write_bytes(content)
    (staging / CHECKSUMS).write_bytes(listing)


def _parse_checksums(listing: bytes, address: str) -> dict[str, str]:
    """File names and checksums of a listing; names with a folder are refused."""
    lines = listing.decode("utf-8", errors="replace").splitlines()
    found = [re.fullmatch(r"([0-9a-f]{64})  (\w[\w.-]*)", line) for line in lines]
    if not found or not all(found):
        raise ModelError(f"{address}/{CHECKSUMS}: not a list of checksums; check the address of the model")
    return {each[2]: each[1] for each in found if each}


def _download(address: str, path: Path, checksum: str, progress: DownloadProgress) -> None:
    """One file; an interrupted download continues where it stopped, and is repeated once if the result is wrong."""
    if _sha256(path) == checksum:
        return
    part = path.with_name(f"{path.name}.part")
    for _ in range(2):
        resumed = part.exists()
        _append(address, part, progress)
        if _sha256(part) == checksum:
            os.replace(part, path)
            return
        part.unlink()
        if not resumed:
            break
    raise ModelError(f"{address}: the checksum differs from the one in {CHECKSUMS}; the model on the server is damaged")


def _append(address: str, part: Path, progress: DownloadProgress) -> None:
    """Download the rest of a file; all of it if the server does not support ranges."""
    begin = part.stat().st_size if part.exists() else 0
    with _open(address, {"Range": f"bytes={begin}-"} if begin else {}) as response:
        if response is None:  # the range begins at the end: the file is complete
            return
        with part.open("ab" if response.status == 206 else "wb") as file:
            for block in _blocks(response, address):
                file.write(block)
                progress(part.name.removesuffix(".part"), file.tell())


def _fetch(address: str, missing_ok: bool = False) -> bytes | None:
    """A small file; None if it does not exist and `missing_ok`."""
    try:
        with _open(address, {}) as response:
            return b"".join(_blocks(response, address))
    except _MissingError:
        if missing_ok:
            return None
        raise


class _MissingError(ModelError):
    """The server does not have a file."""


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but only to https."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextmanager
def _open(address: str, headers: dict[str, str]) -> Iterator[Any]:
    """An HTTP response; None for a range that begins at the end of the file."""
    request = urllib.request.Request(address, headers={"User-Agent": "headsync", **headers})
    try:
        response = urllib.request.build_opener(_SafeRedirects).open(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            raise _MissingError(f"{address}: not found; check the name or address of the model") from None
        if error.code != 416:
            raise ModelError(f"{address}: the server answers {error.code} ({error.reason})") from None
        response = None
    except OSError as error:
        raise _no_connection(address, getattr(error, "reason", error)) from None
    if response is None:
        yield None
        return
    with response:
        yield response


def _blocks(response: Any, address: str) -> Iterator[bytes]:
    """The body of a response; a body that is shorter than announced is an error."""
    missing = int(response.headers.get("Content-Length") or 0)
    try:
        while block := bytes(response.read(_BLOCK_BYTES)):
            missing -= len(block)
            yield block
    except (OSError, HTTPException) as error:
        raise _no_connection(address, error) from None
    if missing > 0:
        raise _no_connection(address, "the server closed it early")


def _no_connection(address: str, reason: object) -> ModelError:
    return ModelError(f"{address}: the connection failed ({reason}); run the same command again, which continues")


def _sha256(path: Path) -> str:
    """The checksum of a file; empty if there is none."""
    return sha256(path) if path.is_file() else ""


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
