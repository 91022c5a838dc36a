"""What the terminal shows while a job runs in it.

On a terminal a few lines at the bottom are kept up to date and everything else scrolls above them;
elsewhere there is a plain line for each move and note. The driver's standard output passes through.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Group
from rich.live import Live
from rich.text import Text

from weir.cli import say
from weir.config import Config
from weir.protocol.messages import BatchCommitted, CheckpointCompleted
from weir.protocol.states import JobState
from weir.supervisor.reports import Watcher

_SHOWN = 8
"""Queries with a line of their own."""
_COLOURS = {
    JobState.RUNNING: "green",
    JobState.FAILED: "red",
    JobState.RESTARTING: "yellow",
    JobState.DEGRADED: "red",
}


class Terminal(Watcher):
    """Plain lines, and what is known of the job."""

    def __init__(self) -> None:
        self.job: str | None = None
        self.attempt = 0
        self.moved_to = JobState.CREATED
        self.batches: dict[str, int] = {}

    def opened(self, job: str, config: Config) -> None:
        self.job = job
        serve(job, config, self.note, self._show_link)

    def state(self, job: str, state: JobState, attempt: int) -> None:
        self.moved_to, self.attempt = state, attempt
        self.note(f"{self.job}: {self.moved_to.value}, attempt {self.attempt}")

    def batch(self, batch: BatchCommitted) -> None:
        self.batches[batch.query] = batch.batch

    def note(self, text: str) -> None:
        with suppress(OSError):  # a terminal that is gone or a file without room does not stop the job
            say.note(text)

    def _show_link(self, url: str, link: str) -> None:
        self.note(where(url, link, to_a_person=say.err.is_terminal))

    def output(self, data: bytes) -> None:
        stream = sys.stderr if say.form is say.OutputForm.JSON else sys.stdout
        stream.buffer.write(data)
        stream.flush()


class Screen(Terminal):
    """Lines that stay at the bottom of a terminal. Any thread may call; rich keeps the order."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, BatchCommitted] = {}
        self._checkpoint: CheckpointCompleted | None = None
        self._lock = threading.Lock()
        self._rest = b""
        self.live = Live(
            console=say.err,
            get_renderable=self._status,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def batch(self, batch: BatchCommitted) -> None:
        super().batch(batch)
        self._last = {**self._last, batch.query: batch}

    def checkpoint(self, completed: CheckpointCompleted) -> None:
        self._checkpoint = completed

    def output(self, data: bytes) -> None:
        """Whole lines go above the status; where standard output is no terminal nothing is in the way."""
        if say.form is say.OutputForm.PEOPLE and not sys.stdout.isatty():
            super().output(data)
            return
        with self._lock:
            lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
            if newline:
                self._print(lines)

    def finish(self) -> None:
        """Print what has no end of line yet."""
        with self._lock:
            if self._rest:
                self._print(self._rest)
            self._rest = b""

    def _print(self, lines: bytes) -> None:
        say.err.print(Text.from_ansi(lines.decode(errors="replace")))

    def _status(self) -> Group:
        queries = sorted(self._last.values(), key=lambda one: one.query)
        lines = [self._headline(), *map(_query_line, queries[:_SHOWN])]
        if self._checkpoint is not None:
            lines.insert(1, _checkpoint_line(self._checkpoint))
        if len(queries) > _SHOWN:
            lines.append(Text(f"  and {len(queries) - _SHOWN} more: weir status {self.job}", style="dim"))
        return Group(*lines)

    def _headline(self) -> Text:
        if self.job is None:
            return Text("starting", style="dim")
        colour = _COLOURS.get(self.moved_to, "cyan")
        state = (self.moved_to.value, f"bold {colour}")
        return Text.assemble((self.job, "bold"), "  ", state, f"  attempt {self.attempt}", no_wrap=True)


def _query_line(batch: BatchCommitted) -> Text:
    rate = say.number(batch.rows / batch.seconds) if batch.seconds else "-"
    state = f", {say.number(batch.state_rows)} state rows" if batch.state_rows else ""
    line = Text(f"  {batch.query}: batch {batch.batch}, {rate} rows/s{state}", no_wrap=True)
    line.overflow = "ellipsis"
    return line


def _checkpoint_line(done: CheckpointCompleted) -> Text:
    sizes = f"{say.size(done.new_bytes)} new of {say.size(done.full_bytes)}"
    line = Text(f"  checkpoint {done.id}: {say.took(done.seconds)}, {sizes}", style="dim", no_wrap=True)
    line.overflow = "ellipsis"
    return line


def serve(
    job: str, config: Config, note: Callable[[str], None], show_link: Callable[[str, str], None]
) -> None:
    """Serve, in a thread that ends with the process; returns at once.

    Where the pages are goes to `show_link`, with the link that logs a browser in.
    """
    if config.settings.rest_port is None:
        return

    def work() -> None:
        from weir.web.server import serve_beside  # noqa: PLC0415  loads FastAPI

        serve_beside(job, config.settings, note, show_link)

    threading.Thread(target=work, name="weir-face", daemon=True).start()


def where(url: str, link: str, *, to_a_person: bool) -> str:
    """Where the pages are, in a line. The link is only for a person's eyes: a log would keep it."""
    return f"pages and REST: {link if to_a_person else url}"


@contextmanager
def terminal() -> Iterator[Terminal]:
    """The watcher that fits what standard error is; cleans up after itself."""
    if not say.err.is_terminal:
        yield Terminal()
        return
    screen = Screen()
    with screen.live:
        try:
            yield screen
        finally:
            screen.finish()
