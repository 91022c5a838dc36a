"""A run as a notebook shows it."""

from __future__ import annotations

from weir.driver.notebook import run_table
from weir.protocol.messages import BatchCommitted, CheckpointCompleted, Failure, QueryFailed


def test_a_run_is_a_table_of_its_queries_with_the_last_checkpoint() -> None:
    batches = [
        BatchCommitted("counts", 1, n, 1500, 0.5, state_rows=300_000, state_bytes=2**21) for n in (0, 1)
    ]
    done = CheckpointCompleted(7, "aligned", "interval", False, 0.84, 2**20, 34 * 2**20)
    shown = run_table("wordcount", True, batches, [done], [])
    assert "<b>wordcount</b> is running; checkpoint 7 took 0.84 s, 1 MiB new of 34 MiB" in shown
    row = (
        "<td>counts</td><td>1</td><td>1.5k</td><td>3k</td><td>0.50</td><td>300k</td><td>2 MiB</td><td>-</td>"
    )
    assert shown.count("<tr>") == 2 and row in shown


def test_what_failed_is_shown_and_not_run() -> None:
    failure = QueryFailed("<b>", 1, 3, Failure("<script>x</script>", "&"))
    shown = run_table("wordcount", False, [], [], [failure])
    assert "is failed" in shown and "no batch yet" in shown
    assert (
        "&lt;script&gt;" in shown
        and "<script>" not in shown
        and "<b>&lt;b&gt;</b> failed at batch 3" in shown
    )
