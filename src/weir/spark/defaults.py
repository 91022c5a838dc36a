"""Provisional: overwritten by the measured choice."""

from typing import Literal


def state_defaults(
    backend: Literal["rocksdb", "hashmap"], *, cores: int, changelog: bool = True
) -> dict[str, str]:
    pre = "spark.sql.streaming.stateStore."
    base = {"spark.sql.shuffle.partitions": str(max(2, cores))}
    if backend == "hashmap":
        return base | {
            pre
            + "providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
        }
    return base | {
        pre + "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        pre + "rocksdb.changelogCheckpointing.enabled": str(changelog).lower(),
        pre + "checkpointFormatVersion": "2",
    }
