"""The files of `deploy`: rated, linted, and compared with the server that they start."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import typer
import yaml

from headsync.cli.app import app
from headsync.server.limits import Limits

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def serve_options() -> set[str]:
    command: Any = typer.main.get_command(app)
    return {option for parameter in command.commands["serve"].params for option in parameter.opts}


def used_options(text: str) -> set[str]:
    return set(re.findall(r"(?<=[\s\"\[])--[a-z-]+(?=[\s\",])", text))


# systemd


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="the unit is rated by systemd-analyze")
def test_the_unit_is_rated_3_or_better() -> None:
    words = ["systemd-analyze", "security", "--offline=true", "--json=short", str(DEPLOY / "headsync.service")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "SYSTEMD_COLORS": "0"})
    if not done.stdout.startswith("["):
        pytest.skip(f"this systemd-analyze cannot rate files: {done.stderr}")
    findings = json.loads(done.stdout)
    assert len(findings) > 50
    rated = subprocess.run([word for word in words if "json" not in word], capture_output=True, text=True, check=True)
    (exposure,) = re.findall(r"Overall exposure level for headsync.service: ([\d.]+)", rated.stdout)
    assert float(exposure) <= 3.0


def test_the_unit_starts_the_server_with_options_that_exist() -> None:
    text = (DEPLOY / "headsync.service").read_text(encoding="utf-8")
    (start,) = re.findall(r"^ExecStart=.*headsync serve (.*)$", text, re.MULTILINE)
    assert used_options(f" {start} ") <= serve_options()
    (drain,) = re.findall(r"--drain-seconds (\d+)", start)
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(stop) > int(drain)


# container


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [tuple(line.split(" ", 1)) for line in text.splitlines() if line and line[0] != "#"]  # type: ignore[misc]


@pytest.mark.skipif(HADOLINT is None, reason="the container file is linted by hadolint")
def test_the_container_file_has_no_lint() -> None:
    words = [str(HADOLINT), "--format", "json", str(DEPLOY / "Containerfile")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, [])


def test_the_container_file_copies_what_is_there_and_not_ignored() -> None:
    lines = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    copied = [
        name
        for instruction, rest in instructions()
        if instruction == "COPY" and "--from" not in rest
        for name in [word for word in rest.split() if not word.startswith("--")][:-1]
    ]
    assert sorted(copied) == sorted(kept)
    assert all((ROOT / name).exists() for name in copied)
    assert "*" in lines
    assert not any(fnmatch.fnmatch("runs/model", name) for name in kept)
    assert (ROOT / ".dockerignore").read_text(encoding="utf-8") == "\n".join([*lines, ""])


def test_the_image_runs_as_an_ordinary_user_and_stops_in_order() -> None:
    last = [number for number, (name, _) in enumerate(instructions()) if name == "FROM"][-1]
    final = dict(instructions()[last:])
    assert final["USER"].isdigit()
    assert final["STOPSIGNAL"] == "SIGTERM"
    assert final["HEALTHCHECK"].endswith('CMD ["healthcheck"]')
    assert used_options(final["ENTRYPOINT"]) <= serve_options()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (extra,) = re.findall(r"'\.\[(\w+)\]'", (DEPLOY / "Containerfile").read_text(encoding="utf-8"))
    assert extra in extras


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (None, 1)])
def test_the_health_check(status: int | None, code: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if status and self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server, socket.create_server(("127.0.0.1", 0)) as unused:
        Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port if status else unused.getsockname()[1]
        unused.close()
        environment = {**os.environ, "HEADSYNC_URL": f"http://127.0.0.1:{port}"}
        words = [sys.executable, str(DEPLOY / "healthcheck.py")]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        server.shutdown()
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_the_quadlet_has_the_health_check_and_time_to_drain() -> None:
    text = (DEPLOY / "headsync.container").read_text(encoding="utf-8")
    assert re.search(r"^HealthCmd=healthcheck$", text, re.MULTILINE)
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(stop) > Limits().drain_seconds


# Kubernetes


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))}


def test_probes_drain_and_options(objects: dict[str, Any]) -> None:
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/healthz", "readiness": "/readyz", "liveness": "/healthz"}
    arguments = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert arguments.keys() <= serve_options()
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= int(arguments["--drain-seconds"]) + pause + 10
    exposed = int(dict(instructions())["EXPOSE"])
    assert container["ports"][0]["containerPort"] == exposed
    assert objects["Deployment"]["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(exposed)


def test_autoscaling_is_on_the_stream_gauge_below_the_stream_limit(objects: dict[str, Any]) -> None:
    (metric,) = objects["HorizontalPodAutoscaler"]["spec"]["metrics"]
    metrics = (ROOT / "src/headsync/server/metrics.py").read_text(encoding="utf-8")
    name = metric["pods"]["metric"]["name"]
    assert f'self._gauge("{name.removeprefix("headsync_")}"' in metrics
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    limit = int(container["args"][container["args"].index("--streams") + 1])
    assert int(metric["pods"]["target"]["averageValue"]) < limit


def test_all_objects_select_the_same_pods(objects: dict[str, Any]) -> None:
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert objects["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "headsync"
