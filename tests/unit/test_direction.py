"""Imports go one way only, and Spark stays out of the processes that must be small and quick.

The tables say where each part of the package stands; a new top-level module gets a place in `RANKS`.
Imports are read from the source, at module level and inside functions alike, so nothing has to run;
two tests at the end run the real thing in a process of its own.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec, resolve_name
from itertools import takewhile
from pathlib import Path

import pytest

import weir

SOURCE = Path(__file__).parents[2] / "src"

ROOMS: tuple[str, ...] = (
    "errors ids clock text faults",
    "protocol",
    "config storage link preflight",
    "spark",
    "sinks sources",
    "channel",
    "job",
    "checkpoint",
    "savepoint",
    "state",
    "restore",
    "driver supervisor",
    "monitor",
    "client",
    "cli web testing __main__",
)
"""From the lowest rank: a room imports only lower ones. `docs/architecture.md` shows the same table."""

RANKS = tuple(frozenset(line.split()) for line in ROOMS)

NEIGHBOURS = {
    ("ids", "errors"),
    ("errors", "text"),
    ("preflight", "storage"),
    ("cli", "web"),
    ("__main__", "cli"),
}
"""Within a rank, these and no others; so no two rooms import each other."""

DOORS = {("weir.job.job", "driver"), ("weir.job.job", "restore")}
"""`Job.run` and `Job.start` lead upwards, for the author's sake; only inside a function."""

PROTOCOL_MAY = {"protocol", "ids", "errors", "clock"}
PROTOCOL_MAY_FOREIGN = {"pydantic"}

HEAVY = {"pyspark", "pyarrow", "pandas", "py4j"}
EXTRAS = {"psycopg", "confluent_kafka", "hdfs_native"}
"""What weir must work without; only these parts of it need one of them."""
NEEDS_EXTRA = ("weir.sinks.postgres.", "weir.storage.hadoop")
LATE = HEAVY | EXTRAS | {"fastapi", "obstore"}
"""Only what loads one of these may be imported inside a function."""
WITHOUT_SPARK = {
    *("protocol", "supervisor", "monitor", "client", "cli", "web", "storage", "config", "savepoint"),
    *("ids", "errors", "clock", "faults", "text", "link", "preflight", "__main__"),
}


@dataclass(frozen=True)
class Import:
    """One import: `target` is a module; `where` is "module", "function" or "types"."""

    importer: str
    target: str
    where: str
    line: int

    @property
    def part(self) -> str:
        return part_of(self.target)

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}, imports {self.target}"


def part_of(module: str) -> str:
    """`weir.storage.local` is of the part `storage`; `weir` itself is of the part `weir`."""
    return module.split(".")[1] if "." in module else module


