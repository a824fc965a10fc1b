"""Comparison files: what they say, and what is wrong with them before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import ROOT
from headsync.attention import MECHANISMS
from headsync.compare.plan import overrides, read_plan
from headsync.errors import ConfigError
from headsync.recipe import load_config

FILES = sorted(path for path in (ROOT / "recipes" / "tables").glob("*.toml") if not path.stem.endswith("recipe"))
RECIPE = "[network]\nwidth = 16\nheads = 2\n"
PLAN = """
recipe = "recipe.toml"
folder = "runs/x"
tests = { test = "test.jsonl" }
[[system]]
name = "A"
settings = { "decoder.attention" = "dacs" }
[[system]]
name = "B"
seeds = [1, 2]
[[choice]]
name = "A, wide"
of = "A"
settings = { "network.width" = 32, "training.shortest_first" = true }
"""


def written(tmp_path: Path, plan: str) -> Path:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "plan.toml").write_text(plan)
    return tmp_path / "plan.toml"


def test_a_choice_has_the_settings_of_its_system_and_its_own(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, PLAN))
    assert [system.seeds for system in plan.systems] == [(1,), (1, 2)]
    config = load_config(plan.recipe, overrides(plan.settings_of(plan.choices[0])))
    assert (config.decoder.attention, config.network.width, config.training.shortest_first) == ("dacs", 32, True)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("folder", "fodler"), "fodler is not part of a comparison"),
        (('recipe = "recipe.toml"\n', ""), "recipe is missing"),
        (('name = "B"', 'name = "A"'), 'two systems have the name "A"'),
        (('of = "A"', 'of = "C"'), '"C" is not the name of a system; there are A, B'),
        (("seeds", "sedes"), "sedes is not part of a system"),
        (('"network.width" = 32', '"network.width" = 33'), "width = 33 must be a multiple"),
        (('"dacs"', "dacs"), "not a TOML file"),
        (
            ('folder = "runs/x"', 'folder = "runs/x"\nunit = "letters"'),
            'unit = "letters" is not known; known here: words',
        ),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    assert change[0] in PLAN
    with pytest.raises(ConfigError, match=complaint):
        read_plan(written(tmp_path, PLAN.replace(*change)))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_plan(tmp_path / "none.toml")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_comparisons_that_come_along_are_sound(path: Path) -> None:
    plan = read_plan(path)
    assert plan.systems[-1].name == "HS-DACS"  # the subject stands last


def test_the_comparison_on_digits_has_every_system_of_the_paper() -> None:
    plan = read_plan(ROOT / "recipes" / "tables" / "digits.toml")
    assert {system.settings["decoder.attention"] for system in plan.systems} == set(MECHANISMS)
    assert all(len(plan.system(name).seeds) >= 3 for name in ("DACS", "HS-DACS"))
