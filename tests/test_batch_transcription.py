"""Batch transcription: one line for each utterance, by one model, after any number of stopped or killed runs."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commands import environment, one_line
from headsync.batch_transcription import Job, here, on_ray, resume, transcribe
from headsync.cli.app import app
from headsync.corpora import toy
from headsync.corpora.manifest import Utterance, read_manifest, write_manifest
from headsync.errors import ConfigError, DataError
from headsync.model_folder import find

RAY = importlib.util.find_spec("ray") is not None


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of fourteen recordings."""
    folder = tmp_path_factory.mktemp("archive")
    toy.prepare(folder, strings=toy.Counts(train=14, dev=1, test=1))
    return folder / "train.jsonl"


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def ids(manifest: Path) -> list[str]:
    return [utterance.id for utterance in read_manifest(manifest)]


def nobody(_: int, __: int) -> None:
    pass


def test_every_utterance_gets_a_line(archive: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    done = transcribe(Job(), archive, tmp_path / "out.jsonl", here, lambda *so_far: seen.append(so_far))
    assert (done.before, done.transcribed, done.failed) == (0, 14, 0)
    found = lines(tmp_path / "out.jsonl")
    assert [line["id"] for line in found] == ids(archive)
    assert all(isinstance(line["text"], str) and line["seconds"] > 0 for line in found)
    assert seen[-1] == (14, 14)


def test_a_stopped_run_continues_with_missing_utterances(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    transcribe(Job(), archive, out, here, nobody)
    whole = out.read_bytes()
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:5]) + whole.splitlines()[5][:20])  # killed while writing
    asked: list[str] = []

    def watched(job: Job, utterances: Sequence[Utterance]) -> Iterator[dict[str, Any]]:
        asked.extend(utterance.id for utterance in utterances)
        return here(job, utterances)

    done = transcribe(Job(), archive, out, watched, nobody)
    assert (done.before, done.transcribed) == (5, 9)
    assert asked == ids(archive)[5:]
    assert out.read_bytes() == whole
    assert transcribe(Job(), archive, out, here, nobody).transcribed == 0


