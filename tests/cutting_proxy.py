"""A proxy on loopback that cuts a connection off at a chosen word, before or after the server heard it.

Or one that is slow: it holds back every answer.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

_SIZE = 1 << 16


class CuttingProxy:
    """Passes everything on to a port, until it is told to cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._word = b""
        self._heard = False
        self.cuts = 0
        """How often it has cut."""
        self.delay = 0.0
        """Seconds by which every answer is held back."""
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_at(self, word: bytes, *, heard: bool) -> None:
        """Cut the next connection that sends this word; `heard`: only the answer is lost."""
        self._heard, self._word = heard, word

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One connection, to its end."""
        answer = threading.Event()
        answer.set()
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as server:
            asks = threading.Thread(target=self._asks, args=(client, server, answer), daemon=True)
            asks.start()
            self._answers(server, client, answer)
            # Neither is closed while another thread may use its number, which a new connection gets at once.
            asks.join()

    def _asks(self, client: socket.socket, server: socket.socket, answer: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(_SIZE):
                if self._word and self._word in data:
                    self._word = b""
                    self.cuts += 1
                    if self._heard:
                        answer.clear()
                        server.sendall(data)
                        answer.wait(30)
                    break
                server.sendall(data)
        _shut_down(client, server)

    def _answers(self, server: socket.socket, client: socket.socket, answer: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(_SIZE):
                if not answer.is_set():  # it is done, and nobody is told
                    answer.set()
                    break
                time.sleep(self.delay)
                client.sendall(data)
        _shut_down(client, server)


def _shut_down(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
