"""A topic of Kafka's: one transaction a batch, with the ledger's entry inside.

    <job>/sinks/<query>/data/<batch>-<token>/part-*        the batch, staged by Spark as Parquet
    <job>/sinks/<query>/staged/<batch>-<token>.json        stagings that are recorded
    <job>/sinks/<query>/fences/<ledger>/<token>            who has opened the sink last, with this ledger
    topic <ledger>                                         the ledger: an entry a batch

The driver sends a staged batch when Spark has decided for it. Before its first transaction, and again
after whatever went wrong, it becomes the only writer (`init_transactions`, which ends what an earlier one
had begun), then reads the ledger to its end, and only then decides: what is in the ledger was sent, what is
not was not. So no answer that got lost, and no outage however long, can lose or double a batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from weir import faults
from weir.clock import Clock, retry
from weir.errors import FencedError, LostStagingError, OutcomeUnknownError, SinkMismatchError
from weir.ids import BatchId, CheckpointId, QueryName, Token
from weir.protocol.ledger import Ledger, Staged
from weir.sinks import kafka_records
from weir.sinks.contract import Outcome
from weir.sinks.fence import Knows, SinkFence, anyone, check_owner, decode_ledger, encode_ledger
from weir.sinks.kafka_broker import OWN, Broker, KafkaBroker, KafkaEntry, ProducerFencedError, check_installed
from weir.sinks.kafka_records import Direct, KafkaColumns, NotBytesError
from weir.sinks.staging import StagedFiles, folder_of, parse_run, run_name
from weir.spark.checkpoint_files import QueryFiles
from weir.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LEDGER = "{topic}.weir-ledger"
_KEPT = 1000
"""Of how many batches the ledger keeps an entry when the topic is compacted; the newest is needed."""
_TRIES = 8
_STAGED = "staged"
_FENCES = "fences"
_FENCE = re.compile(r"\d+-\d+(-\w*)?", re.ASCII)


def kafka(
    bootstrap: str,
    topic: str,
    *,
    key: str | Column | None = None,
    value: str | Column = "value",
    headers: Mapping[str, str | Column] | str | Column | None = None,
    partitions: int | None = None,
    ledger: str | None = None,
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once",
    config: Mapping[str, Any] | None = None,
) -> Kafka:
    """Send each batch to a topic, exactly once for readers with `isolation.level=read_committed`.

    `key` and `value` are columns of strings or bytes, by name or as an expression; `headers` gives a
    column to each header's name, or is a column as Spark's own Kafka source has it. `partitions`: make a
    topic with this many when it is not there. `ledger` names the topic that records what was sent, one of
    its own for each query; without it `<topic>.weir-ledger`. `config` is for the client: security,
    compression, timeouts, by librdkafka's names.

    With `delivery="at_least_once"` the executors send inside the batch, each for itself: sooner, and nothing
    is staged, but readers see parts of a batch, and a batch that runs again is there twice.

    What was sent can't be rewound: a restore to an older point is refused without --accept-duplicates.
    """
    check_installed()
    given = dict(config or {})
    described = f"topic {topic} of {bootstrap}"
    if own := sorted(OWN & set(given)):
        raise SinkMismatchError(
            query="?",
            path=described,
            reason=f"weir sets {own[0]} itself",
            todo=f"leave {own[0]} out of config=",
        )
    if delivery not in ("exactly_once", "at_least_once"):
        raise SinkMismatchError(
            query="?",
            path=described,
            reason=f"there is no delivery {delivery!r}",
            todo="use 'exactly_once' or 'at_least_once'; at_most_once=True is set in env.sink",
        )
    columns, name = KafkaColumns(key, value, headers), ledger or LEDGER.format(topic=topic)
    return Kafka(bootstrap, topic, columns, partitions, name, delivery == "at_least_once", given)


@dataclass(frozen=True)
class Kafka:
    """A topic as the author gives it; the job gives it a folder to stage in."""

    bootstrap: str
    topic: str
    columns: KafkaColumns
    partitions: int | None
    ledger: str
    at_once: bool
    """Executors send inside the batch: at least once."""
    config: dict[str, Any] = field(repr=False)

    def describe(self) -> str:
        return f"topic {self.topic} of {self.bootstrap}"

    def check(self, query: QueryName, frame: DataFrame, output_mode: str) -> None:
        """Raise `SinkMismatchError` when records can't be made of the frame, or would all come again."""
        if output_mode == "complete":
            reason = "in output mode complete each batch has the complete result, and a topic can only grow"
            todo = 'use output_mode="update" with a key: the newest record of a key counts'
            raise SinkMismatchError(query=query, path=self.describe(), reason=reason, todo=todo)
        try:
            self.columns.check(frame)
        except NotBytesError as error:
            raise SinkMismatchError(
                query=query,
                path=self.describe(),
                reason=str(error),
                todo='choose or make a column of strings: value=F.to_json(F.struct("*"))',
            ) from error

    def at(self, location: str, files: QueryFiles) -> KafkaSink:
        """The sink, which stages in this folder."""
        broker = KafkaBroker(self.bootstrap, self.topic, self.ledger, self.config, self.partitions)
        direct = Direct(self.bootstrap, self.topic, self.config) if self.at_once else None
        return KafkaSink(self.describe(), self.columns, broker, open_store(location), direct)


