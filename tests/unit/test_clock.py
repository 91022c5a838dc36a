"""The one way to try again: what is retried, how often, and what is raised in the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import repeat

import pytest

from weir.clock import ManualClock, doubling, retry


def failing(*errors: Exception, then: str = "done") -> Callable[[], str]:
    """A step that raises these, and answers then."""
    left = list(errors)

    def step() -> str:
        if left:
            raise left.pop(0)
        return then

    return step


def test_a_step_that_answers_is_tried_once() -> None:
    clock = ManualClock(0.0)
    assert retry(failing(), [1.0], clock.sleep) == "done"
    assert clock.monotonic() == 0.0


def test_it_is_tried_again_after_each_pause() -> None:
    clock = ManualClock(0.0)
    step = failing(OSError(), OSError(), OSError())
    assert retry(step, doubling(0.1, 4), clock.sleep, on=OSError) == "done"
    assert clock.monotonic() == pytest.approx(0.1 + 0.2 + 0.4)


def test_the_last_try_raises() -> None:
    with pytest.raises(OSError, match="third"):
        retry(failing(OSError(), OSError(), OSError("third")), [0.0, 0.0], ManualClock().sleep, on=OSError)


def test_what_may_not_be_retried_is_raised_at_once() -> None:
    clock = ManualClock(0.0)
    with pytest.raises(KeyError):
        retry(failing(KeyError()), [1.0], clock.sleep, on=OSError)
    assert clock.monotonic() == 0.0


def test_a_result_may_ask_for_another_try_and_the_last_one_counts() -> None:
    results = iter([1, 2, 3])
    assert retry(lambda: next(results), [0.0] * 9, ManualClock().sleep, until=lambda n: n == 2) == 2
    results = iter([1, 2, 3])
    assert retry(lambda: next(results), [0.0], ManualClock().sleep, until=lambda n: n == 9) == 2


def test_without_end_until_it_is_asked_to_stop_and_then_once_more() -> None:
    clock, stopping = ManualClock(0.0), threading.Event()
    tries = 0

    def step() -> None:
        nonlocal tries
        tries += 1
        if tries == 5:
            stopping.set()
        raise OSError

    with pytest.raises(OSError):
        retry(step, repeat(0.5), partial(clock.wait, stopping), on=OSError)
    assert (tries, clock.monotonic()) == (6, 2.5)
