"""The server: in a thread of a supervisor, or as a process of its own (`weir dashboard`).

Nothing that happens here touches the job: a port that is taken or a token that can't be read is noted,
and the job continues without its pages.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from urllib.parse import urlencode

import uvicorn

from weir.clock import Clock
from weir.config import Ports, Settings
from weir.errors import PortTakenError, WeirError
from weir.web.app import application, guarded
from weir.web.guard import LOGIN, Sessions
from weir.web.site import Site
from weir.web.token import token_for


class Server:
    """A server that is bound to its port, and serves when `run` is called."""

    def __init__(self, site: Site, address: str, ports: Ports, token_file: str | None) -> None:
        """Raises `TokenFileError` and `PortTakenError`; makes the user's own token where there is none."""
        token = token_for(token_file)
        self._sessions = Sessions(token.text) if token else None
        self._socket = bind(address, ports)
        name = f"[{address}]" if ":" in address else address
        self.url = f"http://{name}:{self._socket.getsockname()[1]}"
        app = guarded(
            application(site, lambda: self._server.should_exit),
            self._sessions,
            address,
            open_figures=token is not None and not token.chosen,
        )
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

    def link(self, path: str = "/") -> str:
        """An address that opens a page for whoever has it, once; never to be kept in a log."""
        if self._sessions is None:
            return f"{self.url}{path}"
        return f"{self.url}{LOGIN}?{urlencode({'code': self._sessions.link(), 'page': path})}"

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


def serve_beside(
    job: str, settings: Settings, note: Callable[[str], None], show_link: Callable[[str, str], None]
) -> None:
    """Serve a running job's storage from its supervisor, in this thread; does not raise.

    `show_link` gets the address of the job's page, and the link that logs a browser in there.
    """
    ports = settings.rest_port
    assert ports is not None, "it is asked for"
    try:
        site = Site(settings.execution_checkpointing_dir, Clock(), job)
        server = Server(site, settings.rest_address, ports, settings.rest_token_file)
    except WeirError as error:
        note(f"no pages are served: {error.text}")
        return
    show_link(f"{server.url}/jobs/{job}", server.link(f"/jobs/{job}"))
    server.run()
