"""`weir state`: look into the state of a query, compare it, export it, edit it.

Needs Spark, which a process of its own has (`client/spark.py`); this one only asks and shows.
"""

from __future__ import annotations

import json as _json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from weir.cli import say
from weir.cli.options import AsJson, Conf, Directory, HereMaster, SettingsFile, directory, session
from weir.client.spark import ask_state
from weir.storage.open import absolute, is_local

At = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A savepoint; JOB for its live files; JOB/chk-41 for a checkpoint; or any checkpointLocation.",
    ),
]
Other = Annotated[str, typer.Argument(metavar="OTHER", help="What to compare it with, in the same forms.")]
Savepoint = Annotated[str, typer.Argument(metavar="PATH", help="The savepoint's directory or URL.")]
NewFolder = Annotated[
    str, typer.Argument(metavar="DIR", help="Directory or URL; the new savepoint gets a folder there.")
]
Query = Annotated[
    str | None, typer.Option("--query", metavar="NAME", help="Which query, if there are several.")
]
Number = Annotated[
    int, typer.Option("--operator", metavar="N", help="Which operator; 0 is the one nearest the sink.")
]
Store = Annotated[
    str | None,
    typer.Option("--store", metavar="NAME", help="For a join: one of its stores, as Spark keeps it."),
]
Side = Annotated[
    Literal["left", "right"] | None, typer.Option("--side", help="For a join: the rows of one side.")
]
Var = Annotated[
    str | None,
    typer.Option("--var", metavar="NAME", help="For transformWithState: a state variable, or 'timers'."),
]
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="SQL", help="Only rows that match this condition, like \"key.k = 'a'\"."),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", help="How many rows to show at most.")]
Form = Annotated[Literal["parquet", "json"], typer.Option("--format", help="The form of the files.")]
Export = Annotated[
    str | None, typer.Option("--export", metavar="DIR", help="Write all differences to this folder instead.")
]

_READS = "reading the state with Spark"
_WRITES = "writing the state with Spark"


def show(
    path: At,
    query: Query = None,
    operator: Number = 0,
    store: Store = None,
    side: Side = None,
    var: Var = None,
    where: Where = None,
    limit: Limit = 20,
    conf: Conf = None,
    master: HereMaster = None,
    dir: Directory = None,
    config: SettingsFile = None,
    json: AsJson = False,
) -> None:
    """Show the state of an operator: a row for each key.

    Starts Spark, on this machine unless --master names another one. Nothing is changed. Live files of
    a running job can be shown too; they are those of its last committed batch.

    \b
    Example: weir state show wordcount --where "key.word = 'weir'"
    """
    body = ask(
        _READS,
        {"do": "show", "path": _place(path, dir, config), "limit": limit},
        _reading(query, operator, store, side, var, where),
        session(conf, master, config),
    )
    if json:
        say.say_json({"path": path, **body})
        return
    _say_table(body)
    shown, count = len(body["rows"]), body["count"]
    rows = f"{count} rows" if shown == count else f"{shown} of {count} rows"
    say.say(f"{rows} of {_name(body)}, batch {body['batch']}")


def export(
    path: At,
    target: Annotated[str, typer.Argument(metavar="DIR", help="The folder to write; it must not exist yet.")],
    query: Query = None,
    operator: Number = 0,
    store: Store = None,
    side: Side = None,
    var: Var = None,
    where: Where = None,
    format: Form = "parquet",
    conf: Conf = None,
    master: HereMaster = None,
    dir: Directory = None,
    config: SettingsFile = None,
    json: AsJson = False,
) -> None:
    """Write the state of an operator to files.

    Parquet, or JSON with one row a line.

    \b
    Example: weir state export savepoints/orders-7 totals.parquet --query totals
    """
    body = ask(
        _READS,
        {"do": "export", "path": _place(path, dir, config), "target": absolute(target), "format": format},
        _reading(query, operator, store, side, var, where),
        session(conf, master, config),
    )
    if json:
        say.say_json({"path": path, **body})
        return
    say.say(f"{body['count']} rows of {_name(body)}, batch {body['batch']}: {body['target']}")


