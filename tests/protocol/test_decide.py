"""The decisions about attempts and failures, and the restart strategies."""

from __future__ import annotations

from itertools import product

import pytest

from weir.errors import Domain
from weir.ids import BatchId, QueryName
from weir.protocol.decide import (
    OF_THE_DRIVER,
    OF_THE_SUPERVISOR,
    AfterDriver,
    AttemptHolder,
    DriverEnd,
    FailedAt,
    GiveUp,
    Limits,
    Retry,
    Take,
    Wait,
    after_driver,
    after_failure,
    ends_the_job,
    may_take,
    refusal,
)
from weir.protocol.messages import Failure
from weir.protocol.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy
from weir.protocol.states import JobState


def test_a_job_that_nobody_holds_may_be_taken() -> None:
    assert may_take(None, 50) == Take()
    assert may_take(AttemptHolder(beat=3, unchanged_for=0, released=True), 50) == Take()


def test_a_silent_holder_is_waited_out() -> None:
    assert may_take(AttemptHolder(beat=3, unchanged_for=20, released=False), 50) == Wait(30)
    assert may_take(AttemptHolder(beat=3, unchanged_for=50, released=False), 50) == Take()


LIMITS = Limits(poison_batch=2, crash_loop=10)


def failed(batch: int, error: str = "ValueError", query: str = "q", domain: Domain = Domain.USER) -> FailedAt:
    return FailedAt(QueryName(query), BatchId(batch), Failure("it failed", domain=domain, error=error))


def test_an_error_of_the_author_that_comes_back_at_one_batch_ends_the_job() -> None:
    assert after_failure(failed(7), [], LIMITS) == Retry()
    assert isinstance(after_failure(failed(7), [failed(7)], LIMITS), GiveUp)


@pytest.mark.parametrize(
    "before",
    [failed(6), failed(7, error="KeyError"), failed(7, query="other"), failed(7, domain=Domain.EXTERNAL)],
)
def test_another_batch_error_query_or_domain_is_another_failure(before: FailedAt) -> None:
    assert after_failure(failed(7), [before], LIMITS) == Retry()


def test_failures_at_no_known_batch_are_not_the_same() -> None:
    assert after_failure(failed(-1), [failed(-1)] * 5, LIMITS) == Retry()


def test_what_a_retry_cannot_mend_ends_the_job_at_once() -> None:
    assert isinstance(after_failure(FailedAt(None, None, Failure("no", retry=False)), [], LIMITS), GiveUp)


def test_external_failures_are_retried_however_often_they_come_back() -> None:
    before = [failed(7, domain=Domain.EXTERNAL)] * 50
    assert after_failure(failed(7, domain=Domain.EXTERNAL), before, LIMITS, in_a_row=51) == Retry()


def test_the_same_failure_without_progress_is_a_crash_loop_and_has_a_way_out() -> None:
    inside = FailedAt(None, None, Failure("JSONDecodeError inside weir", error="JSONDecodeError"))
    assert after_failure(inside, [inside] * 8, LIMITS, in_a_row=9) == Retry()
    decision = after_failure(inside, [inside] * 9, LIMITS, in_a_row=10)
    assert isinstance(decision, GiveUp) and "10 times" in decision.reason and "weir restore" in decision.todo
    assert after_failure(inside, [], Limits(2, None), in_a_row=1000) == Retry()


def test_what_fails_before_anything_ran_for_the_first_time_is_not_tried_again() -> None:
    inside = FailedAt(None, None, Failure("TypeError inside weir", error="TypeError"), started=False)
    assert isinstance(after_failure(inside, [], LIMITS, first=True), GiveUp)
    assert after_failure(inside, [], LIMITS, first=False) == Retry(), (
        "it has run before: it may be a passing fault"
    )
    outage = FailedAt(None, None, Failure("no database", domain=Domain.EXTERNAL), started=False)
    assert after_failure(outage, [], LIMITS, first=True) == Retry()


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


FACTS = list(product((False, True), repeat=4))


@pytest.mark.parametrize("state", [state for state in JobState if not state.final])
@pytest.mark.parametrize(("ended", "leaving", "held", "stopping"), FACTS)
def test_what_follows_the_end_of_a_driver(
    state: JobState, ended: bool, leaving: bool, held: bool, stopping: bool
) -> None:
    after = after_driver(DriverEnd(state, ended=ended, leaving=leaving, held=held, stopping=stopping))
    ending = state in (JobState.CANCELLING, JobState.FAILING)
    if after is AfterDriver.REDEPLOY:
        assert leaving and state is JobState.RESTARTING, "only a driver that was asked to leave is replaced"
    elif leaving and state is JobState.RESTARTING:
        raise AssertionError("it was asked to leave, and another one must go on")
    elif after is AfterDriver.END:
        assert ended
    elif after is AfterDriver.NEVER_STARTED:
        assert not held and not ended
    elif after is AfterDriver.END_AFTER_FAILURE:
        assert held and not ended and (stopping or ending)
    else:
        assert held and not ended and not stopping and not ending, "nothing that ends is started again"


@pytest.mark.parametrize(("whole", "ran", "together", "others_over"), FACTS)
@pytest.mark.parametrize("repeated", [False, True])
def test_a_query_is_given_up_alone_only_while_others_run_that_do_not_need_it(
    whole: bool, ran: bool, together: bool, others_over: bool, repeated: bool
) -> None:
    decision = GiveUp("no", repeated=repeated)
    alone = not ends_the_job(decision, whole=whole, ran=ran, together=together, others_over=others_over)
    assert alone == (not whole and not together and not others_over and (ran or repeated))


def test_who_wants_no_restart_hears_of_the_failure_of_one_query() -> None:
    decision = GiveUp("restart-strategy.type is none", repeated=True, whole=True)
    assert ends_the_job(decision, whole=False, ran=True, together=False, others_over=False)


@pytest.mark.parametrize("verb", [*OF_THE_DRIVER, *OF_THE_SUPERVISOR, "stop", "dance"])
@pytest.mark.parametrize(("ending", "restoring", "driver"), list(product((False, True), repeat=3)))
def test_what_is_refused_and_why(verb: str, ending: bool, restoring: bool, driver: bool) -> None:
    why = refusal(verb, ending=ending, restoring=restoring, driver=driver)
    if verb == "dance":
        assert why == "it does not know how to dance"
    elif ending or restoring:
        assert why == ("it is ending" if ending else "it is being restored")
    elif verb in OF_THE_SUPERVISOR:
        assert not why, "it needs no driver"
    else:
        assert bool(why) != driver
