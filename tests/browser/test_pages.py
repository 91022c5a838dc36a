"""The pages in a real browser, over a played job: live, with buttons, at two widths, in both themes."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import WIDTHS, Open
from tests.fake_job import FakeJob
from tests.unit.test_cli_savepoints import saved
from tests.web_site import EVIL, Answering, checkpointed, described, failed, served, site
from weir.config import Ports
from weir.ids import CheckpointId
from weir.monitor.checkpoints import MEANINGS
from weir.protocol.messages import BatchCommitted, CheckpointBegun
from weir.restore.request import RestoreRequest
from weir.storage import paths
from weir.supervisor.inbox import Request
from weir.web import sample as sampling
from weir.web.server import Server
from weir.web.token import own_file

INTERVAL = "execution.checkpointing.interval"
TABS = (
    "",
    "/checkpoints",
    "/checkpoints/settings",
    "/checkpoints/12",
    "/savepoints",
    "/recoveries",
    "/failures",
    "/state",
    "/log",
    "/history",
)


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    settings = {"execution.checkpointing.savepoint-dir": str(tmp_path / "backup")}
    job = described(FakeJob(tmp_path).state("STARTING").state("RUNNING"), **settings)
    for number in range(40, 50):
        job.batch(number)
    return checkpointed(job, 1, 12)


@pytest.fixture
def url(tmp_path: Path, job: FakeJob) -> Iterator[str]:
    with served(site(tmp_path)) as url:
        yield f"{url}/jobs/wordcount"


def test_a_checkpoint_and_a_failure_appear_by_themselves(job: FakeJob, url: str, opened: Open) -> None:
    checkpoints, recoveries = opened(f"{url}/checkpoints"), opened(f"{url}/recoveries")
    expect(checkpoints.locator("#timeline tbody tr").first).to_contain_text("12")
    expect(recoveries.locator("#recoveries")).to_contain_text("Nothing had to be recovered")
    expect(checkpoints.locator("#live")).to_have_text("live")
    checkpointed(job, 13, 13)
    expect(checkpoints.locator("#timeline tbody tr").first).to_contain_text("13")
    failed(job)
    expect(recoveries.locator(".recovery .took")).to_have_text("1.50 s")
    job.state("FAILED")
    expect(recoveries.locator("#verdict")).to_contain_text("FAILED")


def test_the_buttons_ask_the_job_and_tell_what_became_of_it(job: FakeJob, url: str, opened: Open) -> None:
    def answer(request: Request) -> dict[str, Any]:
        if request.verb == "savepoint":
            return {"done": False, "what": "no savepoint can be written there", "why": "the disk is full"}
        if request.verb == "configure":
            return {"done": True, **request.arguments}
        return {"done": True, "id": 13, "seconds": 0.5, "new_bytes": 1, "full_bytes": 2}

    supervisor = Answering(job, answer)
    page = opened(f"{url}/checkpoints/settings")
    page.click("text=Checkpoint …")
    page.check("input[name=full]")
    page.click("#checkpoint-now")
    expect(page.locator(".toast").first).to_have_text("the checkpoint is complete")
    expect(page.locator("#operations .done").first).to_contain_text("checkpoint 13")
    page.fill(f"input[name='{INTERVAL}']", "5 s")
    page.click("#change")
    expect(page.locator(".toast").last).to_contain_text("changed")
    page.goto(f"{url}/savepoints")
    page.click("text=Savepoint …")
    page.click("#savepoint-now")
    expect(page.locator(".toast.failed")).to_contain_text("the disk is full")
    expect(page.locator("#operations .failed")).to_contain_text("no savepoint can be written there")
    supervisor.end()
    verbs = [verb for verb, _ in supervisor.heard]
    assert verbs == ["checkpoint", "configure", "savepoint"]
    assert supervisor.heard[0][1] == {"full": True}
    assert supervisor.heard[1][1] == {"settings": {INTERVAL: "5 s"}}


def test_the_token_opens_the_pages_and_a_wrong_one_does_not(
    tmp_path: Path, job: FakeJob, opened: Open
) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("a-token-of-many-characters")
    with served(site(tmp_path), str(token)) as url:
        page = opened(f"{url}/jobs/wordcount")
        for given in ("something-else-that-is-long", token.read_text()):
            expect(page).to_have_url(f"{url}/login")
            page.fill("input[name=token]", given)
            page.click("text=Enter")
            if given != token.read_text():
                expect(page.locator("main")).to_contain_text("This is not the token")
        expect(page.locator(".job .name")).to_have_text("wordcount")
        page.click(".job .name")
        Answering(job, lambda request: {"done": True, "id": 13, "seconds": 0.5})
        page.goto(f"{url}/jobs/wordcount/checkpoints")
        page.click("text=Checkpoint …")
        page.click("#checkpoint-now")
        expect(page.locator(".toast").first).to_have_text("the checkpoint is complete")


def test_going_back_shows_the_plan_first_and_asks_once_more(
    job: FakeJob, url: str, opened: Open, tmp_path: Path
) -> None:
    taken = saved(tmp_path / "elsewhere", tmp_path / "backup")
    plan = {"done": True, "text": "counts  kept", "code": 0}

    def answer(request: Request) -> dict[str, Any]:
        return plan if request.verb == "plan" else {"done": True, "checkpoint": 7, "generation": 2}

    supervisor = Answering(job, answer)
    supervisor.gate.clear()
    page = opened(f"{url}/savepoints")
    page.click("text=Restore …")
    dialog = page.locator("dialog[open]")
    go = dialog.get_by_role("button", name="Restore", exact=True)
    assert [cell.strip() for cell in dialog.locator("tbody td").all_inner_texts()] == [
        *("counts", "49", "1", "48")
    ]
    expect(dialog.locator(".planned")).to_contain_text("asking Spark's planner")
    expect(go).to_be_disabled()
    supervisor.gate.set()
    expect(dialog.locator(".planned")).to_have_text("counts  kept")
    expect(go).to_be_enabled()
    dialog.get_by_text("Close").click()
    expect(dialog).to_be_hidden()
    plan |= {"text": "counts  does not fit", "code": 12}
    page.click("text=Restore …")
    expect(dialog.locator(".planned")).to_have_text("counts  does not fit")
    expect(go).to_be_disabled()
    dialog.get_by_label("although the plan does not fit").check()
    go.click()
    expect(page.locator(".toast").last).to_have_text("the job resumes from there")
    supervisor.end()
    assert [verb for verb, _ in supervisor.heard] == ["plan", "plan", "restore"]
    assert RestoreRequest.from_wire(supervisor.heard[-1][1]) == RestoreRequest(taken.place)


def test_of_a_job_that_nobody_runs_the_dialog_says_why_there_is_no_plan(
    job: FakeJob, url: str, opened: Open
) -> None:
    described(job, False)
    page = opened(f"{url}/checkpoints/12")
    expect(page.locator("#live")).to_have_text("live")
    job.state("CANCELED").end()
    expect(page.locator("#verdict")).to_contain_text("CANCELED")
    page.click("text=Restore …")
    dialog = page.locator("dialog[open]")
    expect(dialog.locator(".planned")).to_contain_text("weir plan /jobs/wordcount.py -s chk-12")
    expect(dialog).to_contain_text("A sink of this job can't be rewound")
    expect(dialog.get_by_role("button", name="Restore", exact=True)).to_be_disabled()
    dialog.get_by_label("restore without a plan").check()
    expect(dialog.get_by_role("button", name="Restore", exact=True)).to_be_enabled()


def test_a_savepoint_that_appears_has_dialogs_of_its_own(
    job: FakeJob, url: str, opened: Open, tmp_path: Path
) -> None:
    page = opened(f"{url}/savepoints")
    expect(page.locator("#live")).to_have_text("live")
    for number in (7, 8):
        place = saved(tmp_path / f"elsewhere-{number}", tmp_path / "backup", id=number).place
        job.event("savepoint taken", {"id": number, "path": place})
        card = page.locator("#catalogue .savepoint").filter(has_text=place)
        card.get_by_text("Delete").click()
        expect(page.locator("dialog[open]")).to_contain_text(place)
        page.locator("dialog[open]").get_by_text("Close").click()
        card.get_by_text("Restore …").click()
        expect(page.locator("dialog[open] h2")).to_have_text(f"Restore savepoint {number}?")
        page.locator("dialog[open]").get_by_text("Close").click()
    expect(page.locator("#catalogue .savepoint")).to_have_count(2)


def test_failure_checkpoint_and_forms_come_and_go_by_themselves(job: FakeJob, url: str, opened: Open) -> None:
    job.event("checkpoint begun", asdict(CheckpointBegun(13, "aligned", "interval")))
    tabs = ("", "/checkpoints/settings", "/checkpoints/13", "/savepoints")
    pages = {tab: opened(f"{url}{tab}") for tab in tabs}
    for page in pages.values():
        expect(page.locator("#live")).to_have_text("live")
    expect(pages["/checkpoints/13"].locator("h1")).to_contain_text("pending")
    expect(pages[""].locator("#failure")).to_be_empty()
    checkpointed(job, 13, 13)
    expect(pages["/checkpoints/13"].locator("h1")).to_contain_text("completed")
    failed(job, "boom").state("RESTARTING")
    expect(pages[""].locator("#failure")).to_contain_text("boom")
    job.state("RUNNING")
    expect(pages[""].locator("#failure")).to_be_empty()
    expect(pages["/checkpoints/settings"].locator("#change")).to_be_visible()
    job.state("FINISHED").end()
    for page in pages.values():
        expect(page.locator("#actions button")).to_have_count(0)
    expect(pages["/checkpoints/settings"].locator("#change")).to_have_count(0)


def test_every_page_of_a_job_has_its_actions_in_one_header(job: FakeJob, url: str, opened: Open) -> None:
    page = opened(url)
    for tab in TABS:
        page.goto(f"{url}{tab}")
        shown = page.locator("#actions button").all_inner_texts()
        assert shown == ["Checkpoint …", "Savepoint …", "Stop …", "Cancel …"], tab
    supervisor = Answering(job, lambda _: {"done": True, "id": 13, "seconds": 0.5})
    for button, submit in (("Stop …", "Stop"), ("Cancel …", "Cancel the job")):
        page.locator("#actions").get_by_text(button).click()
        page.locator("dialog[open]").get_by_role("button", name=submit, exact=True).click()
        expect(page.locator("#operations .done")).to_have_count(1 if submit == "Stop" else 2)
    supervisor.end()
    assert [verb for verb, _ in supervisor.heard] == ["stop", "cancel"]
    job.killed()
    expect(page.locator("#actions #resume")).to_have_text("weir run /jobs/wordcount.py")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("text=Copy")
    expect(page.locator(".toast").last).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == "weir run /jobs/wordcount.py"


def test_unread_input_is_drawn_over_time_by_its_unit(job: FakeJob, url: str, opened: Open) -> None:
    def committed(number: int, records: int, entries: int) -> None:
        sources: list[dict[str, str | int | None]] = [
            {"name": "KafkaV2[Subscribe[orders]]", "rows": 10, "behind": records, "unit": "records"},
            {"name": "channel enriched", "rows": 10, "behind": entries, "unit": "entries"},
        ]
        batch = BatchCommitted("counts", 1, number, 10, 0.5, {}, at=job.clock.now().isoformat())
        job.journal.batch(job.lock.held, replace(batch, sources=sources))
        job.journal.flush()

    page = opened(url)
    expect(page.locator("#chart-batches canvas")).to_be_visible()
    expect(page.locator("[id^=chart-unread]")).to_have_count(0)
    committed(50, 1200, 3)
    committed(51, 900, 2)
    expect(page.locator("#chart-unread-records canvas")).to_be_visible()
    expect(page.locator("#chart-unread-records .u-legend")).to_contain_text("lines")  # the author's name
    expect(page.locator("#charts")).to_contain_text("Unread input, records")
    expect(page.locator("#chart-unread-entries .u-legend")).to_contain_text("channel enriched")
    (line,) = json.loads(str(page.locator("#chart-unread-records").get_attribute("data-chart")))["series"]
    assert [count for _, count in line["points"]] == [1200, 900]


def test_the_checkpoints_are_one_page_and_their_spread_and_configuration_another(
    url: str, opened: Open
) -> None:
    page = opened(f"{url}/checkpoints")
    expect(page.locator("#timeline tbody tr")).to_have_count(12)
    expect(page.locator("#config, #percentiles")).to_have_count(0)
    page.click("text=Spread and configuration")
    expect(page.locator("#percentiles tbody tr")).not_to_have_count(0)
    expect(page.locator(f"#config input[name='{INTERVAL}']")).to_be_visible()
    expect(page.locator("#timeline")).to_have_count(0)


def test_the_log_of_an_attempt_grows_on_its_page_and_the_spark_ui_is_linked(
    job: FakeJob, url: str, opened: Open
) -> None:
    job.log(1, f"{EVIL}\n\x1b[31mthe first attempt\x1b[0m\n")
    page = opened(f"{url}/log")
    expect(page.locator("#log pre")).to_have_text(f"{EVIL}\nthe first attempt")
    expect(page.locator("#spark-ui a")).to_have_count(0)
    job.restart().state("RUNNING").event("spark ui", {"url": "http://127.0.0.1:4040"})
    job.log(2, "".join(f"line {number}\n" for number in range(1200)))
    expect(page.locator("#attempts a")).to_have_text(["attempt 2", "attempt 1"])
    expect(page.locator("#log pre")).to_contain_text("line 1199")
    expect(page.locator("#log pre")).not_to_contain_text("line 199\n")
    expect(page.locator("#spark-ui a")).to_have_attribute("href", "http://127.0.0.1:4040")
    job.log(2, "one more line\n")  # with no event: the page looks by itself
    expect(page.locator("#log pre")).to_contain_text("one more line")
    left = "box => box.scrollHeight - box.scrollTop - box.clientHeight"
    assert page.locator("#log").evaluate(left) < 8
    page.click("text=attempt 1")
    expect(page.locator("#log pre")).to_contain_text("the first attempt")
    job.restart().state("RUNNING")  # of another driver, nobody knows the address
    expect(page.locator("#spark-ui a")).to_have_count(0)


def test_the_words_of_checkpoints_say_what_they_mean(job: FakeJob, url: str, opened: Open) -> None:
    (job.dir / paths.completed(job.name, CheckpointId(1))).unlink()  # newer ones have made it superfluous
    page = opened(f"{url}/checkpoints")
    for shown in (
        page.locator(".legend").get_by_text("pinning"),
        page.locator("#timeline").get_by_text("subsumed").first,
        page.locator("#timeline").get_by_text("aborted", exact=True).first,
        page.locator("#timeline").get_by_text("aligned", exact=True).first,
    ):
        expect(shown).to_have_attribute("title", MEANINGS[shown.inner_text()])
    page.goto(f"{url}/checkpoints/12")
    for word in ("cut", "listing", "ack"):
        expect(page.locator("thead").get_by_text(word, exact=True)).to_have_attribute("title", MEANINGS[word])
    page.goto(f"{url}/checkpoints/settings")
    expect(page.locator("#percentiles").get_by_text("alignment", exact=True)).to_have_attribute(
        "title", MEANINGS["alignment"]
    )


def test_failed_and_ended_queries_have_a_colour_and_a_word_of_their_own(
    job: FakeJob, url: str, opened: Open
) -> None:
    names = ("one", "two", "three", "four")
    query = {"inputs": [], "sources": [], "channel": False, "sink": None, "output_mode": "update"}
    job.journal.event(1, "graph", {"queries": [{"name": name, **query} for name in names]}, alone=True)
    for name in names[:2]:
        job.batch(7, name)
    job.queries(what="boom", one="FAILED", two="ENDED", three="RUNNING", four="FAILED").state("DEGRADED")
    page = opened(url)
    boxes = {
        name: page.locator(".graph .query").filter(has=page.get_by_text(name, exact=True)) for name in names
    }
    for name, standing, line in (
        ("one", "failed", "FAILED · batch 7"),
        ("two", "ended", "ended · batch 7"),
        ("four", "failed", "FAILED, no batch yet"),
    ):
        expect(boxes[name]).to_have_class(f"node query {standing}")
        expect(boxes[name].locator(".line").first).to_contain_text(line)
    expect(boxes["three"]).to_have_class("node query")
    seen = "box => getComputedStyle(box.querySelector('rect')).stroke"
    assert len({boxes[name].evaluate(seen) for name in names}) == 3
    expect(page.locator("#verdict")).to_have_class(re.compile("bad"))
    job.queries(one="RUNNING", two="ENDED", three="RUNNING", four="RUNNING").state("RUNNING")
    expect(page.locator(".graph .query.failed")).to_have_count(0)
    expect(page.locator(".graph .query.ended")).to_have_count(1)


def test_a_sample_of_state_is_a_table(
    job: FakeJob, url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators: list[dict[str, str | int]] = [{"name": "stateStoreSave", "rows": 3, "bytes": 100}]
    batch = BatchCommitted("counts", 1, 50, 10, 0.5, {}, 3, 100, at=job.clock.now().isoformat())
    job.journal.batch(job.lock.held, replace(batch, operators=operators))
    job.journal.flush()
    rows = [{"key": {"word": EVIL}, "value": {"count": 7}}]
    body = {"columns": ["key", "value"], "count": 1, "rows": rows, "batch": 50, "query": "counts"}
    said = f"import sys; print({json.dumps(json.dumps(body))}); print(sys.argv, file=sys.stderr)"
    monkeypatch.setattr(sampling, "WEIR", (sys.executable, "-c", said))
    page = opened(f"{url}/state")
    page.click("text=Sample")
    expect(page.locator("#sample h2")).to_have_text("counts, operator 0: 1 of 1 rows, batch 50")
    assert page.locator("#sample td").all_inner_texts() == [
        json.dumps({"word": EVIL}, separators=(",", ":")),
        '{"count":7}',
    ]
    monkeypatch.setattr(sampling, "WEIR", (sys.executable, "-c", "import sys; sys.exit('no Spark here')"))
    page.click("text=Sample")
    expect(page.locator("#sample h2")).to_contain_text("no Spark here")


def test_what_stands_in_a_box_of_the_graph_stays_in_it(job: FakeJob, url: str, opened: Open) -> None:
    names = ("clicks_of_the_day", "WWWWWWWWWWWWWWWWWWWW", "i" * 40, "ORDERS-OF-2026-ALL", "mmmmmmmmmmmm")
    sink = {"kind": "postgres table", "description": "table shop.MONTHLY_summary in db.example.com:5432"}
    query = {"inputs": [], "sources": list(names), "channel": False, "sink": sink, "output_mode": "update"}
    shown = [{"name": name, **query, "sources": [name]} for name in names]
    job.journal.event(1, "graph", {"queries": [{"name": "counts", **query}, *shown]}, alone=True)
    page = opened(url)
    expect(page.locator(".graph .node")).not_to_have_count(0)
    # One look at the page: it redraws itself, and an element that was replaced has no size any more.
    room = """() => [...document.querySelectorAll(".graph text.title, .graph text.line")].map(text => {
        const box = text.closest("g").querySelector("rect").getBBox(), own = text.getBBox();
        return [text.textContent, box.width - own.x - own.width];
    })"""
    rooms = page.evaluate(room)
    assert rooms
    for text, left in rooms:
        assert left >= 4, text
    assert "clicks_of_the_day" in page.locator(".graph .source .title").all_text_contents()


def test_every_part_of_a_recovery_has_a_colour_of_its_own(job: FakeJob, url: str, opened: Open) -> None:
    failed(job)
    page = opened(f"{url}/recoveries")
    expect(page.locator(".legend i")).not_to_have_count(0)
    # One look at the page: it redraws itself, and an element that was replaced has no style any more.
    marks = "[...document.querySelectorAll('.legend i')]"
    colours = page.evaluate(f"() => {marks}.map(mark => getComputedStyle(mark).backgroundColor)")
    assert len(colours) == len(set(colours)) == 11


def test_texts_and_charts_have_the_clock_of_the_browser(job: FakeJob, url: str, opened: Open) -> None:
    page = opened(f"{url}/history", zone="Asia/Kathmandu")
    expect(page.locator("#zone")).to_have_text(re.compile("Asia/Kat"))
    moment = page.locator("#history time").first
    at = datetime.fromisoformat(str(moment.get_attribute("datetime")))
    local = at.astimezone(timezone(timedelta(hours=5, minutes=45)))
    if local.date() == datetime.now(local.tzinfo).date():
        expect(moment).to_have_text(local.strftime("%H:%M:%S"))
    shown = "hours(null, [1768000000], 0, 0, 60)[0]"
    assert page.evaluate(shown) == "04:51"  # 2026-01-09 23:06:40 in UTC


def test_an_outage_is_drawn_as_one(job: FakeJob, url: str, opened: Open) -> None:
    page = opened(url)
    expect(page.locator("#verdict")).to_have_class(re.compile("ok"))
    job.event("failure", {"what": "the driver was killed", "why": "", "hint": ""})
    job.state("RESTARTING").restart().state("STARTING")
    expect(page.locator("#verdict")).to_contain_text("the driver was killed; attempt 2 is starting")
    expect(page.locator("#verdict")).to_have_class(re.compile("warn"))
    expect(page.locator(".graph .query.down .line").first).to_contain_text("down")
    expect(page.locator("#chart-batches .key")).to_contain_text("the job was down")
    expect(page).to_have_title("STARTING wordcount · weir")
    down = page.locator("#verdict").inner_text()
    expect(page.locator("#verdict")).not_to_have_text(down)  # it counts on
    job.state("RUNNING")
    expect(page.locator("#verdict")).to_contain_text("it runs")
    expect(page.locator(".graph .query.down")).to_have_count(0)


def test_a_wide_graph_is_scaled_to_its_box(job: FakeJob, url: str, opened: Open) -> None:
    queries = [
        {"name": f"q{n}", "inputs": [f"q{n - 1}"] if n else [], "sources": [], "channel": True, "sink": None}
        for n in range(8)
    ]
    body = {"queries": [{**query, "output_mode": "update"} for query in queries]}
    job.journal.event(1, "graph", body, alone=True)
    page = opened(url)
    expect(page.locator(".graph .node")).to_have_count(8)
    room = "svg => [svg.getBoundingClientRect().width, svg.parentElement.clientWidth]"
    drawn, box = page.locator(".graph").evaluate(room)
    assert drawn <= box


def test_a_page_whose_server_is_gone_says_so(tmp_path: Path, job: FakeJob, opened: Open) -> None:
    with served(site(tmp_path)) as url:
        page = opened(f"{url}/jobs/wordcount")
        expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#live")).to_have_text("connection lost")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", list(WIDTHS))
def test_every_page_fits_its_window_and_runs_nothing_that_is_shown(
    width: str, theme: str, job: FakeJob, url: str, opened: Open, screenshots: Path, tmp_path: Path
) -> None:
    saved(tmp_path / "elsewhere", tmp_path / "backup")
    failed(job).log(
        1, f"{EVIL}\n" + 50 * "a line of the driver, which is long enough to be wrapped on a phone\n"
    )
    page = opened(url.removesuffix("/jobs/wordcount"), width, theme)
    for path in ("/", *(f"/jobs/wordcount{tab}" for tab in TABS)):
        page.goto(url.removesuffix("/jobs/wordcount") + path)
        expect(page.locator("main")).to_be_visible()
        for chart in page.locator(".chart[data-chart]").all():
            expect(chart.locator("canvas")).to_be_visible()
        name = path.strip("/").replace("/", "-") or "jobs"
        page.screenshot(path=str(screenshots / f"{name}-{width}-{theme}.png"), full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width], path
        assert page.locator("img").count() == 0


def test_a_link_logs_the_browser_in_the_buttons_work_and_logging_out_ends_it(
    job: FakeJob, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    server = Server(site(tmp_path), "127.0.0.1", Ports(0, 0), None)
    thread = threading.Thread(target=server.run)
    thread.start()
    playing = Answering(job, lambda _: {"done": True, "id": 13, "seconds": 0.1})
    try:
        page = opened(server.link("/jobs/wordcount/checkpoints"))
        expect(page.locator("#timeline tbody tr").first).to_contain_text("12")
        assert "code" not in page.url
        page.click("text=Checkpoint …")
        page.click("#checkpoint-now")
        expect(page.locator(".toast").first).to_have_text("the checkpoint is complete")
        page.click("text=log out")
        expect(page.locator("input[name=token]")).to_be_visible()
        page.goto(f"{server.url}/jobs/wordcount")
        expect(page.locator("input[name=token]")).to_be_visible()
        page.fill("input[name=token]", own_file().read_text().strip())
        page.click("text=Enter")
        expect(page.locator("body")).to_contain_text("wordcount")
    finally:
        playing.end()
        server.stop()
        thread.join(20)
