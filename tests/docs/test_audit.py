"""The audit page names the tests that show each finding: they exist, and so do the files that it names."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "audit.md"

NAMED = re.compile(r"(tests/[\w/.]+\.py)|::(test_\w+)")
"""A file, or a test of the file that the line named last."""

SOURCE = re.compile(r"`([\w/]+/\w+\.py)`")


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def named() -> list[tuple[int, str, str]]:
    """Line, file and test ("" for a file alone) of everything that the page names."""
    found = []
    for number, line in enumerate(PAGE.read_text("utf-8").splitlines(), 1):
        file = ""
        for path, test in NAMED.findall(line):
            file = path or file
            found.append((number, file, test))
    return found


def test_every_test_that_the_audit_names_exists() -> None:
    missing = [
        f"{PAGE.name}:{number}: {file}::{test}"
        for number, file, test in named()
        if not file or not (ROOT / file).is_file() or (test and test not in names_in(ROOT / file))
    ]
    assert missing == []
    assert len(named()) > 200


def test_every_file_of_the_source_that_the_audit_names_exists() -> None:
    files = SOURCE.findall(PAGE.read_text("utf-8"))
    gone = [
        name for name in files if not any((ROOT / top / name).exists() for top in ("", "src", "src/weir"))
    ]
    assert gone == []