def diff(
    path: At,
    other: Other,
    query: Query = None,
    operator: Number = 0,
    store: Store = None,
    side: Side = None,
    var: Var = None,
    where: Where = None,
    limit: Limit = 20,
    target: Export = None,
    format: Form = "parquet",
    conf: Conf = None,
    master: HereMaster = None,
    dir: Directory = None,
    config: SettingsFile = None,
    json: AsJson = False,
) -> None:
    """Compare two states of an operator by key.

    A row for each key that was added, removed or changed, with its value before and after.

    \b
    Example: weir state diff savepoints/orders-7 savepoints/orders-9 --query totals
    """
    body = ask(
        _READS,
        {
            "do": "diff",
            "path": _place(path, dir, config),
            "other": _place(other, dir, config),
            "limit": limit,
            "target": absolute(target) if target else None,
            "format": format,
        },
        _reading(query, operator, store, side, var, where),
        session(conf, master, config),
    )
    if json:
        say.say_json({"path": path, "other": other, **body})
        return
    if "rows" in body:
        _say_table(body)
    counts = ", ".join(f"{count} {change}" for change, count in sorted(body["changes"].items()))
    where_to = f": {body['target']}" if target else ""
    say.say(f"{_name(body)}: {counts or 'no difference'}{where_to}")


def edit(
    path: Savepoint,
    target: NewFolder,
    query: Query = None,
    operator: Number = 0,
    delete: Annotated[
        str | None,
        typer.Option("--delete", metavar="SQL", help="Delete the keys that match this condition."),
    ] = None,
    replace: Annotated[
        str | None,
        typer.Option("--replace", metavar="FILES", help="Files with new values for existing keys."),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option("--seed", metavar="FILES", help="Files with all rows of an operator that has none."),
    ] = None,
    format: Form = "parquet",
    conf: Conf = None,
    master: HereMaster = None,
    config: SettingsFile = None,
    json: AsJson = False,
) -> None:
    """Make a new savepoint with edited state.

    In the new one, one operator has fewer keys, other values, or rows where it had none. The old
    savepoint is not changed. The files of --replace and --seed have the columns that 'weir state
    export' writes, or those of key and value by their names. For a join and for transformWithState
    only complete keys can be deleted. What was written is read back and compared.

    \b
    Example: weir state edit saved/orders-7 edited --delete "key.customer = 'test'"
    """
    body = ask(
        _WRITES,
        {
            "do": "edit",
            "path": absolute(path),
            "target": absolute(target),
            "query": query,
            "operator": operator,
            "delete": delete,
            "replace": absolute(replace) if replace else None,
            "seed": absolute(seed) if seed else None,
            "format": format,
        },
        session(conf, master, config),
    )
    if json:
        say.say_json({"path": path, **body})
        return
    say.say(f"{body['before']} rows before, {body['after']} now: {body['place']}")


def ask(text: str, *parts: Mapping[str, Any]) -> dict[str, Any]:
    """What the process with Spark answers to a request; its failure is this command's failure."""
    request = {key: value for part in parts for key, value in part.items()}
    return ask_state(request, lambda: say.waiting(text))


def _place(path: str, dir: str | None, config: Path | None) -> str:
    """A path as it is; where nothing is there, below the directory of the jobs."""
    local, folder = Path(path), Path(path).parent
    # of a job that is there, or its manifest
    is_checkpoint = folder.name == "checkpoints" or (folder / "checkpoints").is_dir()
    if not is_local(path) or local.exists() or is_checkpoint:
        return absolute(path)
    return f"{absolute(directory(dir, config))}/{path}"


def _reading(
    query: str | None, operator: int, store: str | None, side: str | None, var: str | None, where: str | None
) -> dict[str, Any]:
    names = {"query": query, "store": store, "side": side, "var": var, "where": where}
    return {**names, "operator": operator}


def _say_table(body: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in body["columns"]:
        table.add_column(column, overflow="fold")
    for row in body["rows"]:
        table.add_row(*(_text(row.get(column)) for column in body["columns"]))
    if body["rows"]:
        say.out.print(table)


def _text(value: Any) -> str:
    """A struct as its fields; anything else as JSON."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={_text(one)}" for name, one in value.items()) or "()"
    plain = isinstance(value, str) and value.isprintable()
    return escape(value if plain else _json.dumps(value, ensure_ascii=False))


def _name(body: dict[str, Any]) -> str:
    return f"operator {body['operator']} ({body['kind']}) of query {body['query']}"
