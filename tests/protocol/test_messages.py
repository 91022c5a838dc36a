"""Every message survives the pipe."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.protocol.messages import (
    Answered,
    Ask,
    CheckpointCompleted,
    DriverFailed,
    Failure,
    GraphLearnt,
    JobDescribed,
    Message,
    Prepare,
    RestorePlanned,
    StartAttempt,
    StopQueries,
    decode,
    encode,
)

KINDS = get_args(Message)
WITH_MAPS = (
    "JobDescribed",
    "GraphLearnt",
    "Prepare",
    "CheckpointCompleted",
    "Answered",
    "Ask",
    "RestorePlanned",
    "StartAttempt",
)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))


@pytest.mark.parametrize("kind", [k for k in KINDS if k.__name__ not in WITH_MAPS], ids=lambda k: k.__name__)
def test_a_message_is_read_as_it_was_written(kind: type) -> None:
    @given(st.from_type(kind))
    def check(message: Message) -> None:
        line = encode(message)
        assert line.endswith(b"\n") and line.count(b"\n") == 1
        assert decode(line) == message

    check()


def test_maps_travel() -> None:
    body = {"a.b": 1, "c": {"d": [True, None, "x"]}}
    messages: list[Message] = [
        JobDescribed("job", body),
        GraphLearnt([{"name": "counts", **body}]),
        Prepare(body),
        CheckpointCompleted(1, "aligned", "interval", False, 0.5, 1, 2, queries={"counts": body}),
        Answered("id", True, body),
        Ask("id", "configure", body),
        RestorePlanned("text", body),
        StartAttempt(7, body),
    ]
    assert {type(message).__name__ for message in messages} == set(WITH_MAPS)
    for message in messages:
        assert decode(encode(message)) == message


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(KeyError):
        decode(b'["Nonsense", {}]\n')


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Described", JobDescribed("job", {})),
        ("Planned", RestorePlanned("text", {})),
        ("Failed", DriverFailed(Failure("it broke"))),
        ("Start", StartAttempt(7)),
        ("Stop", StopQueries(60.0)),
        ("Answered", Answered("id", True, {})),
    ],
)
def test_a_supervisor_and_a_driver_of_different_versions_understand_each_other(
    name: str, message: Message
) -> None:
    """A supervisor outlives an upgrade of weir, and starts its next driver from what is installed then."""
    kind, fields = json.loads(encode(message))
    assert kind == name
    assert decode(json.dumps([name, fields]).encode()) == message
