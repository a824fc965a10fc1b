"""TLS: files in, https:// and wss:// out."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest
import websockets
from typer.testing import CliRunner

from headsync.cli.app import app
from headsync.server.model_service import ModelService
from serving import command, finals

Recordings = list[tuple[Path, np.ndarray, int]]

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "certificate.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(words, check=True, capture_output=True)
    return files


@needs_openssl
def test_https_and_wss(certificate: tuple[Path, Path], service: ModelService, recordings: Recordings) -> None:
    _, samples, rate = recordings[0]
    trusted = ssl.create_default_context(cafile=certificate[0])

    async def talk(place: str) -> str:
        async with websockets.connect(f"wss://{place}/v1/stream", ssl=trusted) as connection:
            await connection.send(json.dumps({"type": "start", "sample_rate": rate}))
            for piece in np.array_split(samples, 10):
                await connection.send(piece.tobytes())
            await connection.send('{"type": "finish"}')
            return " ".join(finals([json.loads(message) async for message in connection]))

    files = ["--tls-certificate", str(certificate[0]), "--tls-key", str(certificate[1])]
    with command(*files) as (_, place):
        assert httpx.get(f"https://{place}/readyz", verify=trusted).json() == {"status": "ready"}
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{place}/readyz")
        text = asyncio.run(talk(place))
    session = service.open_session()
    assert text == " ".join(finals([event.to_dict() for event in session.push(samples, rate) + session.finish()]))


@needs_openssl
def test_wrong_tls_files_are_one_sentence(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    good, key = map(str, certificate)
    (tmp_path / "text").write_text("not a certificate")
    for files, message in (
        (["--tls-certificate", good], "--tls-certificate and --tls-key require each other"),
        (["--tls-certificate", str(tmp_path / "text"), "--tls-key", key], "not a certificate and its key"),
        (["--tls-certificate", str(tmp_path / "none"), "--tls-key", key], "No such file or directory"),
        (["--tls-certificate", good, "--tls-key", good], "not a certificate and its key"),
    ):
        result = CliRunner().invoke(app, ["serve", "--port", "0", *files])
        assert (result.exit_code, message in " ".join(result.output.split())) == (1, True), result.output
