"""One real job through its own pages: checkpoints, another interval, a savepoint, a kill -9, going back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from weir.testing.process import JobProcess

JOB = Path(__file__).parents[1] / "faults" / "jobs" / "counted.py"
INTERVAL = "execution.checkpointing.interval"
pytestmark = [pytest.mark.spark, pytest.mark.faults]


@pytest.mark.long
def test_a_real_job_is_watched_saved_killed_changed_and_taken_back(
    tmp_path: Path, quick: Mapping[str, str], opened: Open, screenshots: Path
) -> None:
    settings = {
        **quick,
        "rest.port": "0",
        "rest.token-file": "off",
        "spark.ui.enabled": "true",
        INTERVAL: "1 s",
        "execution.checkpointing.savepoint-dir": str(tmp_path / "saved"),
    }
    args = [tmp_path / "out", tmp_path / "calls"]
    with JobProcess(JOB, tmp_path / "store", args=args, settings=settings) as run:
        run.wait_for("its pages", lambda: "pages and REST: " in run.stderr)
        (url,) = re.findall(r"pages and REST: (\S+)", run.stderr)
        page = opened(url)
        expect(page.locator("#verdict")).to_contain_text("RUNNING", timeout=60_000)
        expect(page.locator("svg.graph")).to_contain_text("counts")
        page.goto(f"{url}/checkpoints")
        row = page.locator("#timeline tbody tr").first
        expect(row).to_contain_text(re.compile("completed|pending"))
        seen = int(row.locator("a").inner_text())
        expect(page.locator("#timeline")).to_contain_text(str(seen + 2))

        page.goto(f"{url}/checkpoints/settings")
        page.fill(f"input[name='{INTERVAL}']", "2 s")
        page.click("#change")
        expect(page.locator(".toast")).to_contain_text("changed")
        assert run.events("configured")[-1].body == {INTERVAL: "2 s"}

        run.wait_for_batch("counts", 1)
        page.goto(f"{url}/savepoints")
        page.click("text=Savepoint …")
        page.click("#savepoint-now")
        expect(page.locator("#catalogue .savepoint")).to_have_count(1)
        page.click("text=Restore …")  # the page has not been loaded again since
        dialog = page.locator("dialog[open]")
        expect(dialog.locator("tbody")).not_to_contain_text("the start")
        dialog.get_by_text("Close").click()
        page.screenshot(path=str(screenshots / "real-savepoints.png"), full_page=True)

        page.goto(f"{url}/log")
        expect(page.locator("#log pre")).not_to_be_empty()
        address = str(page.locator("#spark-ui a").get_attribute("href"))
        with urlopen(address, timeout=30) as answer:
            assert b"Spark" in answer.read()

        page.goto(f"{url}/recoveries")
        run.kill_driver()
        expect(page.locator("#verdict")).to_contain_text(re.compile("RESTARTING|STARTING"))
        expect(page.locator(".recovery .cause")).to_contain_text("killed by SIGKILL", timeout=60_000)
        page.screenshot(path=str(screenshots / "real-recoveries.png"), full_page=True)

        page.goto(f"{url}/savepoints")
        page.click("text=Restore …")
        expect(dialog.locator(".planned")).to_contain_text("fits", timeout=60_000)
        page.screenshot(path=str(screenshots / "real-plan.png"))
        dialog.get_by_role("button", name="Restore", exact=True).click()
        expect(page.locator("#operations")).to_contain_text("resumes from checkpoint", timeout=60_000)
        assert len(run.events("restored")) == 1
        page.goto(url)
        expect(page.locator("#verdict")).to_contain_text("RUNNING", timeout=60_000)
        page.screenshot(path=str(screenshots / "real-overview.png"), full_page=True)
