"""The dashboard in a real browser, on a store whose names, messages, logs and files try to break out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard_store import fill
from tests.integration.conftest import end_executor
from valkyrie.report.formats import score_cell
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import UpdateRequest

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (scripts/setup-system --browser)"),
]
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
"""A browser in a container, that asks nobody but the page."""


@dataclass
class Looking:
    """A page of a dashboard that runs, and what was seen to happen on it."""

    page: Any
    base: str
    home: Path
    good: str
    bad: str
    dialogs: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def go(self, path: str) -> Any:
        self.page.goto(self.base + path)
        return self.page

    def assert_harmless(self) -> None:
        assert not self.dialogs
        assert not self.complaints
        assert all(url.startswith(f"{self.base}/") for url in self.requests)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    own = {"VALKYRIE_HOME": str(tmp_path / "home"), "VALKYRIE_CONFIG_PATH": str(tmp_path / "config.yaml")}
    return {**os.environ, **own}


@pytest.fixture
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield opened
        opened.close()


@pytest.fixture
def looking(tmp_path: Path, environment: dict[str, str], browser: Any) -> Iterator[Looking]:
    good, bad = fill(tmp_path / "home")
    command = [sys.executable, "-m", "valkyrie", "dashboard", "--no-open", "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            told = json.loads(served.stdout.readline())
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            found = Looking(page, told["url"], tmp_path / "home", good, bad)
            page.on("dialog", lambda one: (found.dialogs.append(one.message), one.dismiss()))
            page.on("console", lambda one: found.complaints.append(one.text) if one.type == "error" else None)
            page.on("pageerror", lambda one: found.complaints.append(str(one)))
            page.on("request", lambda one: found.requests.append(one.url))
            page.goto(told["link"])
            yield found
            page.close()
        finally:
            served.terminate()
            served.wait(30)
            end_executor(tmp_path / "home")


def test_every_page_opens_and_nothing_hostile_happens(looking: Looking) -> None:
    page = looking.page
    seen, waiting = set[str](), ["/", "/jobs", "/compare", "/operate"]
    waiting.append(f"/compare?run={looking.good}&run={looking.bad}")
    while waiting and len(seen) < 25:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        looking.go(path)
        assert page.locator("h1").count() == 1, path
        assert page.evaluate("document.querySelectorAll('img, iframe, object, embed, base').length") == 0
        links = page.eval_on_selector_all("a[href]", "all => all.map(one => one.getAttribute('href'))")
        waiting += [link for link in links if link.startswith("/") and "/file?" not in link]
    assert len(seen) > 12
    looking.assert_harmless()


def test_a_run_page_follows_the_store_without_a_reload(looking: Looking) -> None:
    page = looking.go(f"/runs/{looking.bad}")
    page.wait_for_selector("#status.on")
    page.evaluate("window.stays = 1")
    page.click("details#concurrency summary")
    tracker = LocalTracker(looking.home)
    tracker.update(looking.bad, UpdateRequest(concurrency=7))
    page.wait_for_selector("text=Concurrency 7")
    assert page.evaluate("window.stays") == 1
    assert page.evaluate("document.getElementById('concurrency').open"), "what was opened stays open"
    page.click("details#stop summary")
    page.click("text=Stop this run")
    page.wait_for_selector("text=The run stops")
    assert tracker.fetch(looking.bad).state != "IN_PROGRESS"
    tracker.close()
    looking.assert_harmless()


def test_filters_survive_a_reload_and_the_way_back(looking: Looking) -> None:
    page = looking.go(f"/runs/{looking.bad}")
    page.keyboard.press("/")
    page.keyboard.type("hard")
    page.keyboard.press("Enter")
    page.wait_for_url("**search=hard**")
    names = "section table tbody a"
    assert page.locator(names).all_inner_texts() == ["hard"]
    page.reload()
    assert page.locator(names).all_inner_texts() == ["hard"]
    assert page.input_value("input[name=search]") == "hard"
    page.click(names)
    page.wait_for_url("**task=hard**")
    page.go_back()
    assert page.locator(names).all_inner_texts() == ["hard"]
    looking.assert_harmless()


def test_keys_walk_through_failed_trials(looking: Looking) -> None:
    page = looking.go(f"/runs/{looking.bad}/trial?task=hard")
    page.keyboard.press("j")
    page.wait_for_url("**task=task**")
    page.keyboard.press("j")
    page.wait_for_url("**task=broken**")
    page.keyboard.press("k")
    page.wait_for_url("**task=task**")
    looking.assert_harmless()


def test_pages_work_without_scripts(looking: Looking, browser: Any) -> None:
    with_cookie = looking.page.context.storage_state()
    plain = browser.new_context(java_script_enabled=False, storage_state=with_cookie).new_page()
    plain.goto(f"{looking.base}/runs/{looking.bad}?failed=1")
    assert plain.locator("section table tbody a").count() == 3
    plain.click("text=hard")
    plain.click("text=Later steps")
    assert plain.locator("#step-51").count() == 1


def test_small_and_dark_pages_do_not_overflow(looking: Looking, browser: Any) -> None:
    state = looking.page.context.storage_state()
    for scheme in ("light", "dark"):
        context = browser.new_context(
            viewport={"width": 360, "height": 740}, color_scheme=scheme, storage_state=state
        )
        page = context.new_page()
        for path in ("/", f"/runs/{looking.bad}", f"/runs/{looking.bad}/trial?task=hard", "/operate"):
            page.goto(looking.base + path)
            wide = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, (scheme, path)
        context.close()


def test_the_report_opens_from_a_disk_and_says_the_same(
    tmp_path: Path, environment: dict[str, str], browser: Any
) -> None:
    good, bad = fill(tmp_path / "home")
    for run_id in (good, bad):
        file = tmp_path / f"{run_id}.html"
        command = [sys.executable, "-m", "valkyrie", "report", run_id, "--html", str(file)]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        context = browser.new_context(offline=True)
        page = context.new_page()
        asked: list[str] = []
        happened: list[str] = []
        page.on("request", lambda one, asked=asked: asked.append(one.url))
        page.on("dialog", lambda one, happened=happened: (happened.append(one.message), one.dismiss()))
        page.goto(file.as_uri())
        tracker = LocalTracker(tmp_path / "home")
        assert score_cell(tracker.fetch(run_id).score).rstrip("*") in page.inner_text("main")
        tracker.close()
        assert page.evaluate("document.querySelectorAll('script, img, iframe').length") == 0
        assert asked == [file.as_uri()]
        assert not happened
        context.close()
