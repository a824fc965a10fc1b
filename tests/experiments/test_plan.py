"""Comparison files: reading, and errors before training."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import ROOT
from headsync.attention import MECHANISMS
from headsync.errors import ConfigError
from headsync.experiments.plan import overrides, read_plan
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
settings = { "network.width" = 32, "training.average" = 2 }
"""


def written(tmp_path: Path, plan: str) -> Path:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "plan.toml").write_text(plan)
    return tmp_path / "plan.toml"


def test_a_choice_has_the_settings_of_its_system_and_its_own(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, PLAN))
    assert [system.seeds for system in plan.systems] == [(1,), (1, 2)]
    config = load_config(plan.recipe, overrides(plan.settings_of(plan.choices[0])))
    assert (config.decoder.attention, config.network.width, config.training.average) == ("dacs", 32, 2)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("folder", "fodler"), "fodler is not part of a comparison"),
        (('recipe = "recipe.toml"\n', ""), "recipe is missing"),
        (('name = "B"', 'name = "A"'), 'two systems have the name "A"'),
        (('name = "B"', 'name = "B"\nrandom_decoder = true'), "random_decoder requires [encoder]"),
        (('of = "A"', 'of = "C"'), '"C" is not the name of a system; known here: A, B'),
        (("seeds", "sedes"), "sedes is not part of a system"),
        (('"network.width" = 32', '"network.width" = 33'), "width = 33 must be a multiple"),
        (('"dacs"', "dacs"), "not a TOML file"),
        (
            ('folder = "runs/x"', 'folder = "runs/x"\nunit = "letters"'),
            'unit = "letters" is not known; known here: words',
        ),
        (('name = "A, wide"', 'name = "A, wide"\npaper = 6.8'), '"A, wide": paper = 6.8 must be a text in quotes'),
        (('name = "A"\n', 'name = "A"\nof = "B"\n'), 'system "A": of is not part of a system'),
        (('name = "A"\n', ""), "a system requires a name"),
        (('of = "A"\n', ""), 'choice "A, wide": of is missing: the name of the system that it is a variant of'),
        (('"dacs"', '"dasc"'), 'toml: "A": decoder.attention = "dasc" is not known; did you mean "dacs"?'),
        (('"test.jsonl"', "3"), "tests = {'test': 3} must be a table of manifests"),
        (("seeds = [1, 2]", "seeds = [true]"), "seeds = .True. must be whole numbers"),
        (('"recipe.toml"', '"none.toml"'), "recipe: there is no .*none.toml"),
        (("[[choice]]", '[encoder]\n"encoder.mod" = "full"\n[[choice]]'), "[encoder]: .*encoder.mod is not a setting"),
        (("[[choice]]", '[encoder]\n[[system]]\nname = "encoder"\n[[choice]]'), '"encoder" is the name of the shared'),
    ],
)
def test_errors_are_one_sentence(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    assert change[0] in PLAN
    with pytest.raises(ConfigError, match=f"^{tmp_path}/.*{complaint.replace('[', '.')}"):
        read_plan(written(tmp_path, PLAN.replace(*change)))


@pytest.mark.parametrize(
    ("there", "line", "allowed"),
    [
        ('recipe = "recipe.toml"', "recipe = 3", "a text in quotes"),
        ('folder = "runs/x"', "folder = 3", "a text in quotes"),
        ('tests = { test = "test.jsonl" }', "tests = 't'", "a table of manifests"),
        ("", "limit = 'all'", "a whole number"),
        ("", "limit = -1", "a whole number, 0 or more"),
        ("", "title = 1", "a text in quotes"),
        ("", "encoder = 3", "a table of settings"),
        ("", "sweep = 3", "a table of settings"),
        ("", "figure = 3", "a table of settings"),
        ("seeds = [1, 2]", "seeds = 3", "whole numbers in brackets"),
        ("seeds = [1, 2]", "seeds = []", "whole numbers in brackets"),
        ("seeds = [1, 2]", "seeds = ['1']", "whole numbers in brackets"),
        ('settings = { "decoder.attention" = "dacs" }', "settings = 3", "a table of settings"),
        ('name = "B"', "name = 3", "a text in quotes"),
        ('of = "A"', "decoding = 3", "a table of settings"),
        ('of = "A"', "of = 3", "a text in quotes"),
        ("[[choice]]", "[sweep]\nsystems = 'A'\n[[choice]]", "names of systems in brackets"),
        ("[[choice]]", "[sweep]\nshares = [0.5, 0]\n[[choice]]", "numbers above 0 in brackets"),
        ("[[choice]]", "[figure]\nsystems = [1]\n[[choice]]", "names of systems in brackets"),
    ],
)
def test_the_error_for_a_wrong_type_names_the_allowed_values(
    tmp_path: Path, there: str, line: str, allowed: str
) -> None:
    assert there in PLAN
    with pytest.raises(ConfigError) as error:
        read_plan(written(tmp_path, PLAN.replace(there, line, 1) if there else f"{line}\n{PLAN}"))
    setting = next(part for part in line.splitlines() if not part.startswith("["))
    assert str(error.value).startswith(f"{tmp_path}/plan.toml: ")
    assert f"{setting} must be {allowed}" in str(error.value)


@pytest.mark.parametrize(
    ("decoding", "complaint"),
    [
        ("lookahed_frames = 4", 'decoding.lookahed_frames is not a setting; did you mean "lookahead_frames"?'),
        ('beam = "wide"', "decoding.beam = 'wide' must be a whole number"),
        ("beam = 0", "decoding.beam = 0 must be at least 1"),
        ("threshold = 0", "decoding: threshold = 0 must be a number above 0"),
        ("lm = 3", "decoding: lm = 3 must be a text in quotes"),
        ('lm = "words.arpa"', "decoding.lm requires decoding.lm_weight"),
    ],
)
def test_decoding_settings_of_a_choice_are_checked(tmp_path: Path, decoding: str, complaint: str) -> None:
    choice = f'[[choice]]\nname = "C"\nof = "A"\ndecoding = {{ {decoding} }}\n'
    with pytest.raises(ConfigError) as error:
        read_plan(written(tmp_path, PLAN + choice))
    assert str(error.value).startswith(f'{tmp_path}/plan.toml: "C": {complaint}')


def test_a_string_that_looks_like_a_number_stays_a_string(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, PLAN.replace('"network.width" = 32', '"training.speeds" = "0.9"')))
    assert load_config(plan.recipe, overrides(plan.settings_of(plan.choices[0]))).training.speeds == "0.9"


def test_a_choice_with_only_decoding_settings_reuses_the_model(tmp_path: Path) -> None:
    choice = '[[choice]]\nname = "C"\nof = "B"\ndecoding = { beam = 2 }\n'
    plan = read_plan(written(tmp_path, PLAN + choice))
    wide, searched = (plan.trainings(choice) for choice in plan.choices)
    assert [(one.name, one.seed) for one in (*wide, *searched)] == [("A, wide", 1), ("B", 1)]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such comparison file"):
        read_plan(tmp_path / "none.toml")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_shipped_comparison_files_are_valid(path: Path) -> None:
    plan = read_plan(path)
    last = load_config(plan.recipe, overrides(plan.systems[-1].settings))
    assert last.decoder.attention == "hs-dacs"  # the subject comes last


def test_the_comparison_on_digits_has_every_system_of_the_paper() -> None:
    plan = read_plan(ROOT / "recipes" / "tables" / "digits.toml")
    assert {system.settings["decoder.attention"] for system in plan.systems} == set(MECHANISMS)
    assert all(len(plan.system(name).seeds) >= 3 for name in ("DACS", "HS-DACS"))
