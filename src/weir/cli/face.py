"""The face of a running job: REST and pages beside its supervisor, when rest.port says so."""

from __future__ import annotations

import threading
from collections.abc import Callable

from weir.config import Config


def serve(job: str, config: Config, note: Callable[[str], None]) -> None:
    """Serve, in a thread that ends with the process; returns at once. Where they are is a note."""
    if config.settings.rest_port is None:
        return

    def work() -> None:
        from weir.web.serving import serve_beside  # noqa: PLC0415  FastAPI only where it is served

        serve_beside(job, config.settings, note)

    threading.Thread(target=work, name="weir-face", daemon=True).start()
