"""Every benchmark that is published as a command starts, and tells how it is used."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
IN_THEIR_OWN = ("drive", "espnet_network", "espnet_stream", "espnet_train")  # run in the environments of others
PARTS = ("products", "peak")  # imported by others
SCRIPTS = [path for path in sorted(BENCHMARKS.rglob("*.py")) if path.stem not in IN_THEIR_OWN + PARTS]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_tells_how_it_is_used(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    monkeypatch.syspath_prepend(script.parent)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # some set it, and it shall be as before afterwards
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out
