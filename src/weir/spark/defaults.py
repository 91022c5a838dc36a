"""The Spark settings that weir gives a query's state unless its author sets them.

Every entry was chosen by measurement (``bench/state_defaults.py``); what was
tried, found and refused is told in ``docs/explanation/state-defaults.md``.
None of them makes a committed batch less durable. The number of partitions and
the state file format are pinned by Spark with a query's first batch: for a query
that exists already they change nothing. ``session.py`` puts these below the
settings of the author.
"""

from typing import Final, Literal

Backend = Literal["rocksdb", "hashmap"]

_STATE: Final = "spark.sql.streaming.stateStore"
_PROVIDERS: Final = "org.apache.spark.sql.execution.streaming.state"
_PARTITIONS_PER_CORE: Final = 2


def state_defaults(backend: Backend, *, cores: int, changelog: bool = True) -> dict[str, str]:
    """Return the Spark settings for state kept in `backend` on `cores` cores in all.

    `changelog` is incremental state: a batch writes its changes, not its files.
    The hashmap backend always works that way and ignores it.
    """
    if cores < 1:
        raise ValueError(f"cores must be at least 1, not {cores}")
    settings = {
        # Spark's 200 cost 200 tasks, stores and uploads a batch; two a core even out skew.
        "spark.sql.shuffle.partitions": str(_PARTITIONS_PER_CORE * cores),
    }
    if backend == "hashmap":
        # Said aloud, so that a provider in spark-defaults.conf does not win unseen.
        settings[f"{_STATE}.providerClass"] = f"{_PROVIDERS}.HDFSBackedStateStoreProvider"
        return settings
    return settings | {
        f"{_STATE}.providerClass": f"{_PROVIDERS}.RocksDBStateStoreProvider",
        # File names unique to the writer: a driver that wakes up late overwrites nothing.
        f"{_STATE}.checkpointFormatVersion": "2",
        # A commit writes the batch's changes; the flush and upload leave its path.
        f"{_STATE}.rocksdb.changelogCheckpointing.enabled": str(changelog).lower(),
        # One cache for all stores of an executor: 500 MB at most, where 8 MB a store thrash.
        f"{_STATE}.rocksdb.boundedMemoryUsage": "true",
    }
