from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headsync.cli import load_model, options
from headsync.cli.display import open_screen, paced, print_dim, stream, summarise
from headsync.cli.output import print_error
from headsync.errors import AudioError, HeadsyncError

if TYPE_CHECKING:
    from headsync.batch_transcription import Job
    from headsync.evaluation.timed_session import SessionFactory
    from headsync.frontend.audio import Piece

_STANDARD_INPUT = Path("-")


_Format = Literal["text", "json", "srt", "vtt"]  # the names of `subtitles.FORMATS`
_option = partial(typer.Option, rich_help_panel="Transcribe a manifest")


@dataclass(frozen=True)
class _BatchOptions:
    manifest: Annotated[Path | None, _option(help="Transcribe all utterances of a manifest instead of files.")] = None
    out: Annotated[
        Path | None, _option(help="Output, JSON lines; NAME-transcripts.jsonl in the working folder by default.")
    ] = None
    cluster: Annotated[Literal["here", "ray"], _option(help="Where to run.")] = "here"
    workers: Annotated[
        int | None, _option(min=1, help="Worker processes of --cluster ray; one per processor by default.")
    ] = None
    address: Annotated[str | None, _option(help="Address of a running Ray cluster.")] = None

    def check(self, files: list[Path]) -> None:
        """Raise an error for options that do not belong together."""
        if bool(files) == bool(self.manifest):
            raise typer.BadParameter("name either recordings or a manifest (--manifest).")
        if files and (self.out or self.workers or self.address or self.cluster != "here"):
            raise typer.BadParameter("--out, --cluster, --workers and --address require --manifest.")
        if (self.workers or self.address) and self.cluster == "here":
            raise typer.BadParameter("--workers and --address require --cluster ray.")


@options.grouped
def transcribe(
    search: options.SearchOptions,
    batch: _BatchOptions,
    files: Annotated[list[Path] | None, typer.Argument(help="Recordings; - is a WAV from standard input.")] = None,
    model: options.ModelName = None,
    format: Annotated[_Format, typer.Option(help="Output format.")] = "text",
    realtime: Annotated[bool, typer.Option("--realtime", help="Stream at the speed of speech.")] = False,
    nbest: Annotated[int | None, typer.Option(min=1, help="Alternatives per utterance, with --format json.")] = None,
) -> None:
    """Stream recordings and print their text."""
    files = files or []
    batch.check(files)
    _check_flag_values(files)
    if batch.manifest and (realtime or format != "text"):
        raise typer.BadParameter("--format and --realtime do not apply to --manifest, whose output is JSON.")
    if len(files) > 1 and format in ("srt", "vtt"):
        raise typer.BadParameter(f"{format} describes one recording; give one file, or use --format json.")
    if batch.manifest:
        from headsync.batch_transcription import Job

        _transcribe_manifest(Job(model, **search.load_options(nbest=nbest)), batch)
    else:
        recognizer = load_model.load_recognizer(model, **search.arguments(), nbest=nbest)
        _transcribe_files(recognizer, files, format, realtime)


def _check_flag_values(files: list[Path]) -> None:
    """`--realtime true` would name a file "true"."""
    for file in files:
        if str(file).lower() in ("true", "false", "yes", "no", "on", "off") and not file.exists():
            raise typer.BadParameter(f'--realtime takes no value, and there is no file "{file}".')


def _transcribe_files(recognizer: SessionFactory, files: list[Path], format: _Format, realtime: bool) -> None:
    """Print one file after the other; a file that cannot be read is an error, and the others are still transcribed."""
    failed = False
    for file in files:
        try:
            pieces = paced(_pieces(file)) if realtime else _pieces(file)
            if format == "text":
                _print_text(recognizer, pieces, f"{file}: " if len(files) > 1 else "")
            else:
                _print_document(recognizer, pieces, file, format)
        except BrokenPipeError:
            raise
        except (HeadsyncError, OSError) as error:
            print_error(error)
            failed = True
    if failed:
        raise typer.Exit(1)


def _transcribe_manifest(job: Job, batch: _BatchOptions) -> None:
    from headsync.batch_transcription import here, on_ray
    from headsync.batch_transcription import transcribe as transcribe_all
    from headsync.cli.output import progress_bar

    assert batch.manifest is not None
    out = batch.out or Path(f"{batch.manifest.stem}-transcripts.jsonl")
    run = here if batch.cluster == "here" else on_ray(batch.workers, batch.address)
    with progress_bar("utterances") as progress, load_model.option_names():
        done = transcribe_all(job, batch.manifest, out, run, progress)
    typer.echo(f"{out}: {done.transcribed} transcribed, {done.before} by earlier runs, {done.failed} failed.")
    if done.failed:
        raise typer.Exit(1)


def _pieces(file: Path) -> Iterable[Piece]:
    from headsync.cli.wav_stdin import stream_wav
    from headsync.frontend.audio import stream_audio

    if file != _STANDARD_INPUT:
        return stream_audio(file)
    if sys.stdin.isatty():
        raise AudioError("standard input: this is a terminal; pipe a WAV into it, or use headsync listen.")
    return stream_wav(sys.stdin.buffer)


def _print_text(recognizer: SessionFactory, pieces: Iterable[Piece], prefix: str) -> None:
    with open_screen(prefix) as screen:
        session = stream(recognizer, pieces, screen.show)
    if not session.finals and prefix:
        typer.echo(prefix.rstrip())  # with several files each has a line, also one without speech
    if sys.stdout.isatty():
        print_dim(summarise(session))


def _print_document(recognizer: SessionFactory, pieces: Iterable[Piece], file: Path, format: _Format) -> None:
    from headsync.text.subtitles import FORMATS, to_json

    session = stream(recognizer, pieces, lambda _event: None)
    if format == "json":
        seconds = {"audio_seconds": session.audio_seconds, "computing_seconds": session.computing_seconds}
        rounded = {name: round(value, 3) for name, value in seconds.items()}
        document = to_json(session.finals, file=str(file), **rounded)
    else:
        document = FORMATS[format](session.finals)
    typer.echo(document, nl=False)
