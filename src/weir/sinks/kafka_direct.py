"""Records that executors send inside a batch, each for itself: at least once, and nothing is staged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weir.errors import BrokerError
from weir.sinks.kafka_records import of_batch
from weir.sinks.kafka_sending import PRODUCER, Sending

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_SENT = "sent bigint"
_PATIENCE = 30.0


@dataclass(frozen=True)
class Direct:
    """A topic as executors send to it; it travels to them."""

    bootstrap: str
    topic: str
    config: Mapping[str, Any] = field(repr=False)

    def send(self, rows: DataFrame) -> int:
        """Send the rows, in the tasks that compute them; how many there were.

        A task that fails and is run again sends again.
        """
        from pyspark.sql import functions as F  # noqa: PLC0415

        sent = rows.mapInArrow(self._send_partition, _SENT).agg(F.sum("sent")).collect()[0][0]
        return int(sent or 0)

    def _send_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415
        from confluent_kafka import Producer  # noqa: PLC0415

        sent, failed = 0, list[str]()
        own = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True}
        told = {"on_delivery": lambda error, _: failed.append(error.str()) if error else None}
        producer = Producer({**PRODUCER, "log_level": 0, **self.config, **own, **told})
        sending = Sending(producer, _PATIENCE, lambda: self._failed("no answer"))
        for batch in batches:
            sent += batch.num_rows
            sending.put(self.topic, of_batch(batch))
        sending.flush()
        if failed:
            raise self._failed(failed[0])
        yield pa.RecordBatch.from_pydict({"sent": [sent]})

    def _failed(self, reason: str) -> BrokerError:
        return BrokerError(bootstrap=self.bootstrap, verb="take records", reason=reason)
