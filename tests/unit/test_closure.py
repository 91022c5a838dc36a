"""The files of a batch, as far as they can be told without Spark."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tests.kept_job import CONF, OPERATOR, blocks, write
from weir.ids import BatchId
from weir.spark.checkpoint_files import ROCKSDB
from weir.spark.closure import GoneError, closure

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def changelog(*lineage: tuple[int, str]) -> bytes:
    """A changelog of state format 2: its header, which names the versions that it descends from."""
    text = json.dumps([{"version": v, "checkpointUniqueId": uid} for v, uid in lineage])
    return blocks(b"".join(struct.pack(">H", len(one)) + one.encode() for one in ("v3", text)))


def test_a_snapshot_that_was_purged_is_gone_and_no_failure_of_another_kind(tmp_path: Path) -> None:
    """Then a newer one is looked for; a `KeyError` would end the checkpoint with words that help nobody."""
    conf = {**CONF, _PROVIDER: ROCKSDB}
    write(tmp_path / "metadata", "{}")
    write(tmp_path / "offsets/6", "\n".join(["v1", json.dumps({"conf": conf}), "-"]))
    write(tmp_path / "commits/6", "v1\n" + json.dumps({"stateUniqueIds": {"0": [["c"]]}}))
    write(tmp_path / "state/0/_metadata/metadata", "v1\n" + json.dumps(OPERATOR))
    write(tmp_path / "state/0/0/7_c.changelog", changelog((5, "a"), (6, "b")))
    write(tmp_path / "state/0/0/6_b.changelog", changelog((5, "a")))
    with pytest.raises(GoneError, match=r"state/0/0/5_a\.zip"):
        closure(tmp_path, BatchId(6))
