"""The server: in a thread of a supervisor, or as a process of its own (`weir dashboard`).

Nothing that happens here touches the job: a port that is taken or a token that can't be read is said,
and the job goes on without its pages.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from weir.clock import Clock
from weir.config import Ports, Settings
from weir.errors import PortTakenError, WeirError
from weir.web.app import application, guarded
from weir.web.guard import read_token
from weir.web.site import Site


class Server:
    """A server that is bound to its port, and serves when it is told to."""

    def __init__(self, site: Site, address: str, ports: Ports, token_file: str | None) -> None:
        token = read_token(token_file)
        self._socket = bind(address, ports)
        name = f"[{address}]" if ":" in address else address
        self.url = f"http://{name}:{self._socket.getsockname()[1]}"
        app = guarded(application(site, lambda: self._server.should_exit), token, address)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http="h11",
            ws="none",
            loop="asyncio",
            timeout_graceful_shutdown=2,
            backlog=128,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve in this thread until a signal comes or `stop` is called."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True


def bind(address: str, ports: Ports) -> socket.socket:
    """A listening socket at the first port that is free; raises `PortTakenError`."""
    reason = ""
    for port in range(ports.first, ports.last + 1):
        try:
            family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
            bound = socket.socket(family, socket.SOCK_STREAM)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind((address, port))
                bound.listen(128)
                return bound
            except OSError:
                bound.close()
                raise
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    raise PortTakenError(address=address, ports=str(ports), reason=reason)


def serve_beside(job: str, settings: Settings, note: Callable[[str], None]) -> None:
    """Serve a running job's storage from its supervisor, in this thread; does not raise."""
    ports = settings.rest_port
    assert ports is not None, "it is asked for"
    try:
        site = Site(settings.execution_checkpointing_dir, Clock(), job)
        server = Server(site, settings.rest_address, ports, settings.rest_token_file)
    except WeirError as error:
        note(f"no pages are served: {error.text}")
        return
    note(f"pages and REST: {server.url}/jobs/{job}")
    server.run()
