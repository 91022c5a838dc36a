"""Writes the pages of this folder from the code: `python docs/reference/generate.py`.

cli.md from the commands, settings.md from the settings, errors.md from the error tree, states.md
from the tables of states, rest.md from the description that REST gives of itself.
`tests/docs/test_reference.py` fails when a page is out of date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from weir import errors
from weir.cli import EXIT_CODES, VERBS, load
from weir.clock import Clock
from weir.config import RUNTIME_KEYS, Layer, describe
from weir.monitor.figures import BOUNDS, MEANINGS
from weir.monitor.job import LOST
from weir.protocol import states
from weir.web.app import application
from weir.web.guard import HEADER
from weir.web.site import Site

HERE = Path(__file__).parent
NOTICE = "<!-- written by docs/reference/generate.py; do not edit -->"

JSON_FORMS = {
    "run": "`job`, `state`, `attempt`, `batches` (the last batch of each query); with `-d`: `job`, `state`,"
    " `attempt`, `pid`, `dir`, `log`. A job that ends as FAILED has `error` beside them",
    "list": "`dir`, `jobs`: each with `name`, `state`, `alive` (null: on another machine), `attempt`,"
    " `since`, `started_at`, `uptime_seconds`, `batch` (`query`, `batch`, `rows`, `at`), `query_states`"
    " (how many queries are in each state), `supervised`,"
    " `pid`, `host`, `user`, `driver`, `file`, `advice`",
    "status": "`dir`, all of a job in `list`, `restarts`, `machine_restarts` (those of them that followed a"
    " failure of the machine), `queries` (`query`, `state`, `restart_in_seconds`, `waits_for` (machine: it"
    " starts again as soon as the machine can start a process in time),"
    " `failure` (what it failed with, while it is RESTARTING or FAILED), `run`, `batch`, `at`, `rows`,"
    " `seconds`, `state_rows`, `state_bytes`, `watermark`, `total_rows`, `lag`: Kafka's records that are not"
    " read yet, by topic and partition), `failure` (`at`, `attempt`,"
    " `query`, `what`, `why`, `hint`, `domain`, `error`, `batch`, `stack`), `gave_up`, `recoveries`"
    " (`at`, `attempt`, `query`, `cause`, `seconds`, `parts`, `replayed`: the batch of each query that ran"
    " again, `first`: `query`, `batch`, `rows`), `checkpoint` (the last that completed: `at`, `age_seconds`,"
    " `attempt`, `id`, `alignment`, `trigger`, `full`, `seconds`, `new_bytes`, `full_bytes`), `restored`"
    " (`at`, `attempt`, `checkpoint`, `generation`, `why`, `seconds`), `ended_at` (null: it has not ended, or"
    " nothing recorded it), `state_seconds` (how long it was in each state since its supervisor took it)",
    "top": "`health` (`level`: ok, warn, bad or over, `words`), all of `status`, and in `queries` also"
    " `rate`, `behind` (`count`, `unit`), `watermark_lag_seconds`, `state_growth_bytes_per_hour`,"
    " `batch_seconds` (`min`, `avg`, `p50`, `p90`, `p95`, `p99`, `max`), `durations`, `sources` (`name`,"
    " `rows`, `behind`, `unit`), `operators` (`name`, `rows`, `bytes`, `growth_bytes_per_hour`)",
    "dashboard": "`url`, `dir`, when it begins to serve",
    "cancel": "`job`, `state`, `attempt`",
    "checkpoint": "`job`, `id`, `status`, `seconds`, `new_bytes`, `full_bytes`. One that was aborted has"
    " `error` beside `job`, `id`, `status`",
    "checkpoints": "`job`, `checkpoints`: each with `id`, `status` (pending, completed, aborted or subsumed),"
    " `attempt`, `alignment`, `full`, `trigger`, `begun_at` and `ended_at` (when it was recorded), `seconds`"
    " (from the trigger to the last ack, as the driver measured it), `new_bytes`, `full_bytes`, `reason`,"
    " `phases` (trigger, barrier and ack are seconds after the trigger; complete and notify come"
    " after them and are lengths), `queries` (by name: `batch`, `unaligned`, `new_bytes`, `full_bytes`,"
    " `phases`), `acked` and `missing` (the queries that have acked it and those that have not; null: not"
    " known), `in_flight_rows` and `in_flight_bytes` (what it holds in channels for their readers; null: not"
    " known), `path` (of its manifest, for `weir run -s`; empty when it can't be restored), `copy` (of the"
    " manifest in the copy-dir; empty without one); with `--orphans`: `job`, `orphans` (each with `key` and"
    " `bytes`; null: not known, in an object store), `bytes` (their sum), `under_way` (ids of checkpoints"
    " that are being taken: pins and copies are left out)",
    "stop": "`job`, `state`, `attempt`, and with a savepoint `id`, `path`, `seconds`, `bytes`; with"
    " `--detached`: `job`, `status` (asked)",
    "savepoint": "`job`, `status` (taken, or asked with `--detached`), `id`, `path`, `seconds`, `bytes`; the"
    " last four are null as long as they are not known",
    "savepoint show": "`place`, `bytes`, `file_count`, `verified` (`at`, `files`, `bytes`, `damage`; null:"
    " never), and all of `manifest.json` but `files`",
    "savepoint copy": "`job`, `id`, `from`, `path`, `bytes`",
    "savepoint convert": "`job`, `point`, `plan` as of `weir plan`, `path` (null when nothing was written)",
    "savepoint dispose": "`job`, `id`, `path`, `bytes` (all but `path` are null for remains of one)",
    "savepoints": "`savepoints`, oldest first: each with `path`, `trouble` (why it can't be read), `job`,"
    " `id`, `taken_at`, `taken_by`, `trigger`, `job_file`, `job_version`, `bytes`, `queries` (names),"
    " `verified` (`at`, `files`, `bytes`, `damage`; null: never), `restorable` by the present code (`answer`:"
    " yes, with loss, needs --map, no, unknown; `why`; null when it can't be read)",
    "verify": "`ok`, `checked`: each with `what` (savepoint, checkpoint or live files), `name`, `files`,"
    " `bytes`, `damage` (a list, empty when it is intact), `rows` (of state that was loaded, else null),"
    " `left_out` (state that can't be checked)",
    "plan": "`job`, `point`, `checkpoint`, and `plan` with `overall` and, for each query, the `parts` with "
    "`what`, `old`, `new`, `name`, `verdicts`, `why`, `todo`, `notes`, `lost`",
    "repair": "`job`, `damage` (a list, empty when all is intact), `from` (null when there is nothing to do),"
    " `passed_over`, `queries` (each with `query`, `back_to`, `newest`, `offsets`), `generation` (null when"
    " it is only shown)",
    "restore": "`job`, `point`, `checkpoint`, `generation`, `seconds`, `live` (false: at the next start, and"
    " `seconds` is null); with `--withdraw`: `job`, `withdrawn` (the point), `generation`",
    "state show": "`path`, `query`, `batch`, `operator`, `kind`, `columns`, `count` (of all rows), `rows`"
    " (those shown, by column)",
    "state export": "`path`, `query`, `batch`, `operator`, `kind`, `target`, `format`, `count`",
    "state diff": "`path`, `other`, `query`, `batch`, `operator`, `kind`, `changes` (how many were added,"
    " removed, changed), `columns`, `count`, `rows`; with `--export` instead of the last: `target`, `format`",
    "state edit": "`path`, `place` (of the new savepoint), `before` and `after` (rows)",
    "configure": "`job`, `settings` (by key)",
    "logs": "`job`, `attempt`, `supervisor`, `state`, `files`, `lines`",
    "clean": "`job`, `deleted`, `leftovers` (`kind`, `path`, `bytes`, `key`)",
    "config": "`file`, `settings` (`key`, `value`, `origin`, `default`, `type`, `meaning`, `older`), `spark`"
    " (`key`, `value`, `origin`)",
    "doctor": "`dir`, `ok`, `checks` (`name`, `verdict`: ok, warning or failed, `found`, `todo`)",
}
"""The keys of the object that each verb prints with `--json`; keys may be added, none goes or changes."""


def pages() -> dict[str, str]:
    """Every page of this folder, by file name."""
    made = {
        "cli.md": cli(),
        "settings.md": settings(),
        "errors.md": error_tree(),
        "states.md": state_tables(),
        "rest.md": rest(),
    }
    return {name: "\n".join([NOTICE, *lines]) + "\n" for name, lines in made.items()}


def cli() -> Iterator[str]:
    yield "# The command line\n"
    yield "Jobs are addressed by name. `weir` lists the verbs, `weir VERB --help` describes one.\n"
    yield from _table(["verb", ""], [[_linked(verb), _short(verb)] for verb in VERBS])
    yield "\n## Every verb\n"
    yield (
        "- **Settings**: defaults < weir.yaml < the job file < `WEIR_*` environment < `-D`;"
        " see [settings](settings.md). `--dir` is short for `-D execution.checkpointing.dir=`.\n"
        "- **`--json`** prints one JSON object on standard output and nothing else; notes go to standard"
        ' error. A failure is `{"error": {"what": ..., "why": ..., "hint": ...}}` and an exit code.\n'
        "- **Failures** say what happened, why, and what to do; see [errors](errors.md).\n"
        "- **Completion**: `weir --install-completion` sets it up for bash, zsh or fish. The shell then"
        " completes commands, jobs, settings and their values, checkpoints and savepoints.\n"
    )
    yield "## Exit codes\n"
    yield from _table(["code", "meaning"], [[str(code), text] for code, text in EXIT_CODES.items()])
    for verb in VERBS:
        yield from _verb(verb)


def _linked(verb: str) -> str:
    return f"[`weir {verb}`](#weir-{verb.replace(' ', '-')})"


def _verb(verb: str) -> Iterator[str]:
    command = load(verb)
    text, _, example = command.help.replace("\b\n", "").partition("Example: ")
    example = "\n".join(line.strip() for line in example.strip().splitlines())
    yield f"\n## weir {verb}\n"
    yield text.strip() + "\n"
    yield f"```sh\n{example}\n```\n"
    yield from _table(["", "meaning"], [_parameter(one) for one in command.params if one.name != "help"])
    yield f"\nWith `--json`: {JSON_FORMS[verb]}."


def _parameter(parameter: Any) -> list[str]:
    optional = parameter.param_type_name == "option"
    names = ", ".join(parameter.opts) if optional else str(parameter.metavar)
    value = parameter.metavar or ("N" if parameter.name == "lines" else "")
    shown = f"{names} {value}" if optional and value and not parameter.is_flag else names
    default = f" (default {parameter.default})" if parameter.default not in (None, False) else ""
    return [f"`{shown}`", f"{parameter.help}{default}"]


def _short(verb: str) -> str:
    return str(load(verb).help).partition("\n")[0]


def settings() -> Iterator[str]:
    yield "# Settings\n"
    order = " < ".join(layer.value for layer in Layer)
    yield f"Each layer overrides the one before: {order}."
    yield "`weir config` shows the values in effect in the present directory.\n"
    yield "`spark.*` is passed to Spark unchanged. An unknown key is an error that names the nearest.\n"
    yield "In the environment a key has the prefix `WEIR_` and capitals: `heartbeat.timeout` is"
    yield "`WEIR_HEARTBEAT_TIMEOUT`; in `Job(...)` with underscores: `heartbeat_timeout`.\n"
    yield f"`weir configure` changes {', '.join(f'`{key}`' for key in RUNTIME_KEYS)} on a running job."
    yield "Such a change overrides all other layers, until the supervisor ends.\n"
    rows = [
        [f"`{one.key}`", f"`{one.default}`", one.type, one.meaning + _older(one.older)] for one in describe()
    ]
    yield from _table(["key", "default", "type", "meaning"], rows)


def _older(older: tuple[str, ...]) -> str:
    return f"; older spelling: {', '.join(f'`{one}`' for one in older)}" if older else ""


def rest() -> Iterator[str]:
    yield "# REST\n"
    yield "A running job serves REST at `rest.address` and `rest.port` (http://127.0.0.1:8081), and"
    yield "`weir dashboard` serves it for all jobs of a storage."
    yield "`GET /api/v1/openapi.json` describes it in machine-readable form.\n"
    yield '- **Success** is `{"data": ...}`; a page of a list also has `page`.'
    yield '- **Failure** is `{"error": {"what": ..., "why": ..., "hint": ...}}` with a status of its own.'
    yield "- **Names**: jobs by name, checkpoints by number, savepoints by their path or URL."
    yield "- **Operations**: a call that takes time answers 202 with an operation, whose `status` is running,"
    yield "  done or failed, with `result` or `error`: `GET /api/v1/operations/{id}`. `?wait=30` waits for"
    yield "  the end: 200, or the error. A request that is already running returns the same operation."
    yield "- **Token**: each call carries `Authorization: Bearer <token>`, the token of `rest.token-file`"
    yield "  or else of `~/.local/state/weir/token`. A browser sends a cookie instead, and with changes the"
    yield f"  header `{HEADER}: 1` and no foreign `Origin`. `rest.token-file=off`: the header is enough.\n"
    yield "Keys are those of `--json` on the [command line](cli.md), if there is such a verb.\n"
    for path, methods in openapi()["paths"].items():
        for method, call in methods.items():
            yield from _endpoint(method.upper(), path, call)
    yield "\n## GET /metrics\n"
    yield "For Prometheus; `contrib/grafana.json` is a dashboard for it. Every figure of a job has"
    yield "the label `weir_job`; those of a query also `query`. A histogram has `_bucket` with the"
    yield f"label `le` (seconds: {', '.join(f'{one:g}' for one in BOUNDS)}, +Inf), `_count` and `_sum`.\n"
    yield from _table(["figure", "meaning"], [[f"`{name}`", text] for name, text in MEANINGS.items()])


def openapi() -> dict[str, Any]:
    """The description that REST gives of itself."""
    return application(Site("nowhere", Clock())).openapi()


def _endpoint(method: str, path: str, call: dict[str, Any]) -> Iterator[str]:
    yield f"\n## {method} {path}\n"
    yield f"{call['description']}\n"
    rows = [
        [f"`{one['name']}`", one["in"], one.get("description", "") + _given(one["schema"])]
        for one in call.get("parameters", [])
    ]
    body = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        schema = openapi()["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]
        for name, one in schema["properties"].items():
            rows.append([f"`{name}`", "body", one.get("description", "") + _given(one)])
    if rows:
        yield from _table(["", "in", "meaning"], rows)


def _given(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return f" (default {json.dumps(default)})" if default not in (None, "") else ""


def error_tree() -> Iterator[str]:
    yield "# Errors\n"
    yield "Every failure has a type, from which the supervisor decides whether a restart can help.\n"
    tree = str(errors.__doc__).split("\n\n")[1]
    yield "```text\n" + "\n".join(line.removeprefix("    ") for line in tree.splitlines()) + "\n```\n"
    yield from _table(
        ["error", "fault", "retry", "exit code", "what", "why", "what to do"],
        [_error(kind) for kind in every_error()],
    )


def every_error() -> list[type[errors.WeirError]]:
    """Every error that can be raised, module by module in the order of the tree's imports."""
    branches = (errors.WeirError, errors.UserError, errors.ExternalError, errors.InternalError)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return [kind for kind in kinds if issubclass(kind, errors.WeirError) and kind not in branches]


