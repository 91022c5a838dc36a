"""The walks on the architecture page: short enough to read, and every file is where the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
WALKS = {"batch": 20, "checkpoint": 15, "restore": 20}
"""How many files each may touch. A restore into changed code was spread over 47 before it had a room."""


@pytest.mark.parametrize(("name", "most"), WALKS.items())
def test_a_walk_touches_few_files_and_all_of_them_are_there(name: str, most: int) -> None:
    page = (DOCS / "architecture.md").read_text("utf-8")
    walk = re.split(rf"^## The walk of a {name}$", page, flags=re.M)[1].partition("\n## ")[0]
    steps = [int(number) for number in re.findall(r"^(\d+)\. ", walk, flags=re.M)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 7
    files = set(re.findall(r"\]\((\.\./src/[^)]+)\)", walk))
    assert all((DOCS / file).is_file() for file in files), sorted(files)
    assert 7 <= len(files) <= most, f"{len(files)} files"
