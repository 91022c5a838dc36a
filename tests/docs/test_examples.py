"""README, docs and examples say what is there: commands, settings, files and code that runs."""

from __future__ import annotations

import ast
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import pytest

import weir
from weir.cli import VERBS
from weir.config import OLDER_SPELLINGS, describe
from weir.testing import run_job

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BENCHES = sorted((ROOT / "bench").rglob("*.py"))
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


@pytest.mark.parametrize("script", [*EXAMPLES, *BENCHES], ids=_name)
def test_what_a_script_imports_of_weir_is_there(script: Path) -> None:
    """Also in the code that it gives to another process, as text."""
    imports = re.findall(r"^ *from (weir[\w.]*) import (\([^)]*\)|[^\n#]*)", script.read_text(), re.MULTILINE)
    for module, names in imports:
        for name in re.findall(r"(\w+)(?: as \w+)?", names):
            there = hasattr(import_module(module), name) or find_spec(f"{module}.{name}")
            assert there, f"{module} has no {name}"


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
            assert words[1] in VERBS or " ".join(words[1:3]) in VERBS, command


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
def test_the_first_job_of_the_readme_typed_as_it_stands_ends_with_the_right_counts(tmp_path: Path) -> None:
    """Only the settings of the machine that tests run on are added, and the wait for the result."""
    section = (ROOT / "README.md").read_text().partition("## First job in a minute")[2].partition("\n## ")[0]
    (program,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    first, second = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "count.py").write_text(program)
    (run,) = re.findall(r"^weir run count\.py.*$", first, re.MULTILINE)
    prepare = [line for line in first.splitlines() if line.startswith("mkdir")]
    look = [line for line in second.splitlines() if line.startswith("python -c ")]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "PATH": path, "WEIR_REST_PORT": "off"}

    def shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environ, capture_output=True, text=True)

    def shown() -> dict[str, int]:
        rows = re.findall(r"^\d+ +(\S+) +(\d+)$", shell(look[0]).stdout, re.MULTILINE)
        assert len(rows) == len(dict(rows)), "each word once"
        return {word: int(count) for word, count in rows}

    def wait_for(expected: Mapping[str, int]) -> None:
        deadline = time.monotonic() + 120
        while (found := shown()) != expected and time.monotonic() < deadline and job.poll() is None:
            time.sleep(0.5)
        assert found == expected, (tmp_path / "out").read_text()

    assert len(prepare) == 1 and shell(prepare[0]).returncode == 0
    with (tmp_path / "out").open("wb") as out:
        command = [*run.partition(" #")[0].split(), "--master", "local[2]"]
        job = subprocess.Popen(
            command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        wait_for({"to": 2, "be": 2, "or": 1, "not": 1})
        assert shell('echo "to do is to be" > next.txt && mv next.txt text/2.txt').returncode == 0
        wait_for({"to": 4, "be": 3, "or": 1, "not": 1, "do": 1, "is": 1})
    finally:
        job.terminate()
        code = job.wait(60)
    assert code == 0, (tmp_path / "out").read_text()


@pytest.mark.long
@pytest.mark.spark
def test_the_word_count_over_files_counts_every_word_and_goes_on_with_more(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    text = tmp_path / "text"
    text.mkdir()
    expected: Counter[str] = Counter()
    for round_, lines in enumerate((["to be or not to be", "to do"], ["be that as it may", "to  be\n\nor"])):
        for number, line in enumerate(lines):
            (text / f"{round_}-{number}.txt").write_text(line)
            expected.update(line.split())
        _run("wordcount_files.py", tmp_path, quick)
        found: dict[str, int] = {}
        for file in weir.committed_files(str(tmp_path / "counts")):
            table = pq.read_table(file)
            found |= zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True)
        assert found == expected


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.long
def test_the_online_model_learns_from_every_batch_once_though_it_is_killed(
    quick: Mapping[str, str], tmp_path: Path
) -> None:
    draw, batches = random.Random(7), list[list[tuple[float, float, float]]]()
    (tmp_path / "points").mkdir()
    for number in range(4):
        at = [(draw.uniform(-1, 1), draw.uniform(-1, 1)) for _ in range(50)]
        batches.append([(x1, x2, 1 + 2 * x1 - 3 * x2) for x1, x2 in at])
        file = tmp_path / "points" / f"{number}.csv"
        file.write_text("".join(f"{x1},{x2},{y}\n" for x1, x2, y in batches[-1]))
        os.utime(file, (1_000_000_000 + number,) * 2)
    run = run_job(
        ROOT / "examples" / "online_model.py",
        tmp_path / "weir",
        args=(tmp_path / "points", tmp_path / "model.json"),
        faults=["batch.written#2:kill", "batch.committed#3:kill"],
        settings=quick,
    )
    assert run.exit_code == 0, run.stderr
    assert run.fired == {"batch.written#2", "batch.committed#3"}
    found = json.loads((tmp_path / "model.json").read_text())
    assert found == pytest.approx(_learnt(batches), abs=1e-9)
    assert found == pytest.approx({"b": 1, "w1": 2, "w2": -3}, abs=0.05)


def _learnt(batches: list[list[tuple[float, float, float]]]) -> dict[str, float]:
    """The same gradient descent in plain Python."""
    b = w1 = w2 = 0.0
    for points in batches:
        for _ in range(10):
            errors = [(b + w1 * x1 + w2 * x2 - y, x1, x2) for x1, x2, y in points]
            b -= 0.5 * fmean(error for error, _, _ in errors)
            w1 -= 0.5 * fmean(error * x1 for error, x1, _ in errors)
            w2 -= 0.5 * fmean(error * x2 for error, _, x2 in errors)
    return {"b": b, "w1": w1, "w2": w2}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.faults
def test_the_resumable_batch_goes_on_at_its_stage(quick: Mapping[str, str], tmp_path: Path) -> None:
    stages, orders = tmp_path / "stages", tmp_path / "orders"
    for folder in (stages, orders):
        folder.mkdir()
    (orders / "1.csv").write_text("ann,3\nbob,4\nann,x\nann,5\n")
    scripts = {
        "3-report": f"USING text SELECT concat(who, ': ', n) FROM parquet.`{tmp_path}/2-sum` ORDER BY who",
        "2-sum": f"USING parquet SELECT who, sum(n) AS n FROM parquet.`{tmp_path}/1-clean` GROUP BY who",
        "1-clean": "USING parquet SELECT _c0 AS who, try_cast(_c1 AS int) AS n "
        f"FROM csv.`{orders}` WHERE try_cast(_c1 AS int) IS NOT NULL",
    }
    for name, query in scripts.items():
        (stages / f"{name}.sql").write_text(f"INSERT OVERWRITE DIRECTORY '{tmp_path / name}' {query}")
    run = run_job(
        ROOT / "examples" / "resumable_batch.py",
        tmp_path / "weir",
        args=(stages,),
        faults=["batch.written#2:kill"],
        settings=quick,
    )
    assert run.exit_code == 0, run.stderr
    assert run.fired == {"batch.written#2"}
    ran = re.findall(r"batch (\d) runs (\S+)\.sql", run.stdout)
    assert ran == [("0", "1-clean"), ("1", "2-sum"), ("1", "2-sum"), ("2", "3-report")]
    report = "".join(file.read_text() for file in sorted((tmp_path / "3-report").glob("part-*")))
    assert report == "ann: 8\nbob: 4\n"


def _run(example: str, folder: Path, quick: Mapping[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "weir", "run", str(ROOT / "examples" / example), "text", "counts"]
        + [f"-D{key}={value}" for key, value in quick.items()]
        + ["-D", "execution.checkpointing.dir=weir-data"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
