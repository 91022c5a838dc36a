"""A real Prometheus scrapes a played storage: the labels that it keeps, and the alerts that fire.

Skipped where no Prometheus is installed (Debian: `apt-get install prometheus`).
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from tests.fake_job import FakeJob
from tests.web_site import checkpointed, described, served, site

PROGRAM = shutil.which("prometheus")
RULES = Path(__file__).parents[2] / "contrib" / "prometheus-rules.yml"
PATIENCE = 60.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PROGRAM is None, reason="no Prometheus is installed here: apt-get install prometheus"),
]


class Prometheus:
    """A server of its own on a free port of this machine."""

    def __init__(self, folder: Path, target: str) -> None:
        folder.mkdir()
        rules = RULES.read_text("utf-8").replace("for: 1m", "for: 1s")
        (folder / "rules.yml").write_text(rules)
        (folder / "prometheus.yml").write_text(
            json.dumps(  # JSON is YAML
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": ["rules.yml"],
                    "scrape_configs": [{"job_name": "weir", "static_configs": [{"targets": [target]}]}],
                }
            )
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._api = f"http://127.0.0.1:{port}/api/v1"
        listen, data = f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder / 'data'}"
        config = f"--config.file={folder / 'prometheus.yml'}"
        self._log = open(folder / "log", "wb")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen([str(PROGRAM), config, listen, data], stderr=self._log)

    def series(self, expression: str) -> list[dict[str, str]]:
        found = self._get(f"/query?query={quote(expression)}")
        return [one["metric"] for one in found["result"]] if found else []

    def firing(self) -> dict[str, dict[str, str]]:
        """The labels of each alert that fires, by its name."""
        found = self._get("/alerts")
        alerts = found["alerts"] if found else []
        return {one["labels"]["alertname"]: one["labels"] for one in alerts if one["state"] == "firing"}

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            with urlopen(self._api + path, timeout=10) as answer:
                data: dict[str, Any] = json.load(answer)["data"]
                return data
        except OSError:  # it is not up yet
            return None

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


def until(seen: Callable[[], Any]) -> Any:
    """What is seen, once it is something."""
    last = time.monotonic() + PATIENCE
    while not (found := seen()):
        assert time.monotonic() < last, "not seen in time"
        time.sleep(0.2)  # between two looks at another process
    return found


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    store = tmp_path / "jobs"
    store.mkdir()
    return checkpointed(described(FakeJob(store).state("STARTING").state("RUNNING").batch(41)), 1, 3)


@pytest.fixture
def scraped(tmp_path: Path, job: FakeJob) -> Iterator[tuple[Prometheus, Callable[[], None]]]:
    """Prometheus over a dashboard, and what ends the dashboard."""
    serving = served(site(job.dir))
    prometheus = Prometheus(tmp_path / "prometheus", serving.__enter__().removeprefix("http://"))
    ended: list[bool] = []

    def end() -> None:
        if not ended:
            ended.append(True)
            serving.__exit__(None, None, None)

    try:
        yield prometheus, end
    finally:
        prometheus.end()
        end()


def test_prometheus_keeps_the_name_of_the_job_and_its_alerts_fire(
    job: FakeJob, scraped: tuple[Prometheus, Callable[[], None]]
) -> None:
    prometheus, end_dashboard = scraped
    (up,) = until(lambda: prometheus.series("weir_job_up == 1"))
    assert up["weir_job"] == "wordcount" and up["job"] == "weir" and "exported_job" not in up
    assert until(lambda: prometheus.series("weir_build_info"))
    until(lambda: not prometheus.firing())  # before the first scrape there was nothing, which is an alert
    job.killed()
    fired = until(lambda: prometheus.firing().get("WeirJobFailed"))
    assert (fired["weir_job"], fired["state"]) == ("wordcount", "LOST")
    end_dashboard()
    assert until(lambda: prometheus.firing().get("WeirNotScraped"))


def test_a_percentile_of_checkpoints_is_recorded(
    job: FakeJob, scraped: tuple[Prometheus, Callable[[], None]]
) -> None:
    prometheus, _ = scraped
    until(lambda: prometheus.series("weir_checkpoint_duration_seconds_bucket"))
    ids = iter(range(4, 10_000))

    def recorded() -> list[dict[str, str]]:
        checkpointed(job, id := next(ids), id)
        return prometheus.series("weir:checkpoint_duration_seconds:p95 > 0")

    assert until(recorded) == [{"__name__": "weir:checkpoint_duration_seconds:p95", "weir_job": "wordcount"}]
