"""Slips in the arguments of `env.sink`, `env.stream` and `env.source`: each is named before Spark sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import weir
from weir.errors import BadNameError, PipelineError, SinkMismatchError
from weir.ids import job_name, query_name
from weir.job.env import Env
from weir.sinks.kafka import kafka

FRAME: Any = SimpleNamespace(isStreaming=True, columns=["word", "count"], schema=None)


def env() -> Env:
    return Env(job_name("job"), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "reason", "todo"),
    [
        ({"output_mode": "upsert"}, "output_mode='upsert'", "'append', 'update', 'complete'"),
        ({"output_mode": None}, "output_mode=None", "'append'"),
        ({"trigger": {"every": "5 s"}}, "trigger={'every': '5 s'}", "processingTime"),
        ({"trigger": {"processingTime": 5}}, "'processingTime': 5", "5 seconds"),
        ({"trigger": {"availableNow": False}}, "'availableNow': False", "availableNow"),
        ({"trigger": {}}, "trigger={}", "leave trigger= out"),
        ({"trigger": "5 seconds"}, "trigger='5 seconds'", "processingTime"),
        ({"trigger": {"once": True, "availableNow": True}}, "'once': True", "availableNow"),
        ({"trigger": {"continuous": "1 second"}}, "commits no batches", "processingTime"),
        ({"sink": "out"}, "is 'out', which is not a sink", "weir.sinks.files('out')"),
        ({"sink": 3}, "is 3, which is not a sink", "weir.sinks.files"),
    ],
)
def test_a_wrong_argument_of_a_sink_is_named(arguments: dict[str, Any], reason: str, todo: str) -> None:
    made = env()
    with pytest.raises(PipelineError) as refused:
        made.sink("counts", FRAME, **{"sink": weir.sinks.memory(), **arguments})
    assert "'counts'" in refused.value.why and reason in refused.value.why
    assert todo in refused.value.hint
    assert not made.queries


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadNameError):
        env().sink(7, FRAME, weir.sinks.memory())  # type: ignore[arg-type]
    with pytest.raises(BadNameError):
        env().source(FRAME, "lines")  # type: ignore[arg-type]


def test_a_stream_does_not_pass_its_whole_result_on_again() -> None:
    with pytest.raises(PipelineError, match="can't be run") as refused:
        env().stream("totals", FRAME, output_mode="complete")
    assert "all its rows on again" in refused.value.why


def test_complete_results_are_not_appended() -> None:
    for sink in (weir.sinks.files("memory://out"), kafka("localhost:1", "topic")):
        with pytest.raises(SinkMismatchError) as refused:
            sink.check(query_name("counts"), FRAME, "complete")
        assert "each batch has the complete result" in refused.value.why and "update" in refused.value.hint


def test_a_table_without_a_key_takes_only_what_is_appended() -> None:
    def check(output_mode: str, **options: Any) -> None:
        table = weir.sinks.postgres("postgresql://u@localhost/db", "t", **options)
        table.check(query_name("counts"), FRAME, output_mode)

    for mode in ("update", "complete"):
        with pytest.raises(SinkMismatchError) as refused:
            check(mode)
        assert f"in output mode {mode}" in refused.value.why and "key=" in refused.value.hint
        check(mode, key="word")
    check("append")