def module_of(file: Path, source: Path = SOURCE) -> str:
    parts = file.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def exists(module: str) -> bool:
    path = SOURCE.joinpath(*module.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports_in(tree: ast.AST, importer: str, package: str, where: str = "module") -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        inner = where
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner = "function"
        elif only_for_types(node):
            inner = "types"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, where, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                inside = f"{origin}.{alias.name}"
                target = inside if origin.startswith("weir") and exists(inside) else origin
                yield Import(importer, target, where, node.lineno)
        else:
            yield from imports_in(node, importer, package, inner)


def imports_of(file: Path) -> list[Import]:
    module = module_of(file)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return list(imports_in(ast.parse(file.read_text("utf-8")), module, package))


FILES = sorted((SOURCE / "weir").rglob("*.py"))
IMPORTS = {module_of(file): imports_of(file) for file in FILES}
EVERY = [one for found in IMPORTS.values() for one in found]
INNER = [one for one in EVERY if one.target.split(".")[0] == "weir" and one.importer != "weir"]
FOREIGN = [one for one in EVERY if one.target.split(".")[0] != "weir"]


def rank(part: str) -> int:
    """The public face `weir` is above everything: only its users import it."""
    return next((number for number, parts in enumerate(RANKS) if part in parts), len(RANKS))


def listed(wrong: list[Import]) -> str:
    return "\n".join(map(str, wrong))


def test_every_part_of_the_package_has_its_place() -> None:
    placed = frozenset({"weir"}).union(*RANKS)
    homeless = {part_of(module) for module in IMPORTS} - placed
    assert not homeless, f"give {sorted(homeless)} a place in RANKS (and, without Spark, in WITHOUT_SPARK)"


def test_no_room_imports_one_of_its_rank_or_above() -> None:
    wrong = [
        one
        for one in INNER
        if part_of(one.importer) != one.part
        and rank(one.part) >= rank(part_of(one.importer))
        and (part_of(one.importer), one.part) not in NEIGHBOURS
        and not ((one.importer, one.part) in DOORS and one.where != "module")
    ]
    assert not wrong, listed(wrong)


def test_only_monitor_reads_the_journal_for_who_looks() -> None:
    """So there is one form of what can be seen, whoever shows it."""
    journal = {"weir.supervisor.journal", "weir.supervisor.history", "weir.supervisor.recovery"}
    wrong = [one for one in INNER if part_of(one.importer) in ("cli", "web") and one.target in journal]
    assert not wrong, listed(wrong)
    readers = [
        file
        for room in ("cli", "web")
        for file in sorted((SOURCE / "weir" / room).rglob("*.py"))
        if "history_of" in file.read_text("utf-8")
    ]
    assert readers == []


def test_the_page_of_the_architecture_has_the_same_ranks() -> None:
    page = (SOURCE.parent / "docs" / "architecture.md").read_text("utf-8")
    table = page.partition("## Rooms\n")[2].partition("```text\n")[2].partition("```")[0]
    assert [line.partition("  ")[0].split() for line in table.splitlines()] == [one.split() for one in ROOMS]


def test_the_protocol_is_pure() -> None:
    inner = [one for one in INNER if part_of(one.importer) == "protocol" and one.part not in PROTOCOL_MAY]
    may = sys.stdlib_module_names | PROTOCOL_MAY_FOREIGN
    foreign = [
        one for one in FOREIGN if part_of(one.importer) == "protocol" and one.target.split(".")[0] not in may
    ]
    assert not inner + foreign, listed(inner + foreign)


def test_spark_is_not_imported_where_it_is_not_used() -> None:
    wrong = [
        one for one in FOREIGN if part_of(one.importer) in WITHOUT_SPARK and one.target.split(".")[0] in HEAVY
    ]
    assert not wrong, listed(wrong)


def loaded_by(module: str) -> dict[str, Import | None]:
    """All modules that importing this one executes, each with the import that brought it."""
    seen: dict[str, Import | None] = {}
    todo: list[tuple[str, Import | None]] = [(module, None)]
    while todo:
        name, cause = todo.pop()
        if name in seen:
            continue
        seen[name] = cause
        todo += [(one.target, one) for one in IMPORTS.get(name, []) if one.where == "module"]
        if "." in name and name.split(".")[0] == "weir":
            todo.append((name.rpartition(".")[0], cause))
    return seen


@pytest.mark.parametrize("module", [name for name in IMPORTS if part_of(name) in WITHOUT_SPARK])
def test_no_chain_of_imports_leads_to_spark(module: str) -> None:
    loaded = loaded_by(module)
    wrong = [cause for name, cause in loaded.items() if name.split(".")[0] in HEAVY and cause]
    assert not wrong, f"{module} comes to load it: {listed(wrong)}"


def test_no_chain_of_imports_leads_to_an_extra() -> None:
    for module in IMPORTS:
        if not module.startswith(NEEDS_EXTRA):
            wrong = [
                cause for name, cause in loaded_by(module).items() if name.split(".")[0] in EXTRAS and cause
            ]
            assert not wrong, f"{module} comes to load it: {listed(wrong)}"


def reason_of(late: Import) -> str:
    """The comment at an import, or at the first of the imports that it stands under."""
    lines = SOURCE.joinpath(*late.importer.split(".")).with_suffix(".py")
    file = lines if lines.exists() else lines.with_suffix("") / "__init__.py"
    above = file.read_text("utf-8").splitlines()[: late.line][::-1]
    block = list(takewhile(lambda line: "import " in line or line.strip().startswith("#"), above))
    return " ".join(line.partition("#")[2].replace("noqa: PLC0415", "").strip() for line in block).strip()


def test_a_late_import_keeps_something_heavy_from_being_loaded_and_says_so() -> None:
    late = [one for one in INNER if one.where == "function"]
    light = [
        one
        for one in late
        if (one.importer, one.part) not in DOORS
        and LATE.isdisjoint(name.split(".")[0] for name in loaded_by(one.target))
    ]
    assert not light, "import them at the top:\n" + listed(light)
    silent = [one for one in late if not reason_of(one)]
    assert not silent, "say at the import what it loads:\n" + listed(silent)


def test_imports_are_found_wherever_they_stand() -> None:
    text = """
import os, pyspark.sql
from weir import errors
from weir.storage import local
from . import paths
if TYPE_CHECKING:
    import pandas
def f():
    with x:
        from pyarrow import fs
class C:
    import py4j
"""
    found = imports_in(ast.parse(text), "weir.storage.example", "weir.storage")
    assert [(one.target, one.where) for one in found] == [
        ("os", "module"),
        ("pyspark.sql", "module"),
        ("weir.errors", "module"),
        ("weir.storage.local", "module"),
        ("weir.storage.paths", "module"),
        ("pandas", "types"),
        ("pyarrow", "function"),
        ("py4j", "module"),
    ]


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    environ |= {"PYTHONPATH": str(SOURCE), "WEIR_EXECUTION_CHECKPOINTING_DIR": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environ, capture_output=True, text=True, timeout=60
    )


REPORT = f"print('heavy:', sorted({HEAVY!r} & set(sys.modules)))"


@pytest.mark.parametrize("module", ["weir.cli", "weir.supervisor", "weir.storage", "weir.protocol"])
def test_importing_it_loads_no_spark(module: str, tmp_path: Path) -> None:
    done = run_python(f"import sys, {module}\n{REPORT}", tmp_path)
    assert done.stdout == "heavy: []\n", done.stderr


def test_weir_works_where_no_extra_is_installed(tmp_path: Path) -> None:
    """As after `pip install weir`: the supervisor, its pages, the driver and the author's names."""
    code = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))
