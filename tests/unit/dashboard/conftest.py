from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.dashboard_store import fill
from valkyrie.dashboard.app import Dashboard
from valkyrie.dashboard.sessions import Sessions
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.app import StoreDispatch, TrackerApp
from valkyrie.tracker.local import LocalTracker


@dataclass
class Opened:
    """A dashboard on a filled store, and a browser that was let in."""

    dashboard: Dashboard
    sessions: Sessions
    tracker: LocalTracker
    browser: TestClient
    good: str
    bad: str

    def stranger(self) -> TestClient:
        return TestClient(self.dashboard.app, base_url="http://127.0.0.1:9", follow_redirects=False)


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    good, bad = fill(tmp_path / "home")
    app = TrackerApp(DataFolder(tmp_path / "home"))
    app.dispatch = StoreDispatch(app)  # no executor is started
    tracker = LocalTracker(app)
    sessions = Sessions()
    made = Dashboard(tracker, sessions)
    with TestClient(made.app, base_url="http://127.0.0.1:9", follow_redirects=False) as browser:
        token = sessions.link(tracker.context.identity)
        assert browser.get("/open", params={"token": token}).status_code == 303
        yield Opened(made, sessions, tracker, browser, good, bad)
    tracker.close()


class Elements(HTMLParser):
    """Every element of a page, and all its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def links(self) -> list[str]:
        return [str(given["href"]) for tag, given in self.elements if tag == "a" and given.get("href")]
