"""When a checkpoint is due, and how it begins."""

from __future__ import annotations

import pytest

from weir.checkpoint.trigger import alignment_of, rules_of
from weir.config import Settings, changed
from weir.protocol.checkpoint import Alignment
from weir.protocol.checkpoint_state import Rules, Triggers

KEY = "execution.checkpointing"


def settings(**values: str) -> Settings:
    return Settings.model_validate({f"{KEY}.{key.replace('_', '-')}": value for key, value in values.items()})


def rules(**values: str) -> Rules:
    return rules_of(settings(**values))


def test_an_interval_makes_it_due_again_and_again() -> None:
    triggers, every = Triggers(100.0), rules(interval="10 s")
    assert (triggers.due(every, 109.9), triggers.left(every, 109.0)) == (None, 1.0)
    assert triggers.due(every, 110.0) == "interval"
    triggers = triggers.triggered(112.0)
    assert (triggers.due(every, 121.9), triggers.due(every, 122.0)) == (None, "interval")


def test_records_make_it_due_and_are_counted_anew() -> None:
    triggers, every = Triggers(0.0), rules(interval="off", interval_records="1000")
    triggers = triggers.plus(999)
    assert (triggers.due(every, 10**6), triggers.left(every, 10**6)) == (None, None)
    triggers = triggers.plus(1)
    assert triggers.due(every, 0.0) == "records"
    triggers = triggers.triggered(0.0)
    assert triggers.due(every, 0.0) is None


def test_without_interval_and_records_none_is_due() -> None:
    assert Triggers(0.0, records=10**9).due(rules(interval="off"), 10**9) is None


@pytest.mark.parametrize(
    ("mode", "unaligned", "patience", "alignment"),
    [
        ("EXACTLY_ONCE", "false", "0 s", Alignment.ALIGNED),
        ("EXACTLY_ONCE", "true", "0 s", Alignment.UNALIGNED),
        ("EXACTLY_ONCE", "true", "5 s", Alignment.ALIGNED),
        ("AT_LEAST_ONCE", "false", "0 s", Alignment.AT_LEAST_ONCE),
    ],
)
def test_how_a_checkpoint_begins(mode: str, unaligned: str, patience: str, alignment: Alignment) -> None:
    given = {f"{KEY}.mode": mode, f"{KEY}.unaligned.enabled": unaligned}
    given[f"{KEY}.aligned-checkpoint-timeout"] = patience
    assert alignment_of(Settings.model_validate(given)) is alignment


def test_an_interval_that_was_changed_counts_from_the_last_trigger() -> None:
    triggers, every = Triggers(0.0), settings(interval="10 s")
    shorter = changed(every, {f"{KEY}.interval": "2 s"})
    assert (triggers.due(rules_of(every), 3.0), triggers.due(rules_of(shorter), 3.0)) == (None, "interval")