import weir.cli, weir.supervisor.loop, weir.web.app, weir.driver.main
from weir import sinks
try:
    sinks.postgres("postgresql://host/db", "table")
except weir.errors.PreflightError as error:
    print(error.hint)
"""
    done = run_python(code, tmp_path)
    assert done.stdout == "pip install 'weir[postgres]'\n", done.stdout + done.stderr


def test_all_names_of_the_package_are_there() -> None:
    for name in weir.__all__:
        assert getattr(weir, name) is not None and name in dir(weir)
    with pytest.raises(AttributeError, match="no attribute 'sink'"):
        getattr(weir, "sink")  # noqa: B009


@pytest.mark.parametrize("name", ["sinks", "sources"])
def test_a_package_of_public_names_is_found_before_anything_else_is_imported(
    name: str, tmp_path: Path
) -> None:
    done = run_python(f"from weir import {name}; print({name}.__name__)", tmp_path)
    assert done.stdout == f"weir.{name}\n", done.stderr


def test_weir_list_loads_little(tmp_path: Path) -> None:
    """It answers in a third of a second; most of that is Typer, rich and the settings."""
    code = f"""
import sys
from weir.cli import main
sys.argv = ["weir", "list"]
try:
    code = main()
except SystemExit as end:
    code = end.code
slow = ("weir.checkpoint", "weir.savepoint", "weir.spark", "weir.protocol.messages", "obstore", "yaml")
print("exit:", code or 0, [name for name in slow if name in sys.modules])
{REPORT}
"""
    done = run_python(code, tmp_path)
    assert done.stdout.endswith("exit: 0 []\nheavy: []\n"), done.stdout + done.stderr


def test_the_tests_look_at_the_package_that_is_imported() -> None:
    spec = find_spec("weir.errors")
    assert spec is not None
    assert spec.origin == str(SOURCE / "weir" / "errors" / "__init__.py")
