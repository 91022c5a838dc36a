"""What the entries of a files sink's ledger make together."""

from __future__ import annotations

import json

from weir.ids import Attempt, BatchId, Run, Token
from weir.protocol import ledger
from weir.protocol.contents import KEPT, Contents, Span, merged

OLD, NEW = Token(Attempt(1), Run(1)), Token(Attempt(2), Run(1))


def contents(*entries: dict[str, object]) -> Contents:
    """Three batches with a file each, and then these entries."""
    made = Contents()
    first = [ledger.opened("job/query", "lineage"), ledger.fence(OLD)]
    for entry in [*first, *(delivered(batch) for batch in range(3)), *entries]:
        made.apply(entry)
    return made


def delivered(batch: int, token: Token = OLD, **more: int) -> dict[str, object]:
    name = f"data/{batch}-{token.attempt}/part-0"
    return ledger.delivered(BatchId(batch), token, {"folder": "data", "files": [name], **more})


def merge(*batches: int, token: Token = OLD) -> dict[str, object]:
    return merged(token, ["merged/part-0"], [f"data/{batch}-1/part-0" for batch in batches], 5.0, [])


def test_a_merge_stands_for_what_it_replaces_and_can_not_be_taken_apart() -> None:
    made = contents(merge(0, 1))
    assert made.files == {
        "data/2-1/part-0": Span(BatchId(2), BatchId(2)),
        "merged/part-0": Span(BatchId(0), BatchId(1)),
    }
    assert made.in_order() == ["merged/part-0", "data/2-1/part-0"]
    assert (made.ledger.last, made.ledger.floor) == (2, 1)
    assert made.replaced == {"data/0-1/part-0": 5.0, "data/1-1/part-0": 5.0}


def test_a_merge_of_what_is_not_all_there_does_not_count_in_any_part() -> None:
    assert contents(ledger.rewound(BatchId(1), OLD), merge(1, 2)) == contents(ledger.rewound(BatchId(1), OLD))
    assert contents(merge(0, 1), merge(1, 2)) == contents(merge(0, 1))


def test_a_merge_of_a_fenced_run_does_not_count() -> None:
    assert contents(ledger.fence(NEW), merge(0, 1)) == contents(ledger.fence(NEW))


def test_behind_accepted_duplicates_merged_files_stay_that_begin_before_the_rewind() -> None:
    made = contents(merge(1, 2), ledger.rewound(BatchId(1), OLD))
    assert list(made.files) == ["data/0-1/part-0", "merged/part-0"]
    made = contents(merge(1, 2), ledger.rewound(BatchId(0), OLD))
    assert list(made.files) == ["data/0-1/part-0"]


def test_what_was_swept_is_no_longer_kept_in_mind() -> None:
    made = contents(merge(0, 1))
    made.apply(merged(OLD, ["merged/part-1"], ["merged/part-0", "data/2-1/part-0"], 9.0, ["data/0-1/part-0"]))
    assert made.replaced == {"data/1-1/part-0": 5.0, "merged/part-0": 9.0, "data/2-1/part-0": 9.0}
    assert made.files == {"merged/part-1": Span(BatchId(0), BatchId(2))}


def test_a_snapshot_is_read_as_it_was_written() -> None:
    made = contents(merge(0, 1), ledger.fence(NEW), delivered(3, NEW, checkpoint=7))
    again = Contents.decode(json.loads(json.dumps(made.encode())))
    assert again == made and again.checkpoint == 7
    again.apply(delivered(4, NEW))
    again.apply(delivered(5, OLD))
    assert again.ledger.last == 4 and len(again.files) == len(made.files) + 1


def test_the_visible_checkpoint_is_that_of_the_newest_batch_or_none() -> None:
    assert contents().checkpoint is None
    shown = [delivered(3, checkpoint=1), delivered(4), delivered(5, checkpoint=2)]
    assert [contents(*shown[: many + 1]).checkpoint for many in range(3)] == [1, None, 2]
    assert contents(*shown, delivered(6)).checkpoint is None
    assert contents(*shown, ledger.fence(NEW), delivered(6, checkpoint=3)).checkpoint == 2, "it is fenced"


def test_a_rewind_brings_the_checkpoint_of_its_batch_back_unless_merged_files_show_more() -> None:
    shown = [delivered(3, checkpoint=1), delivered(4, checkpoint=2)]
    back = ledger.rewound(BatchId(3), OLD)
    assert contents(*shown, back).checkpoint == 1
    assert contents(*shown, back, delivered(4)).checkpoint is None
    assert contents(*shown, merge(2, 3), back).checkpoint == 1
    assert contents(*shown, merge(3, 4), back).checkpoint is None


def test_only_the_newest_checkpoints_are_kept() -> None:
    made = contents(*(delivered(batch, checkpoint=batch) for batch in range(3, 3 * KEPT)))
    assert len(made.checkpoints) == KEPT and made.checkpoint == 3 * KEPT - 1


def test_a_snapshot_of_before_there_were_checkpoints_in_it_is_read() -> None:
    body = contents().encode()
    del body["checkpoints"]
    assert Contents.decode(body) == contents()


def test_entries_of_an_equal_token_of_another_session_count_for_nothing() -> None:
    first, second = Token(Attempt(8), Run(1), "first"), Token(Attempt(8), Run(1), "second")
    now = ledger.Ledger()
    for entry in (
        ledger.opened("job/one", "lineage"),
        ledger.opened("job/two", "other"),
        ledger.fence(first),
        ledger.delivered(BatchId(0), first, {}),
        ledger.fence(second),
        ledger.rewound(BatchId(-1), second),
        ledger.delivered(BatchId(1), second, {}),
    ):
        now = ledger.apply(now, entry)
    assert (now.owner, now.lineage, now.fence, now.last) == ("job/one", "lineage", first, 0)
    now = ledger.apply(now, ledger.delivered(BatchId(1), first, {}))
    assert now.last == 1
