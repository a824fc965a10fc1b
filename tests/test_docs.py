"""The documentation agrees with the code: commands and code blocks run, links resolve, tables are complete."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import typer
from typer.testing import CliRunner

import headsync
from headsync import config, events, model_folder
from headsync.cli.app import app
from headsync.corpora.manifest import Utterance, write_manifest
from headsync.engine.onnx import NAMES
from recordings import DIGIT_RECORDINGS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headsync"
README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "results/*.md", "recipes/**/*.md", "src/headsync/models/*/README.md")
    for page in ROOT.glob(pattern)
)
MOST_README_LINES = 120
MOST_DECISION_LINES = 25

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# parsing pages


def fences(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def inline_code(page: Path) -> list[str]:
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))]


def section(page: Path, heading: str) -> str:
    """The text under a second-level heading, up to the next one."""
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f'{page.name} has no heading "{heading}"'
    return found[1]


def rows(text: str) -> dict[str, str]:
    """Rows of tables whose first cell contains only code: each name with the second cell."""
    found = re.findall(r"^\| (`[^|]+`) \| ([^|]*?) \|", text, re.MULTILINE)
    return {name: second for names, second in found for name in re.findall(r"`([^`]+)`", names)}


def commands_of(script: str) -> Iterator[list[str]]:
    """Every call of headsync in a script, without pipes and redirections."""
    for line in script.splitlines():
        reader = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|><;&")
        reader.whitespace_split = True
        for ends, words in itertools.groupby(reader, lambda word: set(word) <= set("|><;&")):
            called, *rest = words
            if called == "headsync" and not ends:
                yield rest


def indented(page: Path) -> str:
    """Code blocks that are indented by four spaces."""
    return "\n".join(re.findall(r"^    (\S.*)$", prose(page), re.MULTILINE))


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST compute it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)}


# pages


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MOST_README_LINES


@pages
def test_links_resolve(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), f"{link} leaves the project"
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@pages
def test_named_files_exist(page: Path) -> None:
    for name in inline_code(page):
        if re.fullmatch(r"[\w/.-]+\.py|(?:src|tests|docs|benchmarks|recipes)/[\w/.-]*", name):
            assert any((place / name).exists() for place in (ROOT, PACKAGE, page.parent)), f"{name} does not exist"


@pages
def test_scripts_of_commands_exist(page: Path) -> None:
    for script in re.findall(r"\bpython3? ((?:benchmarks|recipes)/[\w/.-]+)", page.read_text(encoding="utf-8")):
        assert (ROOT / script).is_file(), f"{script} does not exist"


@pages
def test_make_targets_exist(page: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"^make ([\w-]+)", "\n".join(fences(page, "sh") + inline_code(page)), re.MULTILINE)
    assert set(named) <= set(targets)


@pages
def test_no_placeholder_is_left(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert not [number for number, line in enumerate(lines, 1) if "TODO" in line]


def test_the_project_speaks_of_itself_alone() -> None:
    elsewhere = re.compile(
        r"(?<![\w.:/}])/(?:work|home|root|tmp|mnt|Users)\b|\b(?:issue|session|ticket)\s+#?\d+|(?<![\w&])#\d+\b",
        re.IGNORECASE,
    )
    places = [*PAGES, *PACKAGE.rglob("*.py"), ROOT / "Makefile"]
    places += [*ROOT.glob("recipes/**/*.*"), *ROOT.glob("benchmarks/**/*.py")]
    for place in places:
        assert not elsewhere.findall(place.read_text(encoding="utf-8")), place


# commands


def parse(words: list[str], *, complete: bool) -> None:
    """Parse a command without running it; unknown commands and options and missing arguments are assertion errors."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("headsync", [], resilient_parsing=True)
    options = {option for parameter in command.get_params(context) for option in parameter.opts}
    rest = [word for word in words if word not in options]
    while rest and hasattr(command, "commands"):
        name, *rest = rest
        assert name in command.commands, f"headsync {shlex.join(words)}: No such command"
        command = command.commands[name]
    try:
        if not hasattr(command, "commands"):
            command.make_context(command.name, rest, parent=context)
    except Exception as error:
        if complete or type(error).__name__ not in ("MissingParameter", "BadOptionUsage"):
            raise AssertionError(f"headsync {shlex.join(words)}: {error}") from error


@pages
def test_every_command_parses(page: Path) -> None:
    for script in [*fences(page, "sh"), *fences(page, "console"), indented(page)]:
        for words in commands_of(script):
            parse(words, complete="--help" not in words)
    for words in commands_of("\n".join(inline_code(page))):
        parse(words, complete=False)


def test_an_unknown_command_is_detected() -> None:
    for wrong in (["transscribe", "a.wav"], ["transcribe", "a.wav", "--modle", "m"], ["evaluate", "m"]):
        with pytest.raises(AssertionError, match=r"No such|Missing"):
            parse(wrong, complete=True)


