"""Which failures count together as a crash loop."""

from __future__ import annotations

from weir.protocol.restart import CrashLoops

CAUSE, OTHER = ("internal", "JSONDecodeError"), ("internal", "KeyError")
HOUR = 3600.0


def counted(loops: CrashLoops, query: str, now: float, cause: tuple[str, str] = CAUSE) -> int:
    if loops.quiet(query, cause, now, HOUR):
        loops.discard(query, cause)
    return loops.count(query, cause)


def test_equal_failures_without_a_quiet_time_count_together() -> None:
    loops = CrashLoops()
    assert [counted(loops, "q", now) for now in (0, 10, 20)] == [1, 2, 3]
    assert counted(loops, "q", 30, OTHER) == 1 and counted(loops, "r", 30) == 1
    loops.idle("q", 40)
    assert counted(loops, "q", 40 + HOUR - 1) == 4, "it has not been quiet for long enough"


def test_a_quiet_time_begins_when_the_query_waits_for_input() -> None:
    loops = CrashLoops()
    counted(loops, "q", 0)
    loops.idle("q", 10)
    loops.idle("q", HOUR)
    assert counted(loops, "q", 10 + HOUR) == 1
    assert counted(loops, "q", 10 + 9 * HOUR) == 2, "hours in a batch, or before a start, are not quiet"


def test_idleness_before_a_failure_does_not_count_after_it() -> None:
    loops = CrashLoops()
    counted(loops, "q", 0)
    loops.idle("q", 10)
    assert counted(loops, "q", 20) == 2
    assert counted(loops, "q", 20 + HOUR) == 3


def test_another_query_that_waits_is_progress_of_the_whole_driver_only() -> None:
    loops = CrashLoops()
    counted(loops, "", 0)
    counted(loops, "q", 0)
    loops.idle("r", 10)
    assert counted(loops, "", 2 * HOUR) == 1 and counted(loops, "q", 2 * HOUR) == 2


def test_a_committed_batch_is_progress_of_its_query_and_of_the_driver() -> None:
    loops = CrashLoops()
    for query in ("", "q", "r"):
        counted(loops, query, 0)
    loops.committed("q")
    assert [counted(loops, query, 1) for query in ("", "q", "r")] == [1, 1, 2]
