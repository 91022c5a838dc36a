"""A run as a table in HTML, for a notebook. Every text in it is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from weir.protocol.messages import BatchCommitted, CheckpointCompleted, QueryFailed
from weir.words import number, size, took


def run_table(
    job: str,
    active: bool,
    batches: Sequence[BatchCommitted],
    checkpoints: Sequence[CheckpointCompleted],
    failures: Sequence[QueryFailed],
) -> str:
    """The queries with their newest batches, the last checkpoint, and what failed."""
    newest = {batch.query: batch for batch in batches}
    state = "failed" if failures else "running" if active else "ended"
    head = f"<p><b>{escape(job)}</b> is {state}{_last(checkpoints)}</p>"
    names = ("query", "batch", "rows", "all rows", "seconds", "state rows", "state", "watermark")
    rows = [_row(batch, [one for one in batches if one.query == batch.query]) for batch in newest.values()]
    titles = "".join(f"<th>{name}</th>" for name in names)
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    wrong = "".join(
        f"<p>query <b>{escape(one.query)}</b> failed at batch {one.batch}: {escape(one.failure.what)}"
        f"{': ' + escape(one.failure.why) if one.failure.why else ''}</p>"
        for one in failures
    )
    return head + (table if rows else "<p>no batch yet</p>") + wrong


def _last(checkpoints: Sequence[CheckpointCompleted]) -> str:
    if not checkpoints:
        return ""
    last = checkpoints[-1]
    sizes = f"{size(last.new_bytes)} new of {size(last.full_bytes)}"
    return f"; checkpoint {last.id} took {took(last.seconds)}, {sizes}"


def _row(last: BatchCommitted, all: Sequence[BatchCommitted]) -> str:
    cells = (
        last.query,
        str(last.batch),
        number(last.rows),
        number(sum(batch.rows for batch in all)),
        f"{last.seconds:.2f}",
        number(last.state_rows),
        size(last.state_bytes),
        last.watermark or "-",
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
