"""What the verbs that resume from a checkpoint or savepoint, or plan it, take in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.cli.options import pairs
from weir.errors import BadValueError
from weir.protocol.offsets import check_form
from weir.restore.request import may_be_claimed
from weir.storage.open import is_local, local_path

AcceptDuplicates = Annotated[
    bool,
    typer.Option("--accept-duplicates", help="Allow output that can't be rewound to be delivered again."),
]
AllowDropped = Annotated[
    bool,
    typer.Option(
        "-n", "--allow-non-restored-state", help="On restore: allow state that no operator takes to be lost."
    ),
]
Maps = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="QUERY/OLD=NEW",
        help="On restore: which operator becomes which (@OLD for a source; NEW may be none, or QUERY/NEW"
        " of another query). OLD=NEW alone renames a query. Repeatable.",
    ),
]
SetOffsets = Annotated[
    list[str] | None,
    typer.Option(
        "--set-offsets",
        metavar="QUERY/SOURCE=WHERE",
        help="On restore: where a source (its name, or @N) resumes: earliest, latest, timestamp:TIME, initial"
        " (from its beginning, as its options say) or a JSON offset. Repeatable.",
    ),
]
Parallelism = Annotated[
    int | None,
    typer.Option(
        "--parallelism", metavar="N", help="Partitions of keyed state; on restore, the state is rescaled."
    ),
]
Backend = Annotated[
    str | None,
    typer.Option(
        "--state-backend", metavar="NAME", help="rocksdb or hashmap; on restore, the state is converted."
    ),
]
Claim = Annotated[
    bool,
    typer.Option(
        "--claim/--no-claim",
        help="On restore: delete the savepoint when a later checkpoint subsumes it.",
    ),
]


def as_point(text: str) -> str:
    """As the job understands it, wherever it runs: a file is named from the root."""
    if text.isdigit():
        return f"chk-{int(text)}"
    return str(Path(local_path(text)).absolute()) if elsewhere(text) and is_local(text) else text


def elsewhere(point: str) -> bool:
    """Whether it is a place outside of the job: a manifest in a copy-dir, or a savepoint."""
    return "/" in point or point.startswith("file:") or point.endswith(".json") or Path(point).is_dir()


def check_claim(claim: bool, point: str | None) -> None:
    """Refuse to claim what can't be claimed; `point` as `as_point` gives it, None for the live files."""
    if claim and (point is None or not may_be_claimed(point)):
        reason = "a checkpoint already belongs to the job, and is deleted when newer ones subsume it"
        if point is None:
            reason = "it needs -s with a savepoint"
        raise BadValueError(key="--claim", value=point or "true", origin="the command line", reason=reason)


def offsets_of(set_offsets: list[str] | None) -> dict[str, str]:
    """What is asked of sources, as far as that can be checked without the job."""
    given = pairs("--set-offsets", set_offsets)
    check_form(given)
    return given


def shape_of(parallelism: int | None, backend: str | None) -> dict[str, str]:
    """The settings that give state another shape."""
    given = {"parallelism.default": parallelism, "state.backend.type": backend}
    return {key: str(value) for key, value in given.items() if value is not None}
