"""The sizes and names of the house stay what they are: `docs/decisions/0033-sizes-of-the-house.md`."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOM = Path(__file__).parents[2] / "src" / "weir"
TREES = {file.relative_to(ROOM).as_posix(): ast.parse(file.read_text("utf-8")) for file in ROOM.rglob("*.py")}

MOST_LINES = 500
MOST_FIELDS = 15
WIDE = {"Settings", "Checkpoint"}
"""One field for each setting; one for each column in which a checkpoint is shown, as its JSON has them."""
SHARED = {"Java"}
"""py4j looks for this name inside a class that Java calls."""
NOUNS = {"sinks/staging"}
"""Modules that end in "ing" and are named for a thing."""


def classes() -> list[tuple[str, ast.ClassDef]]:
    return [
        (file, node)
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]


def fields(node: ast.ClassDef) -> set[str]:
    """What is declared in the class, and what its methods assign to `self`."""
    declared = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    assigned = {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
        if isinstance(one.value, ast.Name) and one.value.id == "self"
    }
    return declared | assigned


def test_no_class_has_too_many_fields() -> None:
    wide = {
        f"{node.name} in {file}": len(fields(node))
        for file, node in classes()
        if node.name not in WIDE and len(fields(node)) > MOST_FIELDS
    }
    assert not wide


def test_no_two_classes_have_one_name() -> None:
    files = defaultdict(list)
    for file, node in classes():
        files[node.name].append(file)
    assert not {name: where for name, where in files.items() if len(where) > 1 and name not in SHARED}


def test_no_file_is_too_long() -> None:
    lines = {file: (ROOM / file).read_text("utf-8").count("\n") for file in TREES}
    assert not {file: count for file, count in lines.items() if count > MOST_LINES}


def test_modules_are_nouns_or_steps() -> None:
    names = {file.removesuffix(".py") for file in TREES}
    assert not {name for name in names if name.endswith("ing")} - NOUNS