def _error(kind: type[errors.WeirError]) -> list[str]:
    facts = [f"`{kind.__name__}`", kind.domain.value, "yes" if kind.retry else "no", str(kind.exit_code)]
    return facts + [_form(form) for form in (kind.what_form, kind.why_form, kind.hint_form)]


def _form(form: str) -> str:
    return form.replace("!r", "").replace(":g", "")


def state_tables() -> Iterator[str]:
    yield "# States\n"
    yield "Drawn from the tables in `src/weir/protocol/states.py`.\n"
    yield "## A job\n"
    yield from _diagram(states.JOB, states.JobState.CREATED)
    yield f"\n`weir list` and `weir status` show one more: **{LOST}**. The job was in none of its final"
    yield "states when its supervisor died (kill -9, a crash of the machine). Its driver ends itself within"
    yield "`heartbeat.timeout`; nothing that was committed is lost, and `weir run` resumes the job."
    yield "A question mark after a state (`RUNNING?`) means that the supervisor is on another machine, or was"
    yield "before a reboot: it can't be seen from here, and the state is the last one that it reported."
    yield "A job in a notebook (`job.start`) is RUNNING while it holds its attempt and CANCELED afterwards.\n"
    yield "A job is RUNNING only when all its queries are, or have ended. RESTARTING: it, or one of its"
    yield "queries, waits for a restart. DEGRADED: a query has FAILED for good and the others run, without"
    yield "checkpoints.\n"
    yield "## A query\n"
    yield from _diagram(states.QUERY, states.QueryState.CREATED)
    yield "\n## A checkpoint\n"
    yield "A completed one can be restored.\n"
    yield from _diagram(states.CHECKPOINT, states.CheckpointState.PENDING)


def _diagram(table: Any, first: Any) -> Iterator[str]:
    yield "```mermaid\nstateDiagram-v2"
    yield f"    [*] --> {first.value}"
    for state, moves in table.items():
        for event, target in moves.items():
            yield f"    {state.value} --> {target.value}: {event.value}"
        if not moves:
            yield f"    {state.value} --> [*]"
    yield "```"


def _table(heads: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(_cell(cell) for cell in row) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def main() -> None:
    for name, text in pages().items():
        (HERE / name).write_text(text, "utf-8")
        typer.echo(f"wrote {HERE / name}")


if __name__ == "__main__":
    main()
