"""Every setting: its key, type, default and one-line meaning.

Keys are Flink's where the idea is Flink's; the older spellings of Flink load too. A value that does
not fit raises pydantic's error, to which the layers add who gave it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from weir.config.values import (
    Boolean,
    Count,
    CountOrInfinite,
    CountOrUnset,
    CountOrZero,
    CountOrZeroOrInfinite,
    Duration,
    DurationOrOff,
    Factor,
    InlineSize,
    Keep,
    KeepOrAll,
    Ports,
    PortsOrOff,
    PositiveDuration,
    Text,
    TextOrUnset,
    lenient,
)


class StateBackend(str, Enum):
    """Where Spark's executors keep the working state."""

    ROCKSDB = "rocksdb"
    HASHMAP = "hashmap"


class CheckpointingMode(str, Enum):
    """What a checkpoint promises for a restore."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class DirAccess(str, Enum):
    """Who may look into a job's directory."""

    OWNER = "owner"
    UMASK = "umask"


class SinkCommit(str, Enum):
    """When output becomes visible."""

    BATCH = "batch"
    CHECKPOINT = "checkpoint"


class Retention(str, Enum):
    """What becomes of the checkpoints when the job is cancelled."""

    RETAIN_ON_CANCELLATION = "retain_on_cancellation"
    DELETE_ON_CANCELLATION = "delete_on_cancellation"


class CheckpointStorage(str, Enum):
    """Where the files of a checkpoint are kept."""

    FILESYSTEM = "filesystem"
    MEMORY = "memory"


class RestartStrategyType(str, Enum):
    """What follows a failure."""

    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    EXPONENTIAL_DELAY = "exponential-delay"


