"""The decisions about attempts and failures, and the restart strategies."""

from __future__ import annotations

import pytest

from weir.errors import Domain
from weir.ids import BatchId, QueryName
from weir.protocol.decide import FailedAt, GiveUp, Holder, Retry, Take, Wait, after_failure, may_take
from weir.protocol.messages import Failure
from weir.protocol.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy


def test_a_job_that_nobody_holds_may_be_taken() -> None:
    assert may_take(None, 50) == Take()
    assert may_take(Holder(beat=3, unchanged_for=0, released=True), 50) == Take()


def test_a_silent_holder_is_waited_out() -> None:
    assert may_take(Holder(beat=3, unchanged_for=20, released=False), 50) == Wait(30)
    assert may_take(Holder(beat=3, unchanged_for=50, released=False), 50) == Take()


def failed(batch: int, error: str = "ValueError", query: str = "q", domain: Domain = Domain.USER) -> FailedAt:
    return FailedAt(QueryName(query), BatchId(batch), Failure("it failed", domain=domain, error=error))


def test_an_error_of_the_author_that_comes_back_at_one_batch_ends_the_job() -> None:
    assert after_failure(failed(7), [], 2) == Retry()
    assert isinstance(after_failure(failed(7), [failed(7)], 2), GiveUp)


@pytest.mark.parametrize(
    "before",
    [failed(6), failed(7, error="KeyError"), failed(7, query="other"), failed(7, domain=Domain.EXTERNAL)],
)
def test_another_batch_error_query_or_domain_is_another_failure(before: FailedAt) -> None:
    assert after_failure(failed(7), [before], 2) == Retry()


def test_failures_at_no_known_batch_are_not_the_same() -> None:
    assert after_failure(failed(-1), [failed(-1)] * 5, 2) == Retry()


def test_what_a_retry_cannot_mend_ends_the_job_at_once() -> None:
    assert isinstance(after_failure(FailedAt(None, None, Failure("no", retry=False)), [], 2), GiveUp)


def test_external_failures_are_retried_however_often_they_come_back() -> None:
    before = [failed(7, domain=Domain.EXTERNAL)] * 50
    assert after_failure(failed(7, domain=Domain.EXTERNAL), before, 2) == Retry()


def delays(strategy: RestartStrategy, *times: float, chance: float = 0.0) -> list[float | None]:
    return [strategy.delay(time, chance) for time in times]


def test_none_never_restarts() -> None:
    assert delays(NoRestart(), 0) == [None]


def test_fixed_delay_allows_so_many() -> None:
    assert delays(FixedDelay(2, 5.0), 0, 1, 2) == [5.0, 5.0, None]


def test_failure_rate_forgets_what_is_older_than_the_interval() -> None:
    assert delays(FailureRate(2, 60, 1.0), 0, 10, 61, 62, 63) == [1.0, 1.0, 1.0, None, None]


def test_exponential_delay_grows_to_its_limit_and_resets_after_a_quiet_time() -> None:
    strategy = ExponentialDelay(1, 4, 2, 0.1, reset_after=100, attempts=None)
    assert delays(strategy, 0, 1, 2, 3) == [1, 2, 4, 4]
    assert strategy.delay(3 + 100 + 4, 0.0) == 1


def test_exponential_delay_stays_within_its_jitter() -> None:
    assert delays(ExponentialDelay(10, 60, 1.5, 0.1, 3600, None), 0, chance=1.0) == [11.0]
    assert delays(ExponentialDelay(10, 60, 1.5, 0.1, 3600, None), 0, chance=-1.0) == [9.0]


def test_exponential_delay_gives_up_after_its_attempts() -> None:
    assert delays(ExponentialDelay(1, 4, 2, 0, 100, attempts=2), 0, 1, 2) == [1, 2, None]
