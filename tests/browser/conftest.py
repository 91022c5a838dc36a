"""Chromium of the system, driven by Playwright; where there is none, the tests here are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
WIDTHS = {"desk": 1280, "phone": 390}
Open = Callable[..., Page]
expect.set_options(timeout=30_000)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip("no Chromium is installed here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Opens a page; one on which a script breaks, or runs that should not, fails the test."""
    contexts, wrong = [], []

    def open(url: str, width: str = "desk", theme: str = "light", zone: str | None = None) -> Page:
        context = browser.new_context(
            viewport={"width": WIDTHS[width], "height": 900},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
            timezone_id=zone,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
        page.on("console", lambda said: wrong.append(said.text) if "Content Security" in said.text else None)
        page.goto(url)
        return page

    yield open
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture(scope="session")
def screenshots(pytestconfig: pytest.Config) -> Path:
    """Where screenshots are kept: in pytest's cache."""
    return Path(pytestconfig.cache.mkdir("screenshots"))