def all_commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for key, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from all_commands(command, f"{name} {key}")
        else:
            yield f"{name} {key}", command


@pytest.mark.parametrize(("name", "command"), list(all_commands(typer.main.get_command(app), "headsync")))
def test_the_reference_has_every_option_and_default(name: str, command: Any) -> None:
    table = rows(section(REFERENCE / "command-line.md", name))
    documented = {key: default for key, default in table.items() if key.startswith("--")}
    options = {parameter.opts[0]: parameter.default for parameter in command.params if parameter.opts[0][:2] == "--"}
    options.pop("--help", None)
    assert documented.keys() == options.keys()
    for option, default in options.items():
        if default not in (None, False):
            assert documented[option].strip("`") == str(getattr(default, "value", default))


# tables


TABLES = [field for field in dataclasses.fields(config.Config) if field.name != "kind"]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_reference_has_every_setting_and_default(table: dataclasses.Field[Any]) -> None:
    documented = rows(section(REFERENCE / "recipe.md", f"[{table.name}]"))
    defaults = dataclasses.asdict(getattr(config.Config(), table.name))
    assert {key: tomllib.loads(f"value = {text}")["value"] for key, text in documented.items()} == defaults


@pages
def test_named_settings_exist(page: Path) -> None:
    if "history" in page.parts or page.name == "CHANGELOG.md":
        pytest.skip("settings of earlier versions")
    known = {
        (table.name, name) for table in TABLES for name in dataclasses.asdict(getattr(config.Config(), table.name))
    }
    tables = "|".join(table.name for table in TABLES)
    named = re.findall(rf"(?<![\w./])({tables})\.([a-z_]+)(?![\w.(/])", " ".join(inline_code(page)))
    assert set(named) <= known


@pytest.mark.parametrize("event", [events.Word, events.Partial, events.Final, events.Endpoint, events.Alternative])
def test_the_reference_has_every_field_of_events(event: type) -> None:
    page = REFERENCE / "events.md"
    documented = rows(section(page, event.__name__)).keys()
    inherited = rows(section(page, "Partial")).keys() - {"committed_words"} if event is events.Final else set()
    assert documented | inherited == {field.name for field in dataclasses.fields(event)}


def test_the_reference_has_every_public_name() -> None:
    named = set(re.findall(r"\w+", " ".join(inline_code(REFERENCE / "events.md"))))
    assert set(headsync.__all__) <= named


def test_the_api_reference_has_every_public_name() -> None:
    page = (REFERENCE / "api.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\.\. (?:auto\w+|py:data):: headsync\.(\w+)", page, re.MULTILINE)
    assert sorted(documented) == sorted(headsync.__all__)


