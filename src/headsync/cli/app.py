"""The commands by name, and the one place where errors become sentences and exit codes."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headsync import __version__
from headsync.cli.average import average
from headsync.cli.bench import bench
from headsync.cli.calibrate import calibrate
from headsync.cli.compare import compare
from headsync.cli.complain import complain
from headsync.cli.demo import demo
from headsync.cli.evaluate import evaluate
from headsync.cli.export import export
from headsync.cli.listen import listen
from headsync.cli.models import models
from headsync.cli.perplexity import perplexity
from headsync.cli.plot import plot
from headsync.cli.prepare import prepare
from headsync.cli.serve import serve
from headsync.cli.train import train
from headsync.cli.transcribe import transcribe
from headsync.errors import HeadsyncError

FAILED = 1
INTERRUPTED = 130  # what shells report for Ctrl-C


class Shell(TyperGroup):
    """Runs a command and tells its trouble as one sentence."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise  # the reader of our output has left, as `head` does; typer ends quietly
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            complain("This needs PyTorch, which is not installed: pip install '.[train]'.")
        except (HeadsyncError, OSError) as error:
            complain(error)
        raise typer.Exit(FAILED)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headsync {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=Shell,
    help="Streaming speech recognition: text while it is spoken.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _about(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Tell the version and leave.")
    ] = False,
) -> None:
    """Streaming speech recognition: text while it is spoken."""


app.command()(transcribe)
app.command()(listen)
app.command()(demo)
app.command()(serve)
app.command()(models)
app.add_typer(prepare, name="prepare")
app.command()(train)
app.command()(evaluate)
app.command()(compare)
app.command()(perplexity)
app.add_typer(plot, name="plot")
app.command()(calibrate)
app.command()(average)
app.command()(export)
app.command()(bench)


def main() -> None:
    """Run the command line; the entry point of the package."""
    app(prog_name="headsync")
