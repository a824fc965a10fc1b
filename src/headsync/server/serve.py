"""`headsync serve`: bind the address, then serve in this process or in several."""

from __future__ import annotations

import socket
from collections.abc import Callable

from headsync.errors import ConfigError
from headsync.server.single_process import ServeOptions, run_process
from headsync.server.workers import Supervisor

BACKLOG = 2048  # connections that wait to be accepted


def serve(options: ServeOptions, ready: Callable[[str], None]) -> None:
    """Serve until a signal stops the server. `ready` gets the address when every process has loaded its models."""
    with _bind(options.host, options.port) as listener:
        address = _address(options.host, listener.getsockname()[1])
        if options.workers == 1:
            run_process(options, listener, lambda: ready(address))
        else:
            Supervisor(options, listener).run(lambda: ready(address))


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        address, reason = _address(host, port), str(error.strerror).partition(" (while")[0]
        raise ConfigError(f"{address}: cannot listen ({reason}); choose another --host or --port") from None


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
