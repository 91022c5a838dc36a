"""What a graph of queries costs and saves, against plain Spark.

    chain    a keyed count over JSON lines as a chain of three queries (parse, filter, count), over
             the same in one plain query: records/s                                  wanted >= 0.4
    fan_out  a frame with a costly Python function, feeding three sinks through one stream, over
             three plain queries that each compute it: records/s                     wanted >= 1.5

Each side is a driver process of its own with the same Spark settings; the sides take turns. weir's
has its checkpoints every 10 s, as by default. Before the clock starts, each side works off a first
portion of the input. The clock runs from the moment at which the rest is there to the end of the
batch that has read its last record.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sides.feed import Feed, keyed, lines
from sides.processes import Plain, Weir, cpu_seconds, end_on_sigterm, worked_off

RESULT = Path(__file__).parent / "results" / "graph.json"
PARTS = ("chain", "fan_out")
KEYS = 100_000
SINKS = ("low", "middle", "high")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000, help="of the chain")
    parser.add_argument("--files", type=int, default=20, help="a file is a batch of the source")
    parser.add_argument("--costly", type=int, default=1_200_000, help="records of the costly function")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=PARTS, help="the rest of the result file stays")
    parser.add_argument("--quick", action="store_true", help="few records, one round; writes no file")
    options = parser.parse_args()
    end_on_sigterm()
    if options.quick:
        options.records, options.costly, options.files, options.rounds = 200_000, 20_000, 4, 1
    report = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for part in [options.only] if options.only else PARTS:
        load = os.getloadavg()[0]
        records = options.records if part == "chain" else options.costly
        rounds = [one_round(part, records, options.files, number) for number in range(options.rounds)]
        report[part] = {"records": records, "load_before": round(load, 2), **summary(rounds)}
        print(part, json.dumps(report[part], indent=1), flush=True)
        if not options.quick:
            RESULT.parent.mkdir(exist_ok=True)
            RESULT.write_text(json.dumps(report, indent=1) + "\n")


def one_round(part: str, records: int, files: int, number: int) -> dict[str, dict[str, Any]]:
    """Both sides, the other one first in every second round."""
    found = {}
    for name in ("weir", "plain") if number % 2 == 0 else ("plain", "weir"):
        with tempfile.TemporaryDirectory() as folder:
            found[name] = run(part, name, Path(folder), records, files)
    return found


def run(part: str, name: str, folder: Path, records: int, files: int) -> dict[str, Any]:
    write, suffix = (lines(KEYS), ".json") if part == "chain" else (keyed(KEYS), ".parquet")
    feed = Feed(folder, write, suffix)
    warm_up, rest = feed.prepare(2 * records // files, 2), feed.prepare(records, files)
    args = [feed.folder, folder / "out"]
    start: Callable[..., Any] = Weir if name == "weir" else Plain
    with start(part, folder, args) as side:
        feed.hand_over(warm_up)
        worked_off(side, rows_of(part, name, warm_up.records))
        used, began = cpu_seconds(side), feed.hand_over(rest)
        ended = worked_off(side, rows_of(part, name, warm_up.records + rest.records), began)
        used = cpu_seconds(side) - used
        batches = [b for b in side.batches() if b.ended_at > began]
    return {
        "records_per_second": round(rest.records / (ended - began)),
        "cpu_seconds": round(used, 2),
        "batches": {one: sum(b.query == one for b in batches) for one in sorted({b.query for b in batches})},
    }


def rows_of(part: str, name: str, records: int) -> dict[str, int]:
    """How many rows the last queries read when so many records were worked off."""
    if part == "fan_out":
        return dict.fromkeys(SINKS, records)
    return {"counts": records - -(-records // 10) if name == "weir" else records}


def summary(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    rates = [{name: one["records_per_second"] for name, one in found.items()} for found in rounds]
    ratios = [rate["weir"] / rate["plain"] for rate in rates]
    by_cpu = [found["plain"]["cpu_seconds"] / found["weir"]["cpu_seconds"] for found in rounds]
    return {
        "weir": round(statistics.median(rate["weir"] for rate in rates)),
        "plain": round(statistics.median(rate["plain"] for rate in rates)),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratio_by_cpu": round(statistics.median(by_cpu), 3),
        "ratios_by_cpu": [round(ratio, 3) for ratio in by_cpu],
        "rounds": rounds,
    }


if __name__ == "__main__":
    main()