def test_an_unreadable_recording_has_a_line_with_the_error(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.wav").write_bytes(b"not sound")
    some = read_manifest(archive)[0]
    write_manifest(tmp_path / "two.jsonl", [Utterance("bad", tmp_path / "broken.wav", "", 1.0), some])
    out = tmp_path / "out.jsonl"
    result = CliRunner().invoke(app, ["transcribe", "--manifest", str(tmp_path / "two.jsonl"), "--out", str(out)])
    assert result.exit_code == 1
    assert "1 transcribed, 0 by earlier runs, 1 failed" in result.output
    assert "broken.wav" in lines(out)[0]["error"]
    assert lines(out)[1]["id"] == some.id


def test_failed_utterances_are_retried(archive: Path, tmp_path: Path) -> None:
    some, other = read_manifest(archive)[:2]
    lost = tmp_path / "lost.flac"
    write_manifest(tmp_path / "two.jsonl", [Utterance("bad", lost, "", 1.0), some])
    out = tmp_path / "out.jsonl"
    done = [transcribe(Job(), tmp_path / "two.jsonl", out, here, nobody) for _ in range(2)]
    assert [(one.before, one.transcribed, one.failed) for one in done] == [(0, 1, 1), (1, 0, 1)]
    assert [line["id"] for line in lines(out)] == [some.id, "bad"]
    lost.write_bytes(other.audio.read_bytes())
    assert transcribe(Job(), tmp_path / "two.jsonl", out, here, nobody).transcribed == 1
    assert [("error" in line, line["id"]) for line in lines(out)] == [(False, some.id), (False, "bad")]


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model with another setting in its own folder."""
    folder = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(find(), folder)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("beam = 5", "beam = 2"))
    return folder


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": "other"}, r"model english \([0-9a-f]{8}\) -> other \([0-9a-f]{8}\)"),
        ({"settings": (("beam", 2),)}, r"beam not set -> 2"),
        ({"hotwords": (("one", 2.0),)}, r"hotwords not set -> \[\['one', 2\.0\]\]"),
        ({"phrases": ("one",)}, r"phrases not set -> \['one'\]"),
    ],
)
def test_texts_of_another_model_or_other_settings_are_never_taken_over(
    archive: Path, tmp_path: Path, other_model: Path, change: dict[str, Any], named: str
) -> None:
    out = tmp_path / "out.jsonl"
    transcribe(Job(), archive, out, here, nobody)
    before = out.read_bytes()
    change = {**change, "model": str(other_model)} if "model" in change else change
    with pytest.raises(DataError, match=named):
        transcribe(Job(**change), archive, out, here, nobody)
    assert out.read_bytes() == before


def test_the_same_model_under_another_path_continues(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    transcribe(Job(), archive, out, here, nobody)
    shutil.copytree(find(), tmp_path / "copy")
    same = Job(str(tmp_path / "copy"), settings=(("engine", "auto"), ("beam", None)))
    assert transcribe(same, archive, out, here, nobody).before == 14


def test_an_output_that_does_not_name_its_model_is_not_continued(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    transcribe(Job(), archive, out, here, nobody)
    old = [{key: value for key, value in line.items() if key != "recognizer"} for line in lines(out)]
    out.write_text("".join(json.dumps(line) + "\n" for line in old))
    with pytest.raises(DataError, match="does not record the model"):
        transcribe(Job(), archive, out, here, nobody)


def test_audio_that_has_changed_is_transcribed_again(archive: Path, tmp_path: Path) -> None:
    first, second = read_manifest(archive)[:2]
    audio, out = tmp_path / "a.flac", tmp_path / "out.jsonl"
    audio.write_bytes(first.audio.read_bytes())
    write_manifest(tmp_path / "one.jsonl", [Utterance("one", audio, "", 1.0)])
    transcribe(Job(), tmp_path / "one.jsonl", out, here, nobody)
    audio.write_bytes(second.audio.read_bytes())
    assert transcribe(Job(), tmp_path / "one.jsonl", out, here, nobody).transcribed == 1
    assert [line["audio_bytes"] for line in lines(out)] == [second.audio.stat().st_size]


def test_an_id_that_names_another_file_is_an_error(archive: Path, tmp_path: Path) -> None:
    first, second = read_manifest(archive)[:2]
    for number, one in enumerate([first, second]):
        write_manifest(tmp_path / f"{number}.jsonl", [Utterance("one", one.audio, "", 1.0)])
    transcribe(Job(), tmp_path / "0.jsonl", tmp_path / "out.jsonl", here, nobody)
    with pytest.raises(DataError, match=f"one was transcribed from .*{first.audio.name}.*{second.audio.name}"):
        transcribe(Job(), tmp_path / "1.jsonl", tmp_path / "out.jsonl", here, nobody)


def test_the_default_output_is_in_the_working_folder(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_manifest(tmp_path / "corpus" / "two.jsonl", read_manifest(archive)[:2])
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert CliRunner().invoke(app, ["transcribe", "--manifest", "../corpus/two.jsonl"]).exit_code == 0
    assert len(lines(Path("two-transcripts.jsonl"))) == 2
    assert [path.name for path in (tmp_path / "corpus").iterdir()] == ["two.jsonl"]


def test_a_full_disk_is_an_error_that_names_the_output(archive: Path, tmp_path: Path) -> None:
    code = """if True:
        import resource, sys
        from headsync.cli import main
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        sys.argv[1:] = ["transcribe", "--manifest", sys.argv[1], "--out", sys.argv[2]]
        main()"""
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-c", code, str(archive), str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"{out}: cannot be written (File too large); free some space and run the same")
    assert one_line(ended.stderr)
    assert transcribe(Job(), archive, out, here, nobody).failed == 0  # continues
    assert [line["id"] for line in lines(out)] == ids(archive)


@pytest.mark.parametrize(
    "content", [b"my notes\n", b"my only note", b'{"id": "a"}\n', b"[1]\n{", b"\x00\nsound\nof no lines"]
)
def test_a_file_that_is_not_an_output_is_unchanged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes.txt").write_bytes(content)
    with pytest.raises(DataError, match="not an output of headsync transcribe"):
        resume(tmp_path / "notes.txt", Job().identity(), [])
    assert (tmp_path / "notes.txt").read_bytes() == content


def test_a_manifest_is_no_output(archive: Path) -> None:
    before = archive.read_bytes()
    with pytest.raises(DataError, match="not an output of headsync transcribe"):
        transcribe(Job(), archive, archive, here, nobody)
    assert archive.read_bytes() == before


@pytest.mark.parametrize(
    "arguments", [[], ["a.wav", "--manifest", "m"], ["a.wav", "--engine", "ray"], ["a.wav", "--out", "o"]]
)
def test_a_manifest_replaces_files(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["transcribe", *arguments]).exit_code == 2


def test_a_cluster_without_ray_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'headsync\[cluster\]'"):
        on_ray()


# on a cluster of this machine

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from headsync import batch_transcription

archive, out, workers = map(Path, sys.argv[1:])
batch_transcription.PER_TASK = 2


class Slow(batch_transcription.Job):
    def load(self):  # leaves the number of its process behind, and takes its time
        (workers / str(os.getpid())).touch()
        time.sleep(0.5)
        return super().load()


def kill_one(done, all):  # with the first line there, a worker other than this process dies
    others = [int(path.name) for path in workers.iterdir() if int(path.name) != os.getpid()]
    if others and not (workers.parent / "killed").exists():
        (workers.parent / "killed").touch()
        os.kill(others[0], signal.SIGKILL)


done = batch_transcription.transcribe(Slow(), archive, out, batch_transcription.on_ray(workers=2), kill_one)
assert (done.transcribed, done.failed) == (14, 0), done
"""


@pytest.mark.skipif(not RAY, reason="needs Ray: pip install 'headsync[cluster]'")
def test_a_killed_worker_loses_and_repeats_no_utterance(archive: Path, tmp_path: Path) -> None:
    out, alone, workers = tmp_path / "out.jsonl", tmp_path / "alone.jsonl", tmp_path / "workers"
    workers.mkdir()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    called = [sys.executable, str(script), str(archive), str(out), str(workers)]
    ended = subprocess.run(called, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "killed").exists()
    assert len(list(workers.iterdir())) >= 3  # the first process, two workers, and perhaps one in place of the dead one
    transcribe(Job(), archive, alone, here, nobody)
    assert sorted(out.read_text().splitlines()) == sorted(alone.read_text().splitlines())
