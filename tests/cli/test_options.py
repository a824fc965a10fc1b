"""The options that commands share: endpoint rules, hotwords and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import run
from headsync.cli.options import HOTWORD_BOOST, SearchOptions, endpoint_settings, read_hotwords
from headsync.errors import ConfigError, DataError


def test_endpoint_rules_become_settings() -> None:
    assert endpoint_settings(None) == {}
    assert endpoint_settings("pause=0.8") == {"whole_recording": False, "pause_seconds": 0.8}
    rules = endpoint_settings("pause=0.8, length=15,silence=5")
    assert rules.pop("whole_recording") is False
    assert rules == {"pause_seconds": 0.8, "longest_seconds": 15.0, "silence_seconds": 5.0}


@pytest.mark.parametrize("rules", ["pauses=1", "pause", "pause=soon", "0.8", "pause=1,,silence=2"])
def test_an_invalid_endpoint_rule_is_an_error(rules: str) -> None:
    with pytest.raises(ConfigError, match="is not a rule; write one or more of pause=SECONDS"):
        endpoint_settings(rules)


@pytest.mark.parametrize("rules", ["pause=-1", "length=0", "silence=nan"])
def test_endpoint_seconds_must_be_positive(rules: str) -> None:
    with pytest.raises(ConfigError, match=f'--endpoint: "{rules}" must be more than 0 seconds'):
        endpoint_settings(rules)


def test_hotwords_with_and_without_a_boost(tmp_path: Path) -> None:
    file = tmp_path / "hotwords.txt"
    file.write_text("\ufeffnine one one\n\n  double seven :4.5\nseven:up :-1\n")
    assert read_hotwords(file) == [("nine one one", HOTWORD_BOOST), ("double seven", 4.5), ("seven:up", -1.0)]
    assert read_hotwords(None) == []


def test_phrases_stand_on_lines_and_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "phrases.txt"
    file.write_text("turn it on\n\n [unk] \n")
    assert SearchOptions(phrases=file, phrase=["stop"]).arguments()["phrases"] == ["turn it on", "[unk]", "stop"]
    assert SearchOptions().arguments()["phrases"] == []
    with pytest.raises(DataError, match=r"none.txt: the phrases cannot be read"):
        SearchOptions(phrases=tmp_path / "none.txt").arguments()


def test_a_language_model_may_rescore_the_final_hypotheses() -> None:
    assert SearchOptions(lm_use="rescoring").arguments()["lm_use"] == "rescoring"


def test_invalid_hotwords_are_errors(tmp_path: Path) -> None:
    file = tmp_path / "hotwords.txt"
    with pytest.raises(DataError, match=r"hotwords.txt: the hotwords cannot be read"):
        read_hotwords(file)
    file.write_text("\n \n")
    with pytest.raises(DataError, match=r"hotwords.txt: the file contains no hotwords"):
        read_hotwords(file)
    file.write_text("nine\neight :much\n")
    with pytest.raises(DataError, match=r"hotwords.txt, line 2: 'much' is not a boost"):
        read_hotwords(file)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--lm-weight", 0.5), "--lm-weight = 0.5 requires a language model; pass one as --lm"),
        (("--lm-use", "rescoring"), "--lm-use = rescoring requires a language model; pass one as --lm"),
        (("--lm", "nowhere/lm"), "nowhere/lm: no such language model; check the path"),
        (("--beam", 100_000), "--beam = 100000 must be at most "),
        (("--endpoint", "pause=3,length=2"), "--endpoint length = 2.0 must be at least --endpoint pause = 3.0"),
    ],
)
def test_errors_name_options_instead_of_python_arguments(wav: Path, options: list[object], message: str) -> None:
    result = run("transcribe", wav, *options)
    assert result.exit_code == 1
    assert result.stderr.startswith(message)
