"""Every published script starts and prints its usage."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
OTHER_ENVIRONMENTS = ("drive", "drive_live", "espnet_network", "espnet_stream", "espnet_train")
MODULES = ("products", "peak", "random_model", "bad_network")  # imported by other scripts
RECIPES = ("digits/prepare_digits", "digits/word_times", "tables/speechocean")
SCRIPTS = [path for path in sorted(BENCHMARKS.rglob("*.py")) if path.stem not in OTHER_ENVIRONMENTS + MODULES]
SCRIPTS += [ROOT / "recipes" / f"{name}.py" for name in RECIPES]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_prints_its_usage(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    monkeypatch.syspath_prepend(script.parent)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # some scripts set it; monkeypatch restores it
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out
