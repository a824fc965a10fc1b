"""Settings: errors in recipes, and the round trip to a file."""

from __future__ import annotations

import math
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ROOT
from headsync.config import TABLES_OF_KIND, Config, DataConfig, TrainingConfig
from headsync.endpointing.endpointer import build_endpointer
from headsync.errors import ConfigError
from headsync.frontend.frame_rate import LOG_MEL
from headsync.recipe import dump, load_config

MOST_SETTINGS = 77


def load(folder: Path, text: str, *overrides: str) -> Config:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides)


def complaint(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *overrides)
    message = str(caught.value)
    assert message.startswith(str(folder / "recipe.toml")) or overrides
    assert "\n" not in message
    return message.removeprefix(f"{folder / 'recipe.toml'}: ")


def test_an_empty_recipe_is_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "") == Config()


def test_the_defaults_are_the_papers(tmp_path: Path) -> None:
    config = Config()
    assert (config.network.width, config.network.heads, config.network.feedforward) == (256, 4, 2048)
    assert (config.encoder.layers, config.decoder.layers) == (6, 12)
    assert (config.training.ctc_weight, config.training.noam_factor, config.training.warmup_updates) == (
        0.3,
        10,
        25_000,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[training]\nsede = 2", 'training.sede is not a setting; did you mean "seed"?'),
        ("[trainings]\nseed = 2", 'trainings is not a setting; did you mean "training"?'),
        ("[decoder]\ntreshold = 2.0", 'decoder.treshold is not a setting; did you mean "threshold"?'),
        ("[encoder]\nzzz = 2", "encoder.zzz is not a setting; known here: centre_frames, layers, left_frames"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(tmp_path: Path, text: str, expected: str) -> None:
    assert complaint(tmp_path, text).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[network]\nwidth = "wide"', "network.width = 'wide' must be a whole number"),
        ("[network]\nwidth = 48.0", "network.width = 48.0 must be a whole number"),
        ("[network]\nwidth = true", "network.width = True must be a whole number"),
        ("[network]\ndropout = false", "network.dropout = False must be a number"),
        ("[network]\ndropout = [0.1]", "network.dropout = [0.1] must be a number"),
        ("[data]\ntrain = 3", "data.train = 3 must be a text in quotes"),
        ("network = 3", "network must be a table of settings, not 3"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(tmp_path: Path, text: str, expected: str) -> None:
    assert complaint(tmp_path, text) == expected


def test_an_integer_is_accepted_as_a_number(tmp_path: Path) -> None:
    threshold = load(tmp_path, "[decoder]\nthreshold = 2").decoder.threshold
    assert threshold == 2.0
    assert isinstance(threshold, float)


@pytest.mark.parametrize("value", ['"Isolated"', "3", "[]"])
def test_a_choice_lists_what_it_can_be(tmp_path: Path, value: str) -> None:
    message = complaint(tmp_path, f"[encoder]\nmode = {value}")
    assert message.startswith("encoder.mode = ")
    assert message.endswith('is not known; it can be "isolated", "reuse", "contextual", "full"')


@pytest.mark.parametrize(
    "setting",
    [
        "network.width = 0", "network.heads = 0", "network.feedforward = -1", "network.kernels = 0",
        "network.dropout = 1.0", "network.dropout = -0.1", "network.dropout = nan",
        "encoder.layers = 0", "encoder.centre_frames = 0", "encoder.left_frames = -1", "encoder.right_frames = -1",
        "decoder.layers = 0", "decoder.threshold = 0.0", "decoder.threshold = nan",
        "decoding.beam = 0", "decoding.lookahead_frames = 0", "endpoint.spike_probability = 1.5",
        "decoding.beam = 100000", "decoding.length_bonus = nan",
        "decoding.lm_weight = inf", "decoding.confidence_scale = inf", "endpoint.pause_seconds = nan",
        "data.workers = -1",
        "training.seed = -1", "training.epochs = 0", "training.epochs_per_pass = 0",
        "training.patience = -1", "training.batch_frames = 0", "training.ctc_weight = 1.1",
        "training.label_smoothing = 1.0", "training.noam_factor = 0.0", "training.warmup_updates = 0",
        "training.untruncated_updates = -1", "training.average = 0",
        "training.checkpoint_seconds = -1.0", "training.checkpoint_seconds = nan",
        "training.frequency_mask_bins = -1", "training.time_mask_frames = -1",
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_named_with_its_table(tmp_path: Path, setting: str) -> None:
    assert complaint(tmp_path, setting).startswith(f"{setting} must be ")


VARIED = '[network]\nfamily = "moonshine"\n[decoder]\nframe_positions = false\n[encoder]\nmode = "reuse"\n'


@pytest.mark.parametrize("wrong", ["5", "5 4", "0 4", "5 x", "5 6 7", "5.0 6"])
def test_varied_sizes_are_two_numbers(tmp_path: Path, wrong: str) -> None:
    sentence = f'encoder.varied_frames = "{wrong}" must be two whole numbers, for example "5 14"'
    assert complaint(tmp_path, f'{VARIED}varied_frames = "{wrong}"') == sentence


def test_varied_sizes_include_those_of_the_model(tmp_path: Path) -> None:
    assert load(tmp_path, f'{VARIED}varied_frames = "5 16"').encoder.frame_range == (5, 16)
    message = complaint(tmp_path, f'{VARIED}varied_frames = "5 16"\nright_frames = 4')
    assert message == 'encoder.right_frames = 4 must be within varied_frames = "5 16"'


@pytest.mark.parametrize("other", ['[encoder]\nmode = "reuse"\n', VARIED.replace("reuse", "full"), "[encoder]\n"])
def test_sizes_vary_only_where_no_weight_depends_on_them(tmp_path: Path, other: str) -> None:
    message = complaint(tmp_path, f'{other}varied_frames = "5 16"')
    assert message == 'encoder.varied_frames requires network.family = "moonshine" and encoder.mode = "reuse"'


@pytest.mark.parametrize(("width", "heads"), [(50, 4), (48, 5), (12, 4)])
def test_heads_that_do_not_divide_the_width_are_refused(tmp_path: Path, width: int, heads: int) -> None:
    message = complaint(tmp_path, f"[network]\nwidth = {width}\nheads = {heads}")
    assert message == f"network.width = {width} must be a multiple of twice heads = {heads}"


def test_the_longest_utterance_is_longer_than_the_silence_that_ends_one(tmp_path: Path) -> None:
    message = complaint(tmp_path, "[endpoint]\npause_seconds = 30\nlongest_seconds = 20")
    assert message == "endpoint.longest_seconds = 20.0 must be at least pause_seconds = 30.0"


def test_an_endpoint_may_never_come(tmp_path: Path) -> None:
    """Infinity is a number of frames that no stream reaches."""
    never = load(tmp_path, "[endpoint]\nlongest_seconds = inf\nsilence_seconds = inf").endpoint
    endpointer = build_endpointer(never, LOG_MEL)
    assert min(endpointer.longest_frames, endpointer.silence_frames) > 10**9


def test_overrides_replace_and_add_settings(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "[training]\nseed = 1",
        "training.seed=7", "decoder.threshold=inf", "data.train=some/where.jsonl", 'data.dev="a b=c.jsonl"',
        "encoder.mode = isolated", "training.batch_frames=12_000", "training.folder=",
    )  # fmt: skip
    assert (config.training.seed, config.decoder.threshold) == (7, math.inf)
    assert (config.data.train, config.data.dev) == ("some/where.jsonl", "a b=c.jsonl")
    assert (config.encoder.mode, config.training.batch_frames, config.training.folder) == ("isolated", 12_000, "")


@pytest.mark.parametrize("override", ["seed=2", "training.seed", "a.b.c=1", "", "=", "training.seed 2"])
def test_an_invalid_override_is_an_error_with_an_example(tmp_path: Path, override: str) -> None:
    assert complaint(tmp_path, "", override) == (
        f'"{override}" is not an override; write table.key=value, for example training.seed=2'
    )


def test_errors_in_overrides_are_those_of_a_recipe(tmp_path: Path) -> None:
    assert complaint(tmp_path, "", "training.sede=2").endswith('did you mean "seed"?')
    assert complaint(tmp_path, "", "training.seed=two") == "training.seed = 'two' must be a whole number"
    assert (
        complaint(tmp_path, "network = 1", "network.width=2") == '"network.width=2": network is not a table of settings'
    )


def test_a_missing_or_malformed_recipe_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such recipe; see recipes/"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    assert complaint(tmp_path, "[network\nwidth = 3").startswith("not a TOML file: ")
    (tmp_path / "recipe.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a TOML file"):
        load_config(tmp_path / "recipe.toml")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_extends_another_key_by_key(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", 'kind = "recogniser"\n[network]\nwidth = 64\nheads = 2\n[training]\nseed = 3')
    write(tmp_path / "inner" / "middle.toml", 'extends = "../base.toml"\n[network]\nwidth = 32\n[data]\ntrain = "a"')
    top = write(tmp_path / "top.toml", 'extends = "inner/middle.toml"\n[training]\nepochs = 2')
    config = load_config(top, ["training.seed=4"])
    assert (config.network.width, config.network.heads) == (32, 2)
    assert (config.data.train, config.training.epochs, config.training.seed) == ("a", 2, 4)
    assert load_config(write(tmp_path / "dumped.toml", dump(config))) == config
    assert "extends" not in dump(config)


def test_a_recipe_that_extends_nothing_or_itself_is_an_error(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    write(one, 'extends = "two.toml"')
    with pytest.raises(ConfigError, match=r"two\.toml: no such recipe; .*one\.toml extends it"):
        load_config(one)
    write(two, 'extends = "one.toml"')
    with pytest.raises(ConfigError, match=r"two\.toml: extends = 'one\.toml' makes a cycle: .*one.toml -> .*two.toml"):
        load_config(one)
    write(one, "extends = 3")
    with pytest.raises(ConfigError, match="must be the path of a recipe, in quotes"):
        load_config(one)
    write(one, 'extends = "three.toml"\n[network]\nwidth = 32')
    write(tmp_path / "three.toml", "network = 5")
    assert load_config(one).network.width == 32
    write(tmp_path / "three.toml", "[network]\nwidht = 32")
    with pytest.raises(ConfigError, match=r"one\.toml: network\.widht is not a setting"):
        load_config(one)


def test_sinusoids_and_reused_left_frames_exclude_each_other(tmp_path: Path) -> None:
    text = '[encoder]\nmode = "reuse"\npositions = "sinusoids"'
    assert complaint(tmp_path, text).startswith('encoder.positions = "sinusoids" requires mode')


def test_no_energy_bias_is_written_as_a_word(tmp_path: Path) -> None:
    config = load(tmp_path, '[decoder]\nenergy_bias = "none"')
    assert config.decoder.energy_bias is None
    assert load(tmp_path, dump(config)) == config
    assert complaint(tmp_path, '[decoder]\nenergy_bias = "no"') == "decoder.energy_bias = 'no' must be a number"


def test_every_setting_is_used_by_a_recipe_a_command_or_a_test() -> None:
    used = "\n".join(
        path.read_text(encoding="utf-8")
        for pattern in ("recipes/**/*.toml", "recipes/**/*.py", "src/headsync/cli/*.py", "tests/**/*.py")
        for path in ROOT.glob(pattern)
        if path.name != "test_config.py"
    )
    for table in fields(Config()):
        if table.name != "kind":
            for setting in fields(getattr(Config(), table.name)):
                assert re.search(rf"\b{setting.name}\b", used), f"{table.name}.{setting.name} is used nowhere"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))  # a surrogate alone is no text that UTF-8 can hold
POSITIVE = st.floats(min_value=0.0, exclude_min=True, allow_nan=False)


@settings(deadline=None, max_examples=50)
@given(train=TEXTS, folder=TEXTS, factor=POSITIVE, threshold=POSITIVE, bias=st.floats(allow_nan=False))
def test_a_dumped_config_loads_unchanged(
    tmp_path_factory: pytest.TempPathFactory, train: str, folder: str, factor: float, threshold: float, bias: float
) -> None:
    config = replace(
        Config(),
        data=DataConfig(train=train, tokens="words"),
        decoder=replace(Config().decoder, threshold=threshold, energy_bias=bias),
        training=TrainingConfig(folder=folder, noam_factor=factor),
    )
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    path.write_bytes(dump(config).encode())
    assert load_config(path) == config


def test_the_number_of_settings_does_not_grow() -> None:
    """Every value of a recipe counts once: `kind`, and each field of each table. No field may hold a collection."""
    tables = {name: vars(table) for name, table in vars(Config()).items() if is_dataclass(table)}
    assert tables.keys() == {name for names in TABLES_OF_KIND.values() for name in names}
    assert vars(Config()).keys() - tables.keys() == {"kind"}
    assert all(isinstance(value, str | int | float) for table in tables.values() for value in table.values())
    count = 1 + sum(len(table) for table in tables.values())
    assert count <= MOST_SETTINGS
    assert f"A recipe has {count} settings" in (ROOT / "docs/reference/recipe.md").read_text(encoding="utf-8")