@dataclass(frozen=True)
class Sent:
    """The sink's state; each entry of its ledger has all of it."""

    ledger: Ledger = Ledger()
    records: int = 0
    """How many records were ever sent, those of batches that came twice too."""
    checkpoint: CheckpointId | None = None
    """The one that readers see exactly, where they see complete checkpoints."""

    def encode(self) -> KafkaEntry:
        last = self.ledger.last
        state = {**encode_ledger(self.ledger), "records": self.records, "checkpoint": self.checkpoint}
        key = str(last % _KEPT) if last >= 0 else "none"
        return KafkaEntry(key.encode(), json.dumps(state).encode())

    @classmethod
    def decode(cls, entry: KafkaEntry) -> Sent:
        state = json.loads(entry.state)
        return cls(decode_ledger(state), state["records"], state.get("checkpoint"))


class KafkaSink:
    """See the module's docstring; keeps the contract of `StagingSink`, but can't rewind what was sent."""

    rewindable = False
    """What was sent stays sent."""

    def __init__(
        self,
        described: str,
        columns: KafkaColumns,
        broker: Broker,
        store: Store,
        direct: Direct | None = None,
    ) -> None:
        self._direct = direct
        self._described = described
        self._columns = columns
        self._broker = broker
        self._store = store
        self._staging = StagedFiles(store, _STAGED)
        self._fence = SinkFence(self.describe)
        self._sent: Sent | None = None
        """What the ledger says; None when it must be read first, because something went wrong."""

    @property
    def at_once(self) -> bool:
        """Executors send inside the batch: at least once."""
        return self._direct is not None

    def describe(self) -> str:
        return self._described

    def look(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        self._fence.begin(owner, token, knows)
        self._sent = None
        self._broker.prepare()
        sent = self._look()
        self._fence.check_fence(sent.ledger.fence)
        self._check_owner(sent.ledger, owner, lineage)
        self._check_not_emptied(sent, owner)
        return sent.ledger

    def open(self, owner: str, lineage: str, token: Token, knows: Knows = anyone) -> Ledger:
        self._fence.begin(owner, token, knows)
        self._sent = None
        self._broker.prepare()

        def announce() -> Ledger:
            sent = self._certain(owner, lineage)
            announced = replace(sent.ledger, owner=owner, lineage=lineage, fence=token)
            self._send([], replace(sent, ledger=announced))
            self._fence.announced(announced.last)
            self._announce_staging(token)
            return announced

        try:  # fenced by a lower token is tried again: it will see ours
            return retry(announce, [0.0] * (_TRIES - 1), Clock().sleep, on=ProducerFencedError)
        except ProducerFencedError as error:
            raise FencedError(who=f"attempt {token}", by="another writer of the same ledger") from error

    def stage(self, frame: DataFrame, batch: BatchId, token: Token) -> None:
        if self._direct is not None:
            self._direct.send(self._columns.choose(frame))
            return
        self._staging.write(self._columns.choose(frame), kafka_records.FORMAT, {}, batch, token)

    def record(self, staged: Staged) -> None:
        self._fence.check_fence(max(map(_token, self._fence_keys()), default=self._fence.token))
        if self._direct is None:
            self._staging.sync(staged)
        self._staging.record(staged, self._staging.written(staged))

    def staged(self) -> Sequence[Staged]:
        return self._staging.recorded()

    def commit(self, staged: Staged) -> Outcome:
        return self._commit(staged, None)

    def commit_at(self, staged: Staged, checkpoint: CheckpointId) -> Outcome:
        return self._commit(staged, checkpoint)

    def _commit(self, staged: Staged, checkpoint: CheckpointId | None) -> Outcome:
        sent = self._certain()
        outcome = Outcome.ALREADY_DONE
        if sent.ledger.last < staged.batch:
            urls, rows = self._files(staged, sent)
            ledger = replace(sent.ledger, last=staged.batch)
            try:
                self._send(urls, Sent(ledger, sent.records + rows, checkpoint))
            except ProducerFencedError:
                self._certain()
                return Outcome.UNKNOWN
            except OutcomeUnknownError:
                return Outcome.UNKNOWN
            outcome = Outcome.DONE_NOW
            faults.point("sink.committed")
        self._staging.delete(staged)
        return outcome

    def discard(self, upto: BatchId, keep: Sequence[Staged]) -> None:
        kept = {folder_of(one.batch, one.token) for one in keep}
        self._staging.discard(upto, self._fence.token, kept)

    def rewind(self, to: BatchId) -> Outcome:
        """Enter that the batches above `to` come again; what was sent stays sent."""
        sent = self._certain()
        if sent.ledger.last <= to:
            return Outcome.ALREADY_DONE
        self._fence.rewinds(to)
        try:
            self._send([], replace(sent, ledger=replace(sent.ledger, last=to), checkpoint=None))
        except (OutcomeUnknownError, ProducerFencedError):
            return Outcome.UNKNOWN
        return Outcome.DONE_NOW

    def records_above(self, batch: BatchId) -> int | None:
        """How many records of later batches were sent; None when the ledger has forgotten that far back."""
        if self._direct is not None:
            return None
        history = [Sent.decode(entry) for entry in self._broker.entries(newest=False)]
        before = [sent.records for sent in history if sent.ledger.last == batch]
        return history[-1].records - before[-1] if before else None

    # the ledger

    def _certain(self, owner: str = "", lineage: str = "") -> Sent:
        """What the ledger says, and we alone may write it; raise `FencedError` when that is not so."""
        if self._sent is None:
            before = self._look().ledger  # its end may be missing, but who is fenced already disturbs nobody
            self._fence.check_fence(before.fence)
            self._check_owner(before, owner, lineage)
            self._broker.fence()
            after = self._look()
            self._fence.check(after.ledger)
            self._check_owner(after.ledger, owner, lineage)
            self._check_not_emptied(after, owner)
            self._sent = after
        return self._sent

    def _look(self) -> Sent:
        entries = self._broker.entries(newest=True)
        return Sent.decode(entries[-1]) if entries else Sent()

    def _send(self, urls: Sequence[str], after: Sent) -> None:
        self._sent = None
        self._broker.send(kafka_records.records(urls), after.encode())
        self._sent = after
        self._fence.entered(after.ledger.last)

    def _check_owner(self, there: Ledger, owner: str, lineage: str) -> None:
        if there.owner and owner:
            check_owner(
                *(there, owner, lineage),
                path=self._described,
                place="ledger",
                holds="its ledger is that of",
                how=": ledger=...",
            )

    def _check_not_emptied(self, sent: Sent, owner: str) -> None:
        """Whoever has opened the sink before has left an entry in the ledger."""
        if owner and not sent.ledger.owner and any(map(self._is_of_ledger, self._fence_keys())):
            raise SinkMismatchError(
                query=owner.split("/", 1)[1],
                path=self._described,
                reason="its ledger is empty, and this query has used it before: that topic was deleted or "
                "replaced, so it is not known what was sent",
                todo="restore the ledger, or give this query a new name to start from the beginning",
            )

    # the staging

    def _files(self, staged: Staged, sent: Sent) -> tuple[list[str], int]:
        """The files of a recorded staging, and how many records they have."""
        query, folder = sent.ledger.owner, self._store.url
        urls = sorted(f"{folder}/{name}" for name in self._staging.files_of(staged, query, folder))
        try:
            return urls, kafka_records.count(urls)
        except FileNotFoundError as error:
            raise LostStagingError(batch=staged.batch, query=query, path=folder) from error

    def _announce_staging(self, token: Token) -> None:
        """Let those know who only stage; they need not ask Kafka, which may be down, in every batch."""
        self._store.create(f"{self._fences}/{run_name(token)}", b"")
        for key in self._fence_keys():
            if self._is_of_ledger(key) and _token(key) < token:
                self._store.delete(key)

    @property
    def _fences(self) -> str:
        return f"{_FENCES}/{self._broker.ledger_topic}"

    def _fence_keys(self) -> list[str]:
        return [key for key in self._store.list(_FENCES) if _FENCE.fullmatch(key.rpartition("/")[2])]

    def _is_of_ledger(self, key: str) -> bool:
        """Whether a fence may be of this ledger; those of an earlier weir do not name theirs."""
        return key.rpartition("/")[0] in (self._fences, _FENCES)


def _token(key: str) -> Token:
    return parse_run(key.rsplit("/", 1)[1])
