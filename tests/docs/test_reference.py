"""Every command, option, setting, error and state is documented, and the pages are up to date."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from weir import errors
from weir.cli import EXIT_CODES, VERBS, load
from weir.config import OLDER_SPELLINGS, describe
from weir.monitor.checkpoints import MEANINGS as WORDS
from weir.monitor.checkpoints import PHASES, WHOLE
from weir.monitor.figures import HISTOGRAMS, MEANINGS
from weir.protocol.states import CheckpointState, JobState, QueryState

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
GENERATE = FOLDER / "generate.py"
generated: dict[str, Any] = runpy.run_path(str(GENERATE))
PAGES: dict[str, str] = generated["pages"]()


def kept(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    assert kept(name) == PAGES[name], f"out of date: run python {GENERATE.relative_to(FOLDER.parents[1])}"


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_documented_with_its_options_its_example_and_its_json(verb: str) -> None:
    page = kept("cli.md")
    _, _, section = page.partition(f"\n## weir {verb}\n")
    section = section.partition("\n## ")[0]
    assert f"```sh\nweir {verb}" in section
    assert "With `--json`: `" in section
    for parameter in load(verb).params:
        if parameter.name != "help":
            assert parameter.help, f"{verb}: {parameter.name} has no help"
            assert (parameter.opts[-1] if parameter.opts[0].startswith("-") else parameter.metavar) in section


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_can_answer_in_json_and_fits_a_terminal(verb: str) -> None:
    command = load(verb)
    assert any("--json" in parameter.opts for parameter in command.params)
    assert all(len(line) <= 84 for line in command.help.splitlines() if line.startswith("Example"))


def test_every_setting_is_documented_with_its_older_spellings() -> None:
    page = kept("settings.md")
    assert [one.key for one in describe() if f"| `{one.key}` |" not in page] == []
    assert [key for key in OLDER_SPELLINGS if f"`{key}`" not in page] == []


def test_every_error_is_documented_and_drawn_in_the_tree() -> None:
    page, tree = kept("errors.md"), str(errors.__doc__)
    names = [kind.__name__ for kind in generated["every_error"]()]
    assert [name for name in names if f"| `{name}` |" not in page] == []
    assert [name for name in names if f"-- {name} " not in tree] == []


def test_every_endpoint_is_documented_with_its_parameters() -> None:
    page = kept("rest.md")
    for path, methods in generated["openapi"]()["paths"].items():
        for method, call in methods.items():
            _, found, section = page.partition(f"\n## {method.upper()} {path}\n")
            section = section.partition("\n## ")[0]
            assert found and call["description"] in section
            for one in call.get("parameters", []):
                assert one.get("description") and f"| `{one['name']}` |" in section


def test_every_figure_is_documented_and_shown_in_grafana() -> None:
    page = kept("rest.md")
    assert [name for name in MEANINGS if f"| `{name}` |" not in page] == []
    dashboard = (FOLDER.parents[1] / "contrib" / "grafana.json").read_text("utf-8")
    rules = (FOLDER.parents[1] / "contrib" / "prometheus-rules.yml").read_text("utf-8")
    samples = re.findall(r"\bweir_[a-z_]+", dashboard + rules)
    known = {re.sub("(_duration_seconds)_(bucket|count|sum)$", r"\1", one) for one in samples} - {"weir_job"}
    assert known <= set(MEANINGS) and len(known) >= 12
    assert set(HISTOGRAMS) <= known


def test_every_word_of_a_table_of_checkpoints_is_in_the_glossary_and_in_the_help() -> None:
    glossary = (FOLDER.parent / "glossary.md").read_text("utf-8")
    assert [word for word, text in WORDS.items() if f"| {word} | {text} |" not in glossary] == []
    shown = {*PHASES, *WHOLE, *(state.value for state in CheckpointState), "cut", "turned"}
    assert shown <= set(WORDS)
    text = load("checkpoints").help
    for word in ("subsumed", "ack", "pinning", "listing", "copying", "cut", "turned", "alignment"):
        assert re.search(rf"\b{word}\b", text), word


def test_every_exit_code_of_an_error_is_documented() -> None:
    assert {kind.exit_code for kind in generated["every_error"]()} <= set(EXIT_CODES)


@pytest.mark.parametrize("state", [*JobState, *QueryState, *CheckpointState])
def test_every_state_is_drawn(state: JobState | QueryState | CheckpointState) -> None:
    assert f"--> {state.value}" in kept("states.md")
