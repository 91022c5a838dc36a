"""What a user reads is in plain words: those that the glossary replaced do not come back.

Read are the pages of `docs/` (the reference pages among them: every help text, setting, error form and call
of REST), the README, the changelog and their like, the web pages, and every message in the source. Code,
names and links are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

BETTER = {
    r"behind": "after; lag",
    r"whole(?! number| job| process)": "complete, intact, full",
    r"torn": "damaged, truncated",
    r"told|tells? apart": "reported, recorded; distinguish",
    r"said": "reported, recorded",
    r"so (many|often|long)(?! as\b)": "how many, how often; N",
    r"go(es)? on|went on|going on": "continues, resumes",
    r"(take|took|taken|brought|bring|set) back": "rewound, restored, reset",
    r"let go|lets go": "delete, discard, release",
    r"given up|gives? up|withdrawn": "FAILED; lost; cancelled",
    r"swept|sweeps?": "deleted; cleanup",
    r"mend(s|ed|ing)?": "fix",
    r"anew": "again; from the beginning",
    r"looked after": "monitored",
    r"in this moment": "now",
    r"stumbled": "failed",
    r"nobody": "no process; or name who does not",
    r"a hole|leaves? (a|no) hole": "a gap; skip data",
}
"""Words that are not to come back, and what is written instead."""

WORDS = re.compile(rf"\b({'|'.join(BETTER)})\b", re.IGNORECASE)
CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->|\b\w*_\w+\b|\S*/\S*", re.DOTALL)
"""What is no prose: code, the targets of links, names with underscores, paths."""

MARKUP = re.compile(r"{[%{#].*?[%}#]}|<(script|style).*?</\1>|<[^>]*>", re.DOTALL)

PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests/README.md")),
        *(ROOT / "examples").glob("*.py"),
        *(path for path in (ROOT / "contrib").iterdir() if path.is_file()),
        *(ROOT / "src" / "weir" / "web" / "templates").glob("*.html"),
    ]
)
SOURCES = sorted((ROOT / "src" / "weir").rglob("*.py"))


def prose(path: Path) -> str:
    """What a reader sees of a page, with the lines where they were."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found[0].count("\n") or " "

    text = path.read_text("utf-8")
    return CODE.sub(blank, MARKUP.sub(blank, text) if path.suffix == ".html" else text)


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Every text of three words or more in a module that is no docstring; of an f-string, its fixed parts."""
    tree = ast.parse(path.read_text("utf-8"))
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inner.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            inner.update(map(id, node.values))
            parts = [one.value if isinstance(one, ast.Constant) else "..." for one in node.values]
            yield node.lineno, "".join(map(str, parts))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value


def wrong(text: str) -> list[str]:
    return [found[0] for found in WORDS.finditer(text)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_in_plain_words(path: Path) -> None:
    lines = enumerate(prose(path).splitlines(), 1)
    assert [
        f"{path.relative_to(ROOT)}:{number}: {word}" for number, line in lines for word in wrong(line)
    ] == []


def test_every_message_is_in_plain_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word}: {text!r}"
        for path in SOURCES
        for number, text in messages(path)
        if len(re.findall(r"[A-Za-z']{2,}", text)) > 2 and "(?P<" not in text and "\\b" not in text
        for word in wrong(CODE.sub(" ", text))
    ]
    assert found == []


def test_the_check_finds_what_it_looks_for() -> None:
    assert wrong("the job goes on behind batch 3") == ["goes on", "behind"]
    assert wrong("a whole number, 1 or more; as so long as needed") == []
    assert prose(ROOT / "docs" / "glossary.md").count("\n") == (
        ROOT / "docs" / "glossary.md"
    ).read_text().count("\n")
