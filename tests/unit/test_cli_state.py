"""`weir state`: what it asks of the process with Spark, and how it shows the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fake_job import Weir
from weir.cli import state as verbs

ABOUT = {"query": "counts", "batch": 41, "operator": 0, "kind": "stateStoreSave"}


class Spark:
    """Stands for the process with Spark: keeps what it is asked, answers what it is told to."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.answer: dict[str, Any] = {}

    def __call__(self, _text: str, *parts: dict[str, Any]) -> dict[str, Any]:
        self.asked = {key: value for part in parts for key, value in part.items()}
        return self.answer


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    made = Spark()
    monkeypatch.setattr(verbs, "ask", made)
    return made


def test_rows_are_shown_as_a_table_whatever_is_in_them(weir: Weir, spark: Spark) -> None:
    rows = [
        {"key": {"word": "[bold]weir[/]"}, "value": {"count": 7}, "partition_id": 0},
        {"key": {"word": "\x1b[2J"}, "value": {"count": None}, "partition_id": 1},
        {"key": {}, "value": None, "partition_id": 1},
    ]
    spark.answer = {**ABOUT, "columns": ["key", "value", "partition_id"], "count": 9, "rows": rows}
    answer = weir("state", "show", "wordcount")
    assert answer.out.splitlines()[0].split() == ["key", "value", "partition_id"]
    assert "word=[bold]weir[/]" in answer.out and "count=7" in answer.out
    assert "\x1b" not in answer.out and r'word="\u001b[2J"' in answer.out
    assert answer.out.endswith("3 of 9 rows of operator 0 (stateStoreSave) of query counts, batch 41\n")
    assert weir("state", "show", "wordcount", "--json").json == {"path": "wordcount", **spark.answer}


def test_a_path_is_a_place_that_is_there_else_a_job(weir: Weir, spark: Spark, tmp_path: Path) -> None:
    spark.answer = {**ABOUT, "columns": [], "count": 0, "rows": []}

    def place(*arguments: str) -> Path:
        weir("state", "show", *arguments)
        return Path(spark.asked["path"])

    (tmp_path / "weir-data/wordcount/checkpoints").mkdir(parents=True)
    (tmp_path / "saved").mkdir()
    assert place("wordcount") == tmp_path / "weir-data/wordcount"
    assert place("wordcount/chk-41") == tmp_path / "weir-data/wordcount/chk-41"
    assert place("weir-data/wordcount/chk-41") == tmp_path / "weir-data/wordcount/chk-41"
    assert place("weir-data/wordcount/checkpoints/chk-41.json").name == "chk-41.json"
    assert place("saved") == tmp_path / "saved"
    assert place("wordcount", "--dir", "elsewhere") == tmp_path / "elsewhere/wordcount"
    (tmp_path / "other.yaml").write_text("execution.checkpointing.dir: others\n")
    assert place("wordcount", "--config", "other.yaml") == tmp_path / "others/wordcount"
    weir("state", "show", "s3://bucket/saved/wordcount-7")
    assert spark.asked["path"] == "s3://bucket/saved/wordcount-7"


def test_all_that_was_said_reaches_the_process(weir: Weir, spark: Spark, tmp_path: Path) -> None:
    spark.answer = {**ABOUT, "target": "rows", "format": "json", "count": 3}
    given = ["--query", "counts", "--operator", "1", "--var", "seen", "--where", "key.k = 'a'"]
    answer = weir("state", "export", "saved", "rows", *given, "--format", "json", "--conf", "spark.x=1")
    assert answer.out.startswith("3 rows of operator 0")
    wanted: dict[str, Any] = {"do": "export", "target": str(tmp_path / "rows"), "format": "json"}
    wanted |= {
        "query": "counts",
        "operator": 1,
        "var": "seen",
        "store": None,
        "side": None,
        "where": "key.k = 'a'",
    }
    assert wanted.items() <= spark.asked.items()
    assert spark.asked["settings"] == {"spark.x": "1", "spark.master": "local[*]"}

    spark.answer = {"place": "/edited/job-1-edited", "before": 9, "after": 2}
    answer = weir("state", "edit", "saved", "edited", "--delete", "key.k = 'a'", "--master", "local[1]")
    assert answer.out == "9 rows before, 2 now: /edited/job-1-edited\n"
    assert spark.asked["settings"] == {"spark.master": "local[1]"}
    assert (spark.asked["delete"], spark.asked["seed"]) == ("key.k = 'a'", None)


def test_differences_are_counted(weir: Weir, spark: Spark) -> None:
    spark.answer = {**ABOUT, "changes": {}, "columns": ["key"], "count": 0, "rows": []}
    assert weir("state", "diff", "a", "b").out.endswith("of query counts: no difference\n")
    spark.answer = {**ABOUT, "changes": {"removed": 2, "added": 1}, "target": "/gone", "count": 3}
    assert weir("state", "diff", "a", "b", "--export", "gone").out.endswith(": 1 added, 2 removed: /gone\n")


def test_what_is_asked_for_wrongly_is_told_without_spark(weir: Weir, tmp_path: Path) -> None:
    answer = weir("state", "show", "nowhere")
    assert answer.code == 2 and "nowhere can't be read" in answer.err
    assert "there is no such place" in answer.err and "<dir>/<job>/chk-<number>" in answer.err
    answer = weir("state", "show", "nowhere", "--conf", "heartbeat.timeout=3s", "--json")
    assert answer.code == 2 and "spark.* keys only" in answer.json["error"]["why"]
    answer = weir("state")
    assert answer.code == 2 and "did you mean 'weir state show' or 'weir state export'" in answer.err


def test_a_process_that_dies_is_a_failure_with_its_last_words(
    weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\ncat >/dev/null\necho no room left\nexit 137\n")
    broken.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(broken))
    answer = weir("state", "show", "nowhere", "--json")
    assert answer.code == 4 and "no room left" in answer.err
    assert answer.json["error"]["what"] == "the process with Spark ended with exit code 137"
