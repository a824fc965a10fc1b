"""One server process: load the models, build the application, run it on a socket that is already bound."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import uvicorn

from headsync.errors import ConfigError
from headsync.server.access_log import LogFormat, LogLevel, configure_logging
from headsync.server.app import build_app
from headsync.server.app_state import Access, AppState
from headsync.server.draining_server import CloseTimeoutWebSocket, DrainingServer, HeadTimeoutHttp
from headsync.server.limits import Limits
from headsync.server.model_service import ModelOptions, ModelService

TlsFiles: TypeAlias = tuple[Path, Path]  # certificate chain and private key, in PEM format

FORCED_CLOSE_SECONDS = 5  # for connections to close after the drain


class Listeners(NamedTuple):
    """Sockets that are bound and listen."""

    http: socket.socket
    wyoming: socket.socket | None = None


@dataclass(frozen=True)
class ServeOptions:
    host: str = "127.0.0.1"
    port: int = 8080  # 0: any free port
    wyoming: int | None = None  # port of the Wyoming protocol; None: not served
    tls: TlsFiles | None = None
    models: tuple[ModelOptions, ...] = (ModelOptions(),)  # the first is the default for clients
    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    workers: int = 1
    access: Access = field(default_factory=Access)
    log_level: LogLevel = "warning"
    log_format: LogFormat = "text"


def run_process(options: ServeOptions, listeners: Listeners, ready: Callable[[], None]) -> None:
    """Load the models and serve until the process is stopped."""
    configure_logging(options.log_level, options.log_format)
    state = AppState(load_services(options.models), options.limits, options.token, options.access)
    build_server(state, ready, listeners.wyoming, options.tls).run(sockets=[listeners.http])


def load_services(models: Sequence[ModelOptions]) -> list[ModelService]:
    """Load all models. Clients choose a model by its name, so names must differ."""
    services = [ModelService.load(model) for model in models]
    names = [service.name for service in services]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f'--model: two models are named "{name}"; name them apart with --model NAME=FOLDER')
    return services


def build_server(
    state: AppState, ready: Callable[[], None], wyoming: socket.socket | None = None, tls: TlsFiles | None = None
) -> DrainingServer:
    config = uvicorn.Config(
        build_app(state, wyoming=wyoming),
        ssl_certfile=tls and tls[0],
        ssl_keyfile=tls and tls[1],
        http=HeadTimeoutHttp,
        ws=CloseTimeoutWebSocket,
        ws_max_size=state.limits.message_bytes,
        ws_ping_interval=None,  # pongs queue behind audio; the idle limit finds clients that are gone
        ws_per_message_deflate=False,
        log_config=None,
        log_level="warning",
        access_log=False,  # headsync.access replaces it; its paths may contain tokens
        server_header=False,
        timeout_keep_alive=max(1, round(state.limits.idle_seconds)),
        timeout_graceful_shutdown=FORCED_CLOSE_SECONDS,
    )
    return DrainingServer(config, state, ready)
