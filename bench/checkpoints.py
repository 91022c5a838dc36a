"""What checkpoints cost: the throughput beside them, their duration and their size.

    diamond      four queries, three channels, sums per key: records/s with a checkpoint every
                 second over the same without; aligned wanted >= 0.9, unaligned >= 0.98
    single       the same sums in one query                                         wanted >= 0.98
    incremental  one query, as many keys changed between two checkpoints whatever the number of keys:
                 duration of a checkpoint at --keys over that at --few-keys           wanted <= 2
                 new bytes of a checkpoint over its full size at --keys, median       wanted <= 0.03

Both sides of a throughput ratio are windows of some seconds, in turns, of one and the same driver that
works off one long input; its checkpoints are turned on and off as `weir configure` does it. So they share
the JVM and the state, and see the same noise: batches that compact RocksDB, one in forty, take twice as
long as others, and whole minutes of a shared machine may be slow. The ratio is that of all windows
together. What counts is what the last query gets done, from the end of the first batch in a window to that
of the last. Before the first window all keys are in the state. In front of each window the job runs as in
it for --settle seconds, so that neither side reads what the other has left in the channels, and of the
triggers as many complete as would in the long run. The streams of the diamond are at most --ahead segments
in front of their readers, on both sides: an aligned barrier has to wait until all of that is read. The two
jobs of `incremental` run side by side and take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from sides.feed import Feed, keyed
from sides.processes import PARTITIONS, Weir, cpu_seconds, end_on_sigterm, worked_off
from weir.checkpoint import manifest as mf
from weir.checkpoint.manifest import Manifest
from weir.ids import CheckpointId, job_name
from weir.storage import open_store
from weir.supervisor.history import CHECKPOINTS, Event

RESULT = Path(__file__).parent / "results" / "checkpoints.json"
INTERVAL = 1.0
CHECKPOINTING = "execution.checkpointing"
UNALIGNED = {f"{CHECKPOINTING}.unaligned.enabled": "true"}
PARTS = ("aligned", "unaligned", "single", "incremental")
STEADY = {"spark.sql.streaming.minBatchesToRetain": "20"}
"""Spark deletes old batches from this number on: before the clock starts, and not in the midst of a run."""
MAINTENANCE = {"spark.sql.streaming.stateStore.maintenanceInterval": "10s"}
"""RocksDB's snapshots are uploaded so often, where a minute is Spark's default: a run sees several."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--few-keys", type=int, default=10_000)
    parser.add_argument(
        "--window", type=float, default=10, help="seconds with, or without; two of it for the diamond"
    )
    parser.add_argument("--rate", type=int, default=60_000, help="records a second that are there to be read")
    parser.add_argument("--file", type=int, default=40_000, help="records of a batch of the source")
    parser.add_argument("--rounds", type=int, default=12, help="windows with, and without checkpoints")
    parser.add_argument("--settle", type=float, default=12, help="seconds in front of each window")
    parser.add_argument("--ahead", type=int, default=2, help="channel.max-segments-ahead")
    parser.add_argument("--concurrent", type=int, default=8, help="checkpoints that may be under way at once")
    parser.add_argument("--changed", type=int, default=10_000, help="keys changed between two checkpoints")
    parser.add_argument("--taken", type=int, default=40, help="checkpoints at each number of keys")
    parser.add_argument("--only", choices=PARTS, action="append", help="the rest of the result file stays")
    parser.add_argument("--quick", action="store_true", help="few records, one round; writes no file")
    options = parser.parse_args()
    end_on_sigterm()
    if options.quick:
        options.keys, options.window, options.rounds, options.taken = 50_000, 3, 1, 4
        options.settle = 2
    report = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for part in options.only or PARTS:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            found = (
                incremental(Path(folder), options)
                if part == "incremental"
                else throughput(Path(folder), part, options)
            )
        report[part] = {"load_before": round(load, 2), **found}
        print(part, json.dumps(report[part], indent=1), flush=True)
        if not options.quick:
            RESULT.parent.mkdir(exist_ok=True)
            RESULT.write_text(json.dumps(report, indent=1) + "\n")


# the throughput beside checkpoints


