"""README, docs and examples say what is there: commands, settings, files and code that runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import weir
from weir.cli import VERBS
from weir.config import OLDER_SPELLINGS, describe

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
JOBS = [path for path in EXAMPLES if path.name != "demo.py"]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "README.md"])
MAY_IMPORT = {"weir", "pyspark", "pyarrow", "psutil", "rich"} | set(sys.stdlib_module_names)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


pages = pytest.mark.parametrize("page", PAGES, ids=_name)


def _blocks(page: Path, *languages: str) -> Iterator[str]:
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        if found[1] in languages:
            yield found[2]


def _commands(page: Path) -> Iterator[str]:
    """Every line of a shell block, and every `code` of one line in the text."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", text)
    for block in _blocks(page, "sh"):
        yield from (line.partition(" # ")[0].strip() for line in block.splitlines())


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_an_example_imports_only_what_weir_brings(example: Path) -> None:
    tree = ast.parse(example.read_text(), str(example))
    named = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    named += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in named} <= MAY_IMPORT


@pytest.mark.parametrize("example", JOBS, ids=_name)
def test_a_job_example_has_one_job_and_says_how_to_run_it(example: Path) -> None:
    text = example.read_text()
    assert text.count("weir.Job(") == 1
    assert text.endswith('if __name__ == "__main__":\n    job.run()\n')
    said = ast.get_docstring(ast.parse(text)) or ""
    assert f"weir run examples/{example.name}" in said and f"python examples/{example.name}" in said


@pages
def test_python_blocks_compile(page: Path) -> None:
    for block in _blocks(page, "python"):
        compile(block, _name(page), "exec")


@pages
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    inner = [target for target in targets if target and "://" not in target]
    assert [target for target in inner if not (page.parent / target).exists()] == []


@pages
def test_make_and_weir_commands_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in _commands(page):
        words = command.split()
        if len(words) > 1 and words[0] == "make" and re.fullmatch(r"[a-z-]+", words[1]):
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), command
        if len(words) > 1 and words[0] == "weir" and re.fullmatch(r"[a-z]+", words[1]):
            assert words[1] in VERBS, command


@pages
def test_settings_that_are_named_exist(page: Path) -> None:
    keys = {one.key for one in describe()} | set(OLDER_SPELLINGS)
    families = {key.partition(".")[0] for key in keys if "." in key}
    for code in _commands(page):
        key = code.partition("=")[0].removesuffix(".*")
        if key.partition(".")[0] in families and re.fullmatch(r"[a-z-]+(\.[a-z-]+)+", key):
            assert any(known == key or known.startswith(f"{key}.") for known in keys), code


def test_the_readme_names_every_verb_and_example() -> None:
    text = (ROOT / "README.md").read_text()
    assert [verb for verb in VERBS if f"`weir {verb}" not in text] == []
    assert [path.name for path in EXAMPLES if path.name not in text] == []


@pytest.mark.spark
def test_the_word_count_over_files_counts_every_word_and_goes_on_with_more(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    text = tmp_path / "text"
    text.mkdir()
    expected: Counter[str] = Counter()
    for round_, lines in enumerate((["to be or not to be", "to do"], ["be that as it may", "to  be\n\nor"])):
        for number, line in enumerate(lines):
            (text / f"{round_}-{number}.txt").write_text(line)
            expected.update(line.split())
        _run("wordcount_files.py", tmp_path)
        found: dict[str, int] = {}
        for file in weir.committed_files(str(tmp_path / "counts")):
            table = pq.read_table(file)
            found |= zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True)
        assert found == expected


def _run(example: str, folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "weir", "run", str(ROOT / "examples" / example), "text", "counts"]
        + ["-D", "execution.checkpointing.dir=weir-data", "--master", "local[2]"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
