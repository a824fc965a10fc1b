"""`headsync serve`: recognition for other programs, over the network."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import typer

from headsync.cli import options
from headsync.cli.complain import complain
from headsync.errors import ConfigError
from headsync.server.limits import Limits

LIMITS = Limits()
LOOPBACK = ("127.0.0.1", "::1", "localhost")

Models: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--model", help="Name of a shipped model, or a model folder; give it again to serve several."),
]


def serve(
    models: Models = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of this computer's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any that is free.")] = 8080,
    token: Annotated[
        str | None, typer.Option(envvar="HEADSYNC_TOKEN", help="What clients must know to be let in.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes; each loads the model.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the network in each process.")] = 1,
    streams: Annotated[int, typer.Option(min=1, help="Streams open at a time, in each process.")] = LIMITS.streams,
    stream_seconds: Annotated[
        float, typer.Option(min=1.0, help="Sound in one stream or recording.")
    ] = LIMITS.stream_seconds,
    request_bytes: Annotated[int, typer.Option(min=1, help="Size of a recording that is sent.")] = LIMITS.request_bytes,
    idle_seconds: Annotated[
        float, typer.Option(min=0.1, help="Silence on a connection before it is closed.")
    ] = LIMITS.idle_seconds,
    drain_seconds: Annotated[
        float, typer.Option(min=0.0, help="Time for streams to finish at the end.")
    ] = LIMITS.drain_seconds,
    alone: Annotated[bool, typer.Option("--no-batching", help="Let streams not share the network.")] = False,
    beam: options.Beam = None,
    ctc_weight: options.CtcWeight = None,
    lm: options.Lm = None,
    lm_weight: options.LmWeight = None,
    hotwords: options.Hotwords = None,
    endpoint: options.EndpointRules = None,
    engine: options.EngineChoice = options.EngineName.auto,
) -> None:
    """Serve a model, or several, to people and other programs until Ctrl-C or SIGTERM."""
    run = _import_server()
    from headsync.server.service import ModelChoice

    settings = {"beam": beam, "ctc_weight": ctc_weight, "lm_weight": lm_weight, **options.endpoint_settings(endpoint)}
    phrases = tuple(options.read_hotwords(hotwords))
    given: list[str | None] = [*models] if models else [None]
    shared = (lm, phrases, tuple(settings.items()), threads, not alone, engine.value)
    choices = tuple(ModelChoice(one, *shared) for one in given)
    limits = Limits(
        streams=streams,
        stream_seconds=stream_seconds,
        request_bytes=request_bytes,
        idle_seconds=idle_seconds,
        drain_seconds=drain_seconds,
    )
    serving = run.Serving(host, port, choices, limits, token or None, workers)
    if not serving.token and host not in LOOPBACK:
        complain(f"Whoever reaches {host} can use this server; --token or HEADSYNC_TOKEN keeps others out.")
    run.serve(serving, _tell)


def _tell(address: str) -> None:
    typer.echo(f"Serving at {address} (Ctrl-C stops)")


def _import_server() -> Any:
    try:
        from headsync.server import run
    except ModuleNotFoundError as error:
        raise ConfigError(f"Serving needs the package {error.name}: pip install '.[serve]'.") from error
    return run