def throughput(folder: Path, part: str, options: argparse.Namespace) -> dict[str, Any]:
    """Checkpoints on and off in turns, while one and the same driver works off one long input."""
    shape = "single" if part == "single" else "diamond"
    window = options.window * (1 if shape == "single" else 2)
    feed = Feed(folder, keyed(options.keys))
    fill = feed.prepare(options.keys, 4)
    supply = feed.prepare(*supplied(options, shape, window))
    settings = {
        f"{CHECKPOINTING}.interval": "off",
        f"{CHECKPOINTING}.max-concurrent-checkpoints": str(options.concurrent),
        "channel.max-segments-ahead": str(options.ahead),
        **STEADY,
        **(UNALIGNED if part == "unaligned" else {}),
    }
    factor = 1 if shape == "single" else 2  # in the diamond each record comes twice
    rounds: list[dict[str, dict[str, Any]]] = []
    with Weir("diamond", folder, [feed.folder, folder / "out", shape], settings) as side:
        feed.hand_over(fill)
        worked_off(side, {"sums": factor * fill.records})
        feed.hand_over(supply)
        for number in range(1 + options.rounds):
            order = ("off", "on") if number % 2 == 0 else ("on", "off")
            rounds.append({kind: during(side, kind, window, options.settle, factor) for kind in order})
        read = sum(b.rows for b in side.batches() if b.query == "sums") // factor
        if read >= fill.records + supply.records or side.failed(0):
            raise SystemExit("bench: the input was used up, or something failed; see --rate")
    del rounds[0]  # warming up
    return {
        "keys": options.keys,
        "records_a_batch": options.file,
        "max_concurrent": options.concurrent,
        "max_segments_ahead": options.ahead,
        "window_seconds": window,
        "settle_seconds": options.settle,
        "on": round(pooled(rounds, "on")),
        "off": round(pooled(rounds, "off")),
        "ratio": round(pooled(rounds, "on") / pooled(rounds, "off"), 3),
        "ratios": [round(pooled([one], "on") / pooled([one], "off"), 3) for one in rounds],
        "ratio_by_cpu": round(pooled(rounds, "on", "cpu_seconds") / pooled(rounds, "off", "cpu_seconds"), 3),
        "triggers": {
            word: sum(r["on"]["triggers"][word] for r in rounds) for word in ("due", "begun", "completed")
        },
        "rounds": rounds,
    }


def supplied(options: argparse.Namespace, shape: str, window: float) -> tuple[int, int]:
    """So many records, in so many files, that they are not used up in all the windows."""
    rate = options.rate * (1 if shape == "single" else 0.8)
    files = round(rate * 2 * (1 + options.rounds) * (window + options.settle + 3) / options.file)
    return files * options.file, files


def during(side: Weir, kind: str, window: float, before: float, factor: int) -> dict[str, Any]:
    """What the last query gets done in a window with checkpoints, or without."""
    side.configure(**{f"{CHECKPOINTING}.interval": f"{INTERVAL:g} s" if kind == "on" else "off"})
    settle(side, idle=kind == "off")
    time.sleep(before)
    used, began = cpu_seconds(side), time.time()
    time.sleep(window)
    ended, spent = time.time(), cpu_seconds(side) - used
    batches = [b for b in side.batches() if began <= b.ended_at <= ended]
    sums = sorted((b for b in batches if b.query == "sums"), key=lambda b: b.ended_at)
    found: dict[str, Any] = {
        "records": sum(b.rows for b in sums[1:]) // factor,
        "elapsed": round(sums[-1].ended_at - sums[0].ended_at, 3),  # from the end of a batch to that of one
        "cpu_seconds": round(spent, 2),
        "batches": {
            name: sum(b.query == name for b in batches) for name in sorted({b.query for b in batches})
        },
    }
    return found | (taken(side, began, ended) if kind == "on" else {})


def pooled(rounds: Sequence[Mapping[str, Any]], kind: str, by: str = "elapsed") -> float:
    """Records a second, of the clock or of the processors, over all rounds together."""
    return float(sum(r[kind]["records"] for r in rounds) / sum(r[kind][by] for r in rounds))


def settle(side: Weir, *, idle: bool = True) -> None:
    """Let what was before go by: a second, and the checkpoint that is still under way if none is to come."""
    time.sleep(INTERVAL)
    if not idle:
        return
    side.wait_for("the end of the last checkpoint", lambda: not pending(side.events(*CHECKPOINTS)))


def pending(events: Iterable[Event]) -> set[int]:
    found: set[int] = set()
    for event in events:
        id = int(event.body["id"])
        found = found | {id} if event.kind == "checkpoint begun" else found - {id}
    return found


def taken(side: Weir, began: float, ended: float) -> dict[str, Any]:
    """What became of the triggers of a portion; one is due each second."""
    begun = [e for e in side.events("checkpoint begun") if began <= at(e) <= ended]
    ids = {e.body["id"] for e in begun}
    side.wait_for(
        "the end of the last checkpoint", lambda: ids.isdisjoint(pending(side.events(*CHECKPOINTS)))
    )
    completed = [e.body for e in side.events("checkpoint completed") if e.body["id"] in ids]
    return {
        "triggers": {
            "due": round((ended - began) / INTERVAL),
            "begun": len(begun),
            "completed": len(completed),
        },
        "seconds": middle(one["seconds"] for one in completed),
        "phases": medians([one["phases"] for one in completed]),
        "queries": {
            name: medians([one["queries"][name]["phases"] for one in completed])
            for name in (completed[0]["queries"] if completed else ())
        },
    }


# duration and size of incremental checkpoints


