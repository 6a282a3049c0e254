"""What `valk doctor` says of the tracker that is configured, and what the embedded mode need not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.client.scripted_tracker import KEY, Answer, ScriptedTracker, refused, said
from valkyrie.cli.doctor import Check, tracker_checks

ME = {"org_id": "o", "org": "Team", "person": "ann", "mode": "self-hosted"}


def checks() -> dict[str, Check]:
    return {check.name: check for check in tracker_checks()}


@pytest.fixture
def configured(tracker: ScriptedTracker, monkeypatch: pytest.MonkeyPatch) -> ScriptedTracker:
    monkeypatch.setenv("TRACKER_SERVICE_URL", tracker.url)
    monkeypatch.setenv("VALKYRIE_API_KEY", KEY)
    tracker.on("GET", "/health", said({"status": "ok", "version": "7", "database": "ok"}))
    tracker.on("GET", "/v1/me", said(ME))
    return tracker


def test_nothing_is_said_without_one() -> None:
    assert tracker_checks() == []


def test_a_tracker_that_knows_us(configured: ScriptedTracker) -> None:
    found = checks()
    assert found["tracker"].mark == "ok" and "version 7" in found["tracker"].found
    assert found["API key"] == Check("API key", "ok", "ann of organisation Team (self-hosted)")


def test_a_key_nobody_knows(configured: ScriptedTracker) -> None:
    configured.on("GET", "/v1/me", refused("AccessError", 401, "Unknown API key."))
    found = checks()
    assert found["tracker"].mark == "ok" and found["API key"].mark == "fail"
    assert "VALKYRIE_API_KEY" in found["API key"].way_out and KEY not in str(found)


def test_a_tracker_that_is_not_there(configured: ScriptedTracker) -> None:
    configured.on("GET", "/health", Answer(b"<html>", 404))
    (found,) = tracker_checks()
    assert (found.name, found.mark) == ("tracker", "fail") and configured.url in found.found


@pytest.mark.parametrize("url", ["not a url", "http://u:p@host"])
def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("TRACKER_SERVICE_URL", url)
    (found,) = tracker_checks()
    assert found.mark == "fail" and "TRACKER_SERVICE_URL" in found.found


def test_the_embedded_mode_loads_no_client() -> None:
    script = (
        "import sys; from valkyrie.tracker import open_tracker; from valkyrie.views import RunFilter;"
        "opened = open_tracker(); opened.list(RunFilter()); opened.close();"
        "print([name for name in sys.modules if name in ('httpx', 'valkyrie.client.client')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
