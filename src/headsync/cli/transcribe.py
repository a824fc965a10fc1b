"""`headsync transcribe`: recordings in, text out while they stream."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headsync.cli import loading, options
from headsync.cli.complain import complain
from headsync.cli.screen import describe, open_screen, say
from headsync.cli.streaming import Piece, paced, stream
from headsync.errors import AudioError, HeadsyncError

if TYPE_CHECKING:
    from headsync.bulk import Job, Run
    from headsync.events import Event
    from headsync.measure.timing import Listener

STANDARD_INPUT = Path("-")


class Format(Enum):
    """What is printed; the names are those of `subtitles.FORMATS`."""

    text = "text"
    json = "json"
    srt = "srt"
    vtt = "vtt"


class Engine(Enum):
    """What runs the network; or Ray, which runs it in many processes."""

    auto = "auto"
    onnx = "onnx"
    torch = "torch"
    ray = "ray"


class Cluster(Enum):
    """Where a manifest is transcribed."""

    here = "here"
    ray = "ray"


def transcribe(
    files: Annotated[list[Path] | None, typer.Argument(help="Recordings; - is a WAV from standard input.")] = None,
    model: options.ModelName = None,
    format: Annotated[Format, typer.Option(help="What to print.")] = Format.text,
    realtime: Annotated[bool, typer.Option("--realtime", help="Stream at the speed of speech.")] = False,
    beam: options.Beam = None,
    ctc_weight: options.CtcWeight = None,
    lm: options.Lm = None,
    lm_weight: options.LmWeight = None,
    hotwords: options.Hotwords = None,
    endpoint: options.EndpointRules = None,
    engine: Annotated[
        Engine, typer.Option(help="What runs the network: onnx, torch or auto; or ray, as --cluster ray.")
    ] = Engine.auto,
    nbest: Annotated[int | None, typer.Option(min=1, help="Readings of each utterance, with --format json.")] = None,
    manifest: Annotated[Path | None, typer.Option(help="Transcribe all of a manifest, in place of files.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where a manifest's transcripts go, a line of JSON each.")] = None,
    cluster: Annotated[Cluster, typer.Option(help="Where to transcribe a manifest.")] = Cluster.here,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of a cluster; all processors by default.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster that runs already.")] = None,
) -> None:
    """Stream recordings and print what was said."""
    if engine is Engine.ray:
        engine, cluster = Engine.auto, Cluster.ray
    _check(files, manifest, bool(out or workers or address or cluster is not Cluster.here))
    if manifest and (realtime or format is not Format.text):
        raise typer.BadParameter("--format and --realtime are for recordings; a manifest's transcripts are JSON.")
    if (workers or address) and cluster is Cluster.here:
        raise typer.BadParameter("--workers and --address are of a cluster; add --cluster ray.")
    files = files or []
    if len(files) > 1 and format in (Format.srt, Format.vtt):
        raise typer.BadParameter(f"{format.value} describes one recording; give one file, or use --format json.")
    settings = {"beam": beam, "ctc_weight": ctc_weight, "lm_weight": lm_weight, "nbest": nbest}
    settings |= options.endpoint_settings(endpoint)
    if manifest:
        from headsync.bulk import Job, here, on_ray

        out = out or manifest.with_name(f"{manifest.stem}-transcripts.jsonl")
        chosen = (("engine", engine.value), *settings.items())
        job = Job(model, lm, tuple(options.read_hotwords(hotwords)), chosen)
        _transcribe_all(job, manifest, out, here if cluster is Cluster.here else on_ray(workers, address))
        return
    recognizer = loading.load_recognizer(
        model, engine=engine.value, lm=lm, hotwords=options.read_hotwords(hotwords), **settings
    )
    _transcribe_each(recognizer, files, format, realtime)


def _transcribe_each(recognizer: Listener, files: list[Path], format: Format, realtime: bool) -> None:
    """Print one after the other; a file that cannot be read is told of, and the others are still done."""
    failed = False
    for file in files:
        try:
            pieces = paced(_pieces(file)) if realtime else _pieces(file)
            if format is Format.text:
                _print_growing(recognizer, pieces, f"{file}: " if len(files) > 1 else "")
            else:
                _print_document(recognizer, pieces, file, format)
        except BrokenPipeError:
            raise
        except (HeadsyncError, OSError) as error:
            complain(error)
            failed = True
    if failed:
        raise typer.Exit(1)


def _check(files: list[Path] | None, manifest: Path | None, of_manifests: bool) -> None:
    if bool(files) == bool(manifest):
        raise typer.BadParameter("name recordings, or a manifest with --manifest, and not both.")
    if not manifest and of_manifests:
        raise typer.BadParameter("--out and a cluster are for a manifest; name one with --manifest.")


def _transcribe_all(job: Job, manifest: Path, out: Path, run: Run) -> None:
    from headsync.bulk import transcribe as transcribe_all
    from headsync.cli.progress import progress_bar

    with progress_bar("utterances") as progress:
        done = transcribe_all(job, manifest, out, run, progress)
    typer.echo(f"{out}: {done.recognised} transcribed, {done.before} were there before, {done.failed} failed.")
    if done.failed:
        raise typer.Exit(1)


def _pieces(file: Path) -> Iterable[Piece]:
    from headsync.audio import stream_audio
    from headsync.cli.standard_input import stream_wav

    if file != STANDARD_INPUT:
        return stream_audio(file)
    if sys.stdin.isatty():
        raise AudioError("standard input: this is a terminal; pipe a WAV into it, or use headsync listen.")
    return stream_wav(sys.stdin.buffer)


def _print_growing(recognizer: Listener, pieces: Iterable[Piece], prefix: str) -> None:
    with open_screen(prefix) as screen:
        session = stream(recognizer, pieces, screen.show)
    if not session.finals and prefix:
        typer.echo(prefix.rstrip())  # of several files each has its line, also the silent one
    if sys.stdout.isatty():
        say(describe(session))


def _print_document(recognizer: Listener, pieces: Iterable[Piece], file: Path, format: Format) -> None:
    from headsync.subtitles import FORMATS, to_json

    session = stream(recognizer, pieces, _ignore)
    if format is Format.json:
        seconds = {"audio_seconds": session.audio_seconds, "computing_seconds": session.computing_seconds}
        rounded = {name: round(value, 3) for name, value in seconds.items()}
        document = to_json(session.finals, file=str(file), **rounded)
    else:
        document = FORMATS[format.value](session.finals)
    typer.echo(document, nl=False)


def _ignore(event: Event) -> None:
    """A document is printed once it is whole."""
