"""What is read of Spark's progress: rows, state by operator, and what each source holds beyond the batch."""

from __future__ import annotations

from typing import Any

from weir.driver.progress import from_progress

PROGRESS: dict[str, Any] = {
    "name": "counts",
    "batchId": 7,
    "numInputRows": 30,
    "batchDuration": 250,
    "timestamp": "2026-01-01T00:00:00.000Z",
    "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
    "stateOperators": [
        {"operatorName": "stateStoreSave", "numRowsTotal": 5, "memoryUsedBytes": 100},
        {"operatorName": "dedupe", "numRowsTotal": 2, "memoryUsedBytes": 50},
    ],
    "sources": [
        {
            "description": "KafkaV2[Subscribe[t]]",
            "numInputRows": 10,
            "endOffset": {"t": {"0": 100, "1": 5}},
            "latestOffset": {"t": {"0": 140, "1": 7}},
        },
        {
            "description": "PythonStream",
            "numInputRows": 20,
            "endOffset": {"entry": 5, "barrier": 1, "channel": "bronze"},
        },
        {
            "description": "FileStreamSource[in]",
            "numInputRows": 0,
            "endOffset": {"logOffset": 3},
            "metrics": {},
        },
    ],
}


def test_each_source_tells_what_it_holds_beyond_the_batch_if_it_can() -> None:
    batch = from_progress(PROGRESS, 1, lambda channel, entry: 9 - entry if channel == "bronze" else 0)
    assert batch.sources == [
        {"name": "KafkaV2[Subscribe[t]]", "rows": 10, "behind": 42, "unit": "records"},
        {"name": "channel bronze", "rows": 20, "behind": 4, "unit": "entries"},
        {"name": "FileStreamSource[in]", "rows": 0, "behind": None, "unit": ""},
    ]


def test_state_is_told_by_operator_and_in_all() -> None:
    batch = from_progress(PROGRESS, 1)
    assert (batch.state_rows, batch.state_bytes, batch.seconds) == (7, 150, 0.25)
    assert [one["name"] for one in batch.operators] == ["stateStoreSave", "dedupe"]
