"""The face of a running job: REST and pages beside its supervisor, when rest.port says so."""

from __future__ import annotations

import threading
from collections.abc import Callable

from weir.config import Config


def serve(
    job: str, config: Config, note: Callable[[str], None], show_link: Callable[[str, str], None]
) -> None:
    """Serve, in a thread that ends with the process; returns at once.

    Where the pages are goes to `show_link`, with the link that logs a browser in.
    """
    if config.settings.rest_port is None:
        return

    def work() -> None:
        from weir.web.serving import serve_beside  # noqa: PLC0415  FastAPI only where it is served

        serve_beside(job, config.settings, note, show_link)

    threading.Thread(target=work, name="weir-face", daemon=True).start()


def where(url: str, link: str, *, to_a_person: bool) -> str:
    """Where the pages are, in a line. The link is only for a person's eyes: a log would keep it."""
    return f"pages and REST: {link if to_a_person else url}"
