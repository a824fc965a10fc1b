from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headsync.cli import options
from headsync.cli.output import print_error
from headsync.errors import ConfigError
from headsync.server.limits import Limits

if TYPE_CHECKING:
    from headsync.server.model_service import ModelOptions

LIMITS = Limits()
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ModelGroup:
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model", help="Name of a shipped model, model folder, or NAME=FOLDER; repeat it to serve several models."
        ),
    ] = None
    aliases: Annotated[
        list[str] | None, typer.Option("--alias", help="NAME=MODEL: another name for a served model; repeatable.")
    ] = None
    workers: Annotated[int, typer.Option(min=1, help="Processes; each loads the models.")] = 1
    threads: Annotated[int, typer.Option(min=1, help="Threads of the network in each process.")] = 1
    no_batching: Annotated[bool, typer.Option("--no-batching", help="Do not batch streams together.")] = False

    def chosen(self, search: options.SearchOptions) -> tuple[ModelOptions, ...]:
        from headsync.server.model_service import ModelOptions

        shared = search.load_options(threads=self.threads)
        names: list[str | None] = [*self.models] if self.models else [None]
        return tuple(ModelOptions(name, **shared, batching=not self.no_batching) for name in names)


@dataclass(frozen=True)
class AddressOptions:
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every interface.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any free port.")] = 8080
    wyoming: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the Wyoming protocol, for Home Assistant; usually 10300."),
    ] = None
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Certificate chain in PEM format; serves https:// and wss://.")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate.")] = None
    token: Annotated[
        str | None,
        typer.Option(envvar="HEADSYNC_TOKEN", help="Token that clients must present, or several, separated by spaces."),
    ] = None
    origins: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", help="Origin whose pages may use the server, or *; repeatable."),
    ] = None

    @property
    def tls(self) -> tuple[Path, Path] | None:
        if self.tls_certificate is None and self.tls_key is None:
            return None
        if self.tls_certificate is None or self.tls_key is None:
            raise ConfigError("--tls-certificate and --tls-key require each other; give both")
        return self.tls_certificate, self.tls_key

    def print_warnings(self) -> None:
        if self.host in LOOPBACK:
            return
        if not self.token:
            remedy = "set --token or HEADSYNC_TOKEN to restrict access."
            print_error(f"Anyone who can reach {self.host} can use this server; {remedy}")
        elif self.wyoming is not None:
            reason = "the protocol has neither tokens nor TLS."
            print_error(f"Anyone who can reach {self.host} can use the Wyoming port: {reason}")


_limit = functools.partial(typer.Option, rich_help_panel="Limits of each process")


@dataclass(frozen=True)
class LimitOptions:
    streams: Annotated[int, _limit(min=1, help="Maximum number of open streams.")] = LIMITS.streams
    client_streams: Annotated[
        int | None, _limit(min=1, help="Maximum number of open streams of one address or token.")
    ] = LIMITS.client_streams
    client_connections: Annotated[
        int | None, _limit(min=1, help="Maximum number of new connections of one address or token per minute.")
    ] = LIMITS.client_connections
    stream_seconds: Annotated[float, _limit(min=1.0, help="Maximum length of one stream or recording.")] = (
        LIMITS.stream_seconds
    )
    request_bytes: Annotated[int, _limit(min=1, help="Maximum size of an uploaded recording.")] = LIMITS.request_bytes
    idle_seconds: Annotated[float, _limit(min=0.1, help="Close a connection without messages after this time.")] = (
        LIMITS.idle_seconds
    )
    drain_seconds: Annotated[float, _limit(min=0.0, help="Time for open streams to finish when the server stops.")] = (
        LIMITS.drain_seconds
    )


@dataclass(frozen=True)
class LogOptions:
    log_level: Annotated[
        Literal["error", "warning", "info", "debug"],
        typer.Option(help="Lowest level of messages to log; info adds an access log."),
    ] = "warning"
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Lines of text or of JSON.")] = "text"


@options.grouped
def serve(
    search: options.SearchOptions, served: ModelGroup, listen: AddressOptions, limits: LimitOptions, logs: LogOptions
) -> None:
    """Serve one or more models over HTTP and WebSockets until Ctrl-C or SIGTERM."""
    server = _import_server()
    from headsync.server.app_state import Access
    from headsync.server.middleware import check_origin
    from headsync.server.single_process import ServeOptions

    origins, aliases = listen.origins or (), served.aliases or ()
    serve_options = ServeOptions(
        listen.host,
        listen.port,
        listen.wyoming,
        listen.tls,
        served.chosen(search),
        Limits(**asdict(limits)),
        listen.token or None,
        served.workers,
        Access(tuple(map(check_origin, origins)), dict(map(_read_alias, aliases))),
        logs.log_level,
        logs.log_format,
    )
    listen.print_warnings()
    server.serve(serve_options, lambda found: typer.echo(f"Serving at {' and '.join(found)} (Ctrl-C stops)"))


def _read_alias(alias: str) -> tuple[str, str]:
    name, _, model = alias.partition("=")
    if not (name and model):
        raise ConfigError(f'--alias: "{alias}" is not an alias; write NAME=MODEL, for example whisper-1=digits-en')
    return name, model


def _import_server() -> Any:
    try:
        from headsync.server import serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"The server requires {error.name}: pip install 'headsync[serve]'.") from error
    return serve