class Settings(BaseModel):
    """Every setting; a field is called as its key with underscores for dots and dashes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    execution_checkpointing_dir: Text = Field(
        "weir-data",
        alias="execution.checkpointing.dir",
        description="the directory under which each job keeps its files, in <dir>/<job>; it needs a file "
        "system with hard links",
    )
    execution_checkpointing_dir_access: Annotated[DirAccess, lenient()] = Field(
        DirAccess.OWNER,
        alias="execution.checkpointing.dir-access",
        description="owner: each start closes the job's directory to other users; umask: its mode is left as "
        "it is, for executors or colleagues that work under another user",
    )
    execution_checkpointing_interval: DurationOrOff = Field(
        timedelta(seconds=10),
        alias="execution.checkpointing.interval",
        description="how often a checkpoint of the job is triggered; off = not by time",
    )
    execution_checkpointing_interval_records: CountOrUnset = Field(
        None,
        alias="execution.checkpointing.interval-records",
        description="a checkpoint is triggered after this many records from outside the job, summed over all "
        "queries that read no channel; unset = not by count",
    )
    execution_checkpointing_mode: Annotated[CheckpointingMode, lenient()] = Field(
        CheckpointingMode.EXACTLY_ONCE,
        alias="execution.checkpointing.mode",
        description="exactly_once: a query with several streams waits for the slower one at a barrier; "
        "at_least_once: it never waits, and after a restore some records count twice",
    )
    execution_checkpointing_timeout: PositiveDuration = Field(
        timedelta(minutes=10),
        alias="execution.checkpointing.timeout",
        description="a checkpoint that has not completed within this time is aborted",
    )
    execution_checkpointing_min_pause: Duration = Field(
        timedelta(0),
        alias="execution.checkpointing.min-pause",
        description="the minimum time between the end of a checkpoint and the next trigger; above 0 s, only "
        "one checkpoint is pending at a time",
    )
    execution_checkpointing_max_concurrent_checkpoints: Count = Field(
        1,
        alias="execution.checkpointing.max-concurrent-checkpoints",
        description="how many checkpoints may be pending at once; an unaligned one is always alone",
    )
    execution_checkpointing_tolerable_failed_checkpoints: CountOrZeroOrInfinite = Field(
        None,
        alias="execution.checkpointing.tolerable-failed-checkpoints",
        description="how many checkpoints may be aborted in a row before the job fails; infinite (Flink: 0), "
        "because recovery resumes from each query's last batch and needs no checkpoint",
    )
    execution_checkpointing_incremental: Boolean = Field(
        True,
        alias="execution.checkpointing.incremental",
        description="a checkpoint adds only the files that are new since the one before; false = each "
        "checkpoint is a full copy of what a restore needs and shares no file",
    )
    execution_checkpointing_num_retained: Count = Field(
        3,
        alias="execution.checkpointing.num-retained",
        description="how many completed checkpoints are retained; older ones are subsumed",
    )
    execution_checkpointing_externalized_checkpoint_retention: Annotated[Retention, lenient()] = Field(
        Retention.RETAIN_ON_CANCELLATION,
        alias="execution.checkpointing.externalized-checkpoint-retention",
        description="whether checkpoints are kept or deleted when the job is cancelled; a job that ends by "
        "itself keeps them",
    )
    execution_checkpointing_unaligned_enabled: Boolean = Field(
        False,
        alias="execution.checkpointing.unaligned.enabled",
        description="no query waits for a barrier; rows in flight between two queries become part of the "
        "checkpoint",
    )
    execution_checkpointing_aligned_checkpoint_timeout: Duration = Field(
        timedelta(0),
        alias="execution.checkpointing.aligned-checkpoint-timeout",
        description="with unaligned.enabled: a checkpoint begins aligned, and becomes unaligned after this "
        "time; 0 s = unaligned from the beginning",
    )
    execution_checkpointing_storage: Annotated[CheckpointStorage, lenient({"jobmanager": "memory"})] = Field(
        CheckpointStorage.FILESYSTEM,
        alias="execution.checkpointing.storage",
        description="filesystem: files are kept beside the live ones; "
        "memory: inside the checkpoint's manifest, 5 MB at most",
    )
    execution_checkpointing_data_inline_threshold: InlineSize = Field(
        2048,
        alias="execution.checkpointing.data-inline-threshold",
        description="files up to this size are stored inside the checkpoint's manifest, which costs less than"
        " a file for each; 0 b = none",
    )
    execution_checkpointing_copy_dir: TextOrUnset = Field(
        None,
        alias="execution.checkpointing.copy-dir",
        description="a directory on another file system (or a URL) to which the files of each checkpoint are "
        "also copied; a restore can use that copy alone",
    )
    execution_checkpointing_savepoint_dir: TextOrUnset = Field(
        None,
        alias="execution.checkpointing.savepoint-dir",
        description="the directory (or URL) below which savepoints are written when a command names none",
    )
    savepoint_schedule: DurationOrOff = Field(
        None,
        alias="savepoint.schedule",
        description="how often a savepoint is taken, into execution.checkpointing.savepoint-dir; off = never",
    )
    savepoint_retain: KeepOrAll = Field(
        Keep(count=5),
        alias="savepoint.retain",
        description="how many savepoints of the schedule are kept, or for how long, or both (5, 7 d); other "
        "savepoints are never deleted, nor is the newest of the schedule",
    )
    channel_max_segments_ahead: Count = Field(
        100,
        alias="channel.max-segments-ahead",
        description="back-pressure: how many segments a stream may be ahead of its slowest reader",
    )
    state_backend_type: StateBackend = Field(
        StateBackend.ROCKSDB,
        alias="state.backend.type",
        description="where working state is kept: RocksDB on disk, or Java objects on the heap",
    )
    state_changelog_enabled: Boolean = Field(
        True,
        alias="state.changelog.enabled",
        description="RocksDB changelog checkpointing: a batch uploads its changes, not complete files",
    )
    parallelism_default: CountOrUnset = Field(
        None,
        alias="parallelism.default",
        description="partitions of keyed state (Spark's shuffle partitions); "
        "unset = chosen from the cores at the first start and kept from then on",
    )
    heartbeat_interval: PositiveDuration = Field(
        timedelta(seconds=10),
        alias="heartbeat.interval",
        description="how often the driver and its supervisor exchange heartbeats",
    )
    heartbeat_timeout: PositiveDuration = Field(
        timedelta(seconds=50),
        alias="heartbeat.timeout",
        description="how long the other side may be silent before it counts as dead; must be above "
        "heartbeat.interval",
    )
    task_cancellation_timeout: PositiveDuration = Field(
        timedelta(minutes=3),
        alias="task.cancellation.timeout",
        description="how long a running batch may take to finish when the job is cancelled; "
        "after that it is cut off",
    )
    restart_strategy_type: RestartStrategyType = Field(
        RestartStrategyType.EXPONENTIAL_DELAY,
        alias="restart-strategy.type",
        description="whether and how a failed job is restarted",
    )
    restart_strategy_fixed_delay_attempts: CountOrZero = Field(
        1,
        alias="restart-strategy.fixed-delay.attempts",
        description="fixed-delay: how many restarts until a query or the job is FAILED",
    )
    restart_strategy_fixed_delay_delay: Duration = Field(
        timedelta(seconds=1),
        alias="restart-strategy.fixed-delay.delay",
        description="fixed-delay: the wait before each restart",
    )
    restart_strategy_failure_rate_max_failures_per_interval: Count = Field(
        1,
        alias="restart-strategy.failure-rate.max-failures-per-interval",
        description="failure-rate: how many failures within the interval until a query or the job is FAILED",
    )
    restart_strategy_failure_rate_failure_rate_interval: PositiveDuration = Field(
        timedelta(minutes=1),
        alias="restart-strategy.failure-rate.failure-rate-interval",
        description="failure-rate: the interval in which failures are counted",
    )
    restart_strategy_failure_rate_delay: Duration = Field(
        timedelta(seconds=1),
        alias="restart-strategy.failure-rate.delay",
        description="failure-rate: the wait before each restart",
    )
    restart_strategy_exponential_delay_initial_backoff: PositiveDuration = Field(
        timedelta(seconds=1),
        alias="restart-strategy.exponential-delay.initial-backoff",
        description="exponential-delay: the wait before the first restart",
    )
    restart_strategy_exponential_delay_max_backoff: PositiveDuration = Field(
        timedelta(minutes=1),
        alias="restart-strategy.exponential-delay.max-backoff",
        description="exponential-delay: the longest wait before a restart",
    )
    restart_strategy_exponential_delay_backoff_multiplier: Annotated[Factor, Field(ge=1)] = Field(
        1.5,
        alias="restart-strategy.exponential-delay.backoff-multiplier",
        description="exponential-delay: by how much the wait grows with each failure; 1 or more",
    )
    restart_strategy_exponential_delay_jitter_factor: Annotated[Factor, Field(ge=0, le=1)] = Field(
        0.1,
        alias="restart-strategy.exponential-delay.jitter-factor",
        description="exponential-delay: the random part of the wait, as a fraction from 0 to 1",
    )
    restart_strategy_exponential_delay_reset_backoff_threshold: PositiveDuration = Field(
        timedelta(hours=1),
        alias="restart-strategy.exponential-delay.reset-backoff-threshold",
        description="exponential-delay: after this long without a failure, the wait starts at initial-backoff"
        " again; with every strategy: after this long without input or failure, a query's "
        "failures no longer count for poison-batch.attempts and crash-loop.attempts",
    )
    restart_strategy_exponential_delay_attempts_before_reset_backoff: CountOrInfinite = Field(
        None,
        alias="restart-strategy.exponential-delay.attempts-before-reset-backoff",
        description="exponential-delay: how many restarts without such a quiet time until a query or the job "
        "is FAILED",
    )
    restart_strategy_poison_batch_attempts: Count = Field(
        2,
        alias="restart-strategy.poison-batch.attempts",
        description="how many failures at the same batch, of the job's own code or by a refused row, make its"
        " query FAILED; the other queries continue",
    )
    restart_strategy_crash_loop_attempts: CountOrInfinite = Field(
        10,
        alias="restart-strategy.crash-loop.attempts",
        description="how often the same failure may repeat without a committed batch or a quiet time "
        "(exponential-delay.reset-backoff-threshold) in between, before its query or the job is "
        "FAILED; outages are not counted",
    )
    restart_strategy_machine_failures_max_wait: Duration = Field(
        timedelta(minutes=5),
        alias="restart-strategy.machine-failures.max-wait",
        description="after a failure of the machine (a process that could not be started in time), a "
        "restart waits until the machine can start one again, for this long at most; then it is tried all "
        "the same",
    )
    restart_strategy_machine_failures_timeout: DurationOrOff = Field(
        timedelta(hours=6),
        alias="restart-strategy.machine-failures.timeout",
        description="for how long failures of the machine may come back without a committed batch in "
        "between, before their query or the job is FAILED; they use up no other restarts; "
        "off = for ever",
    )
    sink_commit: SinkCommit = Field(
        SinkCommit.BATCH,
        alias="sink.commit",
        description="when output becomes visible: with each batch, or with each completed checkpoint of the "
        "job (batch, checkpoint)",
    )
    sink_max_pending_batches: Count = Field(
        4,
        alias="sink.max-pending-batches",
        description="how many staged batches may wait for the sink's commit before the query waits",
    )
    history_retain_logs: KeepOrAll = Field(
        Keep(count=20),
        alias="history.retain-logs",
        description="for how many attempts the driver's output is kept for 'weir logs', or for how long, or "
        "both (20, 30 d); that of the newest is always kept",
    )
    history_retain_attempts: Annotated[Count, Field(ge=1000)] = Field(
        1000,
        alias="history.retain-attempts",
        description="how many records of attempts are kept; 1000 or more, because they distinguish an old "
        "writer from a new one",
    )
    history_retain_generations: CountOrZero = Field(
        2,
        alias="history.retain-generations",
        description="how many generations before the live one keep their files, besides those that a retained"
        " checkpoint belongs to",
    )
    rest_address: Text = Field(
        "127.0.0.1",
        alias="rest.address",
        description="the address at which a running job serves REST and its pages; "
        "any but a loopback address needs rest.token-file",
    )
    rest_port: PortsOrOff = Field(
        Ports(8081, 8181),
        alias="rest.port",
        description="the port for REST and pages; of a range, the first free one; off = they are not served",
    )
    rest_token_file: TextOrUnset = Field(
        None,
        alias="rest.token-file",
        description="a file whose first line is the token that REST and pages ask for; unset = the user's "
        "own, ~/.local/state/weir/token, created at the first start; off = no token, only on a "
        "loopback address: every local user can then control the job",
    )


@dataclass(frozen=True)
class OlderSpelling:
    """A key of earlier versions of Flink: its name now, and the names of its values now."""

    key: str
    values: Mapping[str, str] = field(default_factory=dict)


OLDER_SPELLINGS: Mapping[str, OlderSpelling] = {
    "state.checkpoints.dir": OlderSpelling("execution.checkpointing.dir"),
    "state.backend": OlderSpelling(
        "state.backend.type",
        {"memory": "hashmap", "filesystem": "hashmap", "hashmap": "hashmap", "rocksdb": "rocksdb"},
    ),
    "state.savepoints.dir": OlderSpelling("execution.checkpointing.savepoint-dir"),
    "restart-strategy": OlderSpelling("restart-strategy.type"),
    "state.backend.incremental": OlderSpelling("execution.checkpointing.incremental"),
    "state.checkpoints.num-retained": OlderSpelling("execution.checkpointing.num-retained"),
    "state.checkpoint-storage": OlderSpelling("execution.checkpointing.storage"),
    "execution.checkpointing.unaligned": OlderSpelling("execution.checkpointing.unaligned.enabled"),
    "execution.checkpointing.alignment-timeout": OlderSpelling(
        "execution.checkpointing.aligned-checkpoint-timeout"
    ),
}

RUNTIME_KEYS = (
    "execution.checkpointing.interval",
    "execution.checkpointing.timeout",
    "execution.checkpointing.min-pause",
)
"""The keys that can be changed on a running job."""