def incremental(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Two jobs with another number of keys each, changed in turns, a checkpoint after each change."""
    with ExitStack() as stack:
        many, few = (
            stack.enter_context(Changing(folder / str(keys), keys, options.changed))
            for keys in (options.keys, options.few_keys)
        )
        for one in (many, few):
            one.fill()
        turns = 4 if options.taken >= 4 else 1
        for turn in range(turns):
            for one in (many, few) if turn % 2 == 0 else (few, many):
                for _ in range(options.taken // turns):
                    one.change()
    found = {str(one.keys): one.summary() for one in (many, few)}
    large, small = found[str(options.keys)], found[str(options.few_keys)]
    return {
        "changed": options.changed,
        "partitions": PARTITIONS,
        "snapshot_ratio": round(large["snapshot_seconds"] / small["snapshot_seconds"], 2),
        "whole_ratio": round(large["seconds"] / small["seconds"], 2),
        "new_over_full": large["new_over_full"],
        **found,
    }


class Changing:
    """One query with so many keys in its state, and a checkpoint after each portion of changes."""

    def __init__(self, folder: Path, keys: int, changed: int) -> None:
        self.keys = keys
        self._changed = changed
        self._feed = Feed(folder, keyed(keys))
        settings = {
            f"{CHECKPOINTING}.interval": "off",
            f"{CHECKPOINTING}.interval-records": str(changed),
            **UNALIGNED,
            **MAINTENANCE,
        }
        self._side = Weir("diamond", folder, [self._feed.folder, folder / "out", "single"], settings)
        self._before: Manifest | None = None
        self.taken: list[dict[str, Any]] = []

    def __enter__(self) -> Changing:
        self._side.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._side.__exit__(*error)

    def fill(self) -> None:
        """Bring in all keys; then change some until RocksDB has uploaded them."""
        fill = self._feed.prepare(self.keys, 4)
        self._feed.hand_over(fill)
        worked_off(self._side, {"sums": fill.records})
        settle(self._side)
        while not (self._before and uploaded(self._before) == PARTITIONS):
            self.change()
        self.taken.clear()

    def change(self) -> None:
        """Change some keys, each once, and wait for the checkpoint behind it."""
        last = len(self._completed())
        self._feed.hand_over(self._feed.prepare(self._changed, 1))
        self._side.wait_for("a checkpoint", lambda: len(self._completed()) > last)
        event = self._completed()[-1]
        manifest = mf.read(
            open_store(str(self._side.dir)), job_name(self._side.job), CheckpointId(event.body["id"])
        )
        assert manifest is not None
        self._take(event, manifest)
        self._before = manifest

    def summary(self) -> dict[str, Any]:
        found = {
            key: statistics.median(one[key] for one in self.taken)
            for key in ("seconds", "snapshot_seconds", "new_over_full", "new_bytes", "full_bytes")
        }
        kinds = sorted({kind for one in self.taken for kind in one["new_by_kind"]})
        return {
            "checkpoints": len(self.taken),
            **{key: round(value, 4) for key, value in found.items()},
            "slowest_snapshot_seconds": round(max(one["snapshot_seconds"] for one in self.taken), 4),
            "phases": medians([one["phases"] for one in self.taken]),
            "new_bytes_by_kind": {
                kind: {
                    "median": statistics.median(one["new_by_kind"].get(kind, 0) for one in self.taken),
                    "mean": round(statistics.mean(one["new_by_kind"].get(kind, 0) for one in self.taken)),
                    "largest": max(one["new_by_kind"].get(kind, 0) for one in self.taken),
                    "checkpoints": sum(kind in one["new_by_kind"] for one in self.taken),
                }
                for kind in kinds
            },
        }

    def _completed(self) -> list[Event]:
        return self._side.events("checkpoint completed")

    def _take(self, event: Event, manifest: Manifest) -> None:
        known = {file.path for file in self._before.files()} if self._before else set()
        kinds: dict[str, int] = {}
        for file in manifest.files():
            if file.path not in known:
                kinds[kind_of(file.path)] = kinds.get(kind_of(file.path), 0) + file.bytes
        phases = event.body["queries"]["sums"]["phases"]
        self.taken.append(
            {
                "seconds": event.body["seconds"],
                "snapshot_seconds": sum(phases[word] for word in ("listing", "pinning", "copying")),
                "phases": {**event.body["phases"], **phases},
                "new_bytes": manifest.new_bytes,
                "full_bytes": manifest.full_bytes,
                "new_over_full": manifest.new_bytes / manifest.full_bytes,
                "new_by_kind": kinds,
            }
        )


def uploaded(manifest: Manifest) -> int:
    """How many partitions have a snapshot of RocksDB in this checkpoint."""
    return sum(file.path.endswith(".zip") for file in manifest.files())


def kind_of(path: str) -> str:
    """What a file of a checkpoint is: changes, a part of RocksDB's own snapshots, or the rest."""
    if path.endswith(".changelog"):
        return "changelog"
    return "snapshot" if path.endswith((".zip", ".sst")) else "other"


# small things


def medians(several: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    words = dict.fromkeys(word for one in several for word in one)
    return {word: middle(one[word] for one in several if word in one) for word in words}


def middle(values: Iterable[float]) -> float | None:
    found = list(values)
    return round(statistics.median(found), 4) if found else None


def at(event: Event) -> float:
    return datetime.fromisoformat(event.at).timestamp()


if __name__ == "__main__":
    main()
