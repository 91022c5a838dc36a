"""`python -m weir.state RESULT`: what the command line asks, in a process that has Spark.

The request is a JSON object on standard input; so is the result, written into a file, because what Spark
and its JVM print must not come in between. An error of weir's comes out as what / why / hint and its
exit code.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from weir.config import resolve
from weir.errors import WeirError, error_form
from weir.spark import session
from weir.spark.failure import from_exception, shows_output
from weir.state.edit import edit
from weir.state.load import load
from weir.state.point import StatePoint, locate, unreadable
from weir.state.read import diff, export, frame_of, options_of

Request = dict[str, Any]


def main() -> None:
    """Answer one request."""
    request, result = json.load(sys.stdin), Path(sys.argv[1])
    try:
        answer = _answer(request)
    except Exception as error:
        answer = {"error": _error_of(error)}
    result.write_text(json.dumps(answer))


def _answer(request: Request) -> dict[str, Any]:
    file = Path(request["config"]) if request["config"] else None
    config = resolve(file=file, environ=os.environ, overrides=request["settings"])
    points = _points(request)  # what is not there need not wait for Spark
    spark = session.build(config, "weir state")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        return _DO[request["do"]](spark, request, points)
    finally:
        spark.stop()


def _points(request: Request) -> list[StatePoint]:
    if request["do"] not in ("show", "export", "diff"):
        return []
    paths = [request[name] for name in ("path", "other") if name in request]
    points = [locate(path, request["query"], _scratch) for path in paths]
    for point in points:
        options_of(point, request["operator"], **_of(request))
    return points


def _of(request: Request) -> dict[str, str | None]:
    """Which part of an operator's state."""
    return {name: request[name] for name in ("store", "side", "var")}


def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="weir-state-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _show(spark: SparkSession, request: Request, points: list[StatePoint]) -> dict[str, Any]:
    frame = _read(spark, request, points[0])
    return {**_about(points[0], request), **_table(frame, request["limit"])}


def _export(spark: SparkSession, request: Request, points: list[StatePoint]) -> dict[str, Any]:
    frame = _read(spark, request, points[0])
    return {**_about(points[0], request), **_exported(frame, request)}


def _diff(spark: SparkSession, request: Request, points: list[StatePoint]) -> dict[str, Any]:
    before, after = (_read(spark, request, point) for point in points)
    found = diff(before, after, "row" if request["side"] else "key").persist()
    counts = {row["change"]: row["count"] for row in found.groupBy("change").count().collect()}
    body = {**_about(points[0], request), "changes": counts}
    return body | (_exported(found, request) if request["target"] else _table(found, request["limit"]))


def _edit(spark: SparkSession, request: Request, _: list[StatePoint]) -> dict[str, Any]:
    def given(name: str) -> DataFrame | None:
        file = request[name]
        form = "json" if request["format"] == "json" else "parquet"
        return spark.read.format(form).load(file) if file else None

    edited = edit(
        spark,
        request["path"],
        request["target"],
        request["query"],
        request["operator"],
        delete=request["delete"],
        replace=given("replace"),
        seed=given("seed"),
    )
    return {"place": edited.place, "before": edited.before, "after": edited.after}


def _load(spark: SparkSession, request: Request, _: list[StatePoint]) -> dict[str, Any]:
    found = []
    for path in request["paths"]:
        known = {
            query: {int(id): rows for id, rows in one.items()} for query, one in request["rows"][path].items()
        }
        found.append(asdict(load(spark, path, _scratch, known)))
    return {"loaded": found}


_DO: dict[str, Callable[[SparkSession, Request, list[StatePoint]], dict[str, Any]]] = {
    "show": _show,
    "export": _export,
    "diff": _diff,
    "edit": _edit,
    "load": _load,
}


def _read(spark: SparkSession, request: Request, point: StatePoint) -> DataFrame:
    frame = frame_of(spark, point, request["operator"], **_of(request))
    try:
        return frame.where(request["where"]) if request["where"] else frame
    except AnalysisException as error:
        todo = f"the columns are {frame.schema.simpleString()}"
        reason = f"the condition can't be used: {_first_line(error)}"
        raise unreadable(point.path, point.query, reason, todo) from error


def _about(point: StatePoint, request: Request) -> dict[str, Any]:
    operator = point.operator(request["operator"])
    facts = {"query": point.query, "batch": int(point.batch), "operator": operator.id}
    return {**facts, "kind": operator.kind}


def _table(frame: DataFrame, limit: int) -> dict[str, Any]:
    rows = frame.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("row"))
    shown = [json.loads(row["row"]) for row in rows.limit(limit).collect()]
    return {"columns": frame.columns, "count": frame.count(), "rows": shown}


def _exported(frame: DataFrame, request: Request) -> dict[str, Any]:
    frame = frame.persist()
    export(frame, request["target"], request["format"])
    return {"target": request["target"], "format": request["format"], "count": frame.count()}


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _error_of(error: Exception) -> dict[str, Any]:
    if isinstance(error, WeirError):
        return {**error_form(error), "exit_code": error.exit_code, "log": shows_output(error)}
    if isinstance(error, AnalysisException):  # a folder that is there already, files that are not
        return {"what": "Spark refuses it", "why": _first_line(error), "hint": "", "exit_code": 2}
    failure = from_exception(error, "")
    hint = "what Spark printed is above"
    return {**error_form(failure), "hint": hint, "exit_code": failure.exit_code, "log": True}


if __name__ == "__main__":
    main()