def test_the_glossary_has_every_test_set_of_the_results() -> None:
    known = rows(section(REFERENCE / "glossary.md", "Test sets")).keys()
    named = re.findall(r"^\| `([\w-]+)`", (ROOT / "results" / "digits.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) >= 6
    assert set(named) <= known


def test_the_site_has_every_page() -> None:
    """The build fails for a page without a table of contents; this test checks the folders that it reads."""
    folders = {page.relative_to(ROOT).parts[0] for page in PAGES if page.parent != ROOT}
    config = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    assert all(f'"{folder}/' in config for folder in folders)


def test_the_picture_of_the_data_path_names_packages_that_exist() -> None:
    picture = (ROOT / "docs" / "explanation" / "pictures" / "data-path.svg").read_text(encoding="utf-8")
    named = [
        name
        for text in re.findall(r'class="(?:net-)?where"[^>]*>([^<]*)<', picture)
        for name in re.findall(r"[\w/.]+", text)
    ]
    assert len(named) >= 6
    assert all((PACKAGE / name).exists() for name in named)


def test_the_reference_has_every_key_of_an_evaluation(tmp_path: Path) -> None:
    recording = sorted(DIGIT_RECORDINGS.glob("*.flac"))[0]
    text = recording.with_suffix(".txt").read_text(encoding="utf-8").strip()
    write_manifest(tmp_path / "a.jsonl", [Utterance("a", recording, text, 1.0, "anna")])
    command = ["evaluate", "digits-en", str(tmp_path / "a.jsonl"), "--json", str(tmp_path / "a.json")]
    assert CliRunner().invoke(app, command).exit_code == 0
    document = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    documented = rows(section(REFERENCE / "measures.md", "The JSON file"))
    assert documented.keys() == document.keys()
    inner = {name: document[name] for name in ("counts", "formatting", "stops", "delays", "stability")}
    inner |= {"speakers": document["speakers"]["anna"], "reliability": document["reliability"][0]}
    inner |= {"outcomes": document["outcomes"][0], "delays": document["delays"] | document["delays"]["laal"]}
    for name, value in inner.items():
        described = documented[name] + (documented["calibration_error"] if name == "reliability" else "")
        assert value.keys() == set(re.findall(r"`(\w+)`", described)), name


def test_the_reference_has_every_file_of_a_model() -> None:
    files = {
        model_folder.WEIGHTS,
        model_folder.CONFIG,
        model_folder.VOCABULARY,
        model_folder.STATISTICS,
        model_folder.CARD,
        model_folder.CHECKSUMS,
    }
    files |= {model_folder.GRAPHS, f"{model_folder.LANGUAGE_MODEL}/", *(f"{name}.onnx" for name in NAMES)}
    assert rows((REFERENCE / "model-folder.md").read_text(encoding="utf-8")).keys() == files


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^(\d+)\. \[(.*)\]\((.*)\)$", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    files = sorted(folder.glob("0*.md"))
    assert [name for _, _, name in listed] == [path.name for path in files]
    assert [int(number) for number, _, _ in listed] == [int(path.name[:4]) for path in files]
    for (number, title, _), path in zip(listed, files, strict=True):
        assert path.read_text(encoding="utf-8").startswith(f"# {number}. {title}\n")


def test_decisions_are_numbered_without_gaps_and_short() -> None:
    files = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert [int(path.name[:4]) for path in files] == list(range(1, len(files) + 1))
    for path in files:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_DECISION_LINES, path.name


# code


def run(words: list[str]) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the commands of recipes/toy/README.md have run, on a part of the corpus for one epoch."""
    place, before = tmp_path_factory.mktemp("toy"), Path.cwd()
    shutil.copytree(ROOT / "recipes", place / "recipes")
    os.chdir(place)
    try:
        (script,) = fences(ROOT / "recipes" / "toy" / "README.md", "sh")
        for words in commands_of(script):
            shorter = ["training.epochs=1", "training.untruncated_updates=1"] if words[0] == "train" else []
            run(words + shorter)
            for manifest in place.glob("runs/data/toy/*.jsonl"):
                lines = manifest.read_text(encoding="utf-8").splitlines(keepends=True)
                manifest.write_text("".join(lines[:16]), encoding="utf-8")
        yield place
    finally:
        os.chdir(before)


def test_the_toy_commands_train_a_model(toy_folder: Path) -> None:
    model = model_folder.load_folder(toy_folder / "runs" / "toy" / "model")
    assert model.vocabulary.decode([1, 2, 3, 4, 5, 6]) == "ba di gu ke mo su"


OTHER_ENVIRONMENTS = {"openai-clients", "deepgram-clients", "home-assistant"}  # tests/server/test_how_to.py runs these
PYTHON_PAGES = [page for page in PAGES if fences(page, "python") and page.stem not in OTHER_ENVIRONMENTS]


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.stem)
def test_python_code_runs(page: Path, toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page in order; the default model is the one just trained."""
    monkeypatch.setattr(model_folder, "SHIPPED", toy_folder / "runs" / "toy")
    monkeypatch.setattr(model_folder, "DEFAULT", "model")
    samples, rate = soundfile.read(toy_folder / "runs/data/toy/test/test-00000.flac", dtype="float32")
    soundfile.write(toy_folder / "talk.wav", samples, rate)
    (toy_folder / "notes.txt").write_text("not sound", encoding="utf-8")
    names: dict[str, Any] = {"chunks": np.array_split(samples, 20), "__name__": "docs"}
    for block in fences(page, "python"):
        exec(compile(block, str(page), "exec"), names)


@pytest.fixture
def recording() -> Path:
    """A bundled recording, if the default model is in this checkout."""
    if model_folder.DEFAULT not in model_folder.shipped():
        pytest.skip(f"the model {model_folder.DEFAULT} is not in this checkout")
    return sorted((PACKAGE / "demo").glob("*.flac"))[0]


def test_the_six_lines_recognise_a_bundled_recording(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headsync.frontend.audio import mix_down, read_audio, resample

    (six_lines,) = fences(README, "python")
    samples = resample(mix_down(read_audio(recording)[0]), read_audio(recording)[1])
    assert len(six_lines.splitlines()) == 6
    exec(compile(six_lines, str(README), "exec"), {"chunks": np.array_split(samples, 30)})
    said = " ".join(recording.with_suffix(".txt").read_text(encoding="utf-8").split())
    assert said in capsys.readouterr().out


def test_the_commands_of_the_readme_run(recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(recording, tmp_path / "talk.wav")  # the format is detected from the content
    (script,) = (script for script in fences(README, "sh") if "headsync models" in script)
    for words in commands_of(script):
        if words not in (["listen"], ["serve"]):  # no microphone, and a server that does not end
            assert run(words)
