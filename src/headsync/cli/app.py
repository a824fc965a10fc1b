"""The list of commands, and the place where errors become messages and exit codes."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headsync import __version__
from headsync.cli.calibrate import calibrate
from headsync.cli.compare import compare
from headsync.cli.demo import demo
from headsync.cli.evaluate import evaluate
from headsync.cli.export import export
from headsync.cli.import_model import importing
from headsync.cli.listen import listen
from headsync.cli.models import models
from headsync.cli.output import print_error
from headsync.cli.perplexity import perplexity
from headsync.cli.plot import plot
from headsync.cli.prepare import prepare
from headsync.cli.serve import serve
from headsync.cli.train import train
from headsync.cli.transcribe import transcribe
from headsync.cli.tune import tune
from headsync.errors import HeadsyncError

_FAILED = 1
_INTERRUPTED = 130  # the exit code of shells for Ctrl-C


class _ErrorHandler(TyperGroup):
    """Runs a command and prints its errors as one sentence."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            raise  # the reader of our output has closed it, as `head` does; Typer exits quietly
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            print_error("This command requires PyTorch: pip install 'headsync[train]'.")
        except (HeadsyncError, OSError) as error:
            print_error(error)
        raise typer.Exit(_FAILED)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"headsync {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=_ErrorHandler,
    help="Streaming speech recognition with online attention.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Streaming speech recognition with online attention."""


for _command in (transcribe, listen, demo, serve, train, evaluate, compare, perplexity, calibrate, tune, export):
    app.command()(_command)
for _name, _group in {"models": models, "prepare": prepare, "plot": plot, "import": importing}.items():
    app.add_typer(_group, name=_name)


def main() -> None:
    """Run the command line; the entry point of the package."""
    app(prog_name="headsync")
