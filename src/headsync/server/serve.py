"""`headsync serve`: bind the addresses, then serve in this process or in several."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from headsync.errors import ConfigError
from headsync.server.mdns import announced, network_addresses
from headsync.server.single_process import Listeners, ServeOptions, TlsFiles, run_process
from headsync.server.workers import Supervisor

BACKLOG = 2048  # connections that wait to be accepted


def serve(options: ServeOptions, ready: Callable[[Sequence[str]], None]) -> None:
    """Serve until a signal stops the server. `ready` gets the addresses when every process has loaded its models."""
    if options.tls:
        _check_tls(options.tls)
    with ExitStack() as opened:
        listeners = Listeners(opened.enter_context(_bind(options.host, options.port, "--port")))
        addresses = [_address("https" if options.tls else "http", options.host, listeners.http)]
        if options.wyoming is not None:
            wyoming = opened.enter_context(_bind(options.host, options.wyoming, "--wyoming"))
            opened.enter_context(announced(network_addresses(options.host), wyoming.getsockname()[1]))
            listeners = listeners._replace(wyoming=wyoming)
            addresses.append(_address("tcp", options.host, wyoming))
        if options.workers == 1:
            run_process(options, listeners, lambda: ready(addresses))
        else:
            Supervisor(options, listeners).run(lambda: ready(addresses))


def _check_tls(files: TlsFiles) -> None:
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*files, password="")
    except OSError as error:  # SSLError is one
        raise ConfigError(
            f"{files[0]}, {files[1]}: not a certificate and its key ({error.strerror or error}); "
            "give files in PEM format, the key without a password"
        ) from None


def _bind(host: str, port: int, option: str) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise ConfigError(f"{address}: cannot listen ({reason}); choose another --host or {option}") from None


def _address(scheme: str, host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
