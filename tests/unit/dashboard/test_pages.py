from __future__ import annotations

import json
import re
from urllib.parse import urlencode

import pytest

from tests.dashboard_store import SVG, TASKS
from tests.unit.dashboard.conftest import Elements, Opened
from valkyrie.report.formats import score_cell, score_rows
from valkyrie.report.tables import ended
from valkyrie.views import RunFilter, UpdateRequest

ALLOWED = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "script",
        "body",
        "a",
        "header",
        "nav",
        "span",
        "button",
        "form",
    ),
    *(
        "input",
        "main",
        "p",
        "h1",
        "h2",
        "h3",
        "label",
        "select",
        "option",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
    ),
    *(
        "th",
        "td",
        "svg",
        "rect",
        "line",
        "circle",
        "text",
        "polyline",
        "time",
        "code",
        "footer",
        "kbd",
        "section",
    ),
    *("details", "summary", "dl", "dt", "dd", "strong", "figure", "figcaption", "article", "pre"),
}


def _pages(opened: Opened) -> list[str]:
    """The addresses of every page, found by following links from the first one."""
    found, waiting = [], ["/"]
    while waiting:
        path = waiting.pop(0)
        if path in found or path.startswith("#") or "/file?" in path:
            continue
        found.append(path)
        answer = opened.browser.get(path)
        assert answer.status_code == 200, (path, answer.text[:500])
        waiting += [link for link in Elements(answer.text).links() if len(found) < 60]
    both = urlencode([("run", opened.good), ("run", opened.bad)])
    return [*found, f"/compare?{both}"]


def test_hostile_text_stays_text_on_every_page(opened: Opened) -> None:
    paths = _pages(opened)
    assert len(paths) > 12
    for path in paths:
        html = opened.browser.get(path).text
        found = Elements(html)
        assert {tag for tag, _ in found.elements} <= ALLOWED, path
        scripts = [given for tag, given in found.elements if tag == "script"]
        assert all(str(given.get("src")).startswith("/static/dashboard.js?") for given in scripts), path
        for tag, given in found.elements:
            assert not any(name.startswith("on") or name == "style" for name in given), (path, tag)
            for name in ("href", "src", "action"):
                assert str(given.get(name) or "/").startswith(("/", "#")), (path, tag, given)
        shown = re.sub(r'<input type="hidden"[^>]*>', "", html)
        assert not re.search("[\x1b\u202e]", shown), path


def test_every_answer_forbids_what_pages_do_not_need(opened: Opened) -> None:
    for path in ("/", "/nothing", "/static/dashboard.js", "/open?token=x"):
        headers = opened.browser.get(path).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_numbers_are_those_of_the_commands(opened: Opened) -> None:
    listed = Elements(opened.browser.get("/").text).text
    for run in opened.tracker.list(RunFilter()).runs:
        assert score_cell(run.score) in listed
        assert f"{run.score.graded}/{run.score.planned}" in listed
    for ref in (opened.good, opened.bad):
        run = opened.tracker.fetch(ref)
        text = Elements(opened.browser.get(f"/runs/{ref}").text).text
        for name, value in score_rows(run.score, ended=ended(run)):
            assert name in text
            assert value in text


def test_the_list_of_runs_filters_and_says_when_nothing_matches(opened: Opened) -> None:
    only = opened.browser.get("/", params={"label": "nightly"}).text
    assert opened.good[:8] in only
    assert opened.bad[:8] not in only
    assert 'value="nightly"' in only
    assert "No run matches" in opened.browser.get("/", params={"agent": "nobody"}).text
    wrong = opened.browser.get("/", params={"state": "ODD"})
    assert wrong.status_code == 400
    assert "IN_PROGRESS" in wrong.text


def test_trials_are_filtered_searched_and_sorted(opened: Opened) -> None:
    def tasks(**query: str) -> list[str]:
        html = opened.browser.get(f"/runs/{opened.bad}", params=query).text
        return re.findall(r'href="/runs/[^"]+/trial\?task=([a-z]+)', html)

    assert tasks() == ["easy", "hard", "task", "broken", "waits"]
    assert tasks(failed="1") == ["hard", "task", "broken"]
    assert tasks(search="as") == ["easy", "task"]
    assert tasks(status="ERROR") == ["broken"]
    assert tasks(sort="task_id", order="desc")[0] == "waits"
    assert opened.browser.get(f"/runs/{opened.bad}", params={"sort": "x"}).status_code == 400


def test_a_trial_shows_its_verdict_steps_log_files_and_neighbours(opened: Opened) -> None:
    page = opened.browser.get(f"/runs/{opened.bad}/trial", params={"task": "hard"})
    text = Elements(page.text).text
    assert "not passed" in text
    assert "the end of the log" in text
    assert "step 50" in text
    assert "step 51" not in text
    assert "120 steps" in text
    assert "System files the agent changed" in text
    links = Elements(page.text).links()
    assert any("task=task" in link for link in links), "the next failed trial"
    later = opened.browser.get(f"/runs/{opened.bad}/trial", params={"task": "hard", "step": "51"}).text
    assert 'id="step-51"' in later
    found = opened.browser.get(f"/runs/{opened.bad}/trial", params={"task": "hard", "search": "seen 77"}).text
    assert 'id="step-77"' in found
    assert "1 of 120 steps" in found
    after = opened.browser.get(f"/runs/{opened.bad}/trial", params={"task": "broken"}).text
    assert "Previous failed trial" in after
    assert "Next failed trial" not in after
    assert opened.browser.get(f"/runs/{opened.bad}/trial", params={"task": "none"}).status_code == 404


def test_files_are_downloads_that_do_nothing(opened: Opened) -> None:
    page = opened.browser.get(f"/runs/{opened.bad}/trial", params={"task": TASKS[2]}).text
    paths = [link for link in Elements(page).links() if "/file?" in link]
    assert len(paths) == 4
    for path in paths:
        answer = opened.browser.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert "sandbox" in answer.headers["content-security-policy"]
    (picture,) = (path for path in paths if "picture.svg" in path)
    assert opened.browser.get(picture).content == SVG
    for name in ("../../../../valkyrie.db", "/etc/passwd", ""):
        query = urlencode({"task": "hard", "name": name})
        assert opened.browser.get(f"/runs/{opened.bad}/file?{query}").status_code == 404


def test_runs_are_compared(opened: Opened) -> None:
    query = urlencode([("run", opened.good), ("run", opened.bad)])
    text = Elements(opened.browser.get(f"/compare?{query}").text).text
    assert "tasks in common" in text
    assert "Score against cost" in text
    assert "5 tasks" in text
    changed = opened.browser.get(f"/compare?{query}&changed=1&metric=pass").text
    assert ">easy<" not in changed
    assert opened.browser.get(f"/compare?{query}&metric=odd").status_code == 400
    assert "Choose two runs" in opened.browser.get("/compare").text


def test_an_empty_store_says_how_to_begin(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from starlette.testclient import TestClient

    from valkyrie.dashboard.app import Dashboard
    from valkyrie.dashboard.sessions import Sessions
    from valkyrie.tracker.local import LocalTracker

    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    tracker, sessions = LocalTracker(tmp_path / "empty"), Sessions()
    with TestClient(Dashboard(tracker, sessions).app, base_url="http://127.0.0.1:9") as browser:
        browser.get("/open", params={"token": sessions.link(tracker.context.identity)})
        assert "valk run start" in browser.get("/").text
        assert "valk benchmark-job" in browser.get("/jobs").text
        assert "The queue is empty" in browser.get("/operate").text
    tracker.close()


@pytest.mark.parametrize("path", ["/", "/runs/{bad}", "/jobs"])
def test_a_live_page_sends_its_changing_part_once(opened: Opened, path: str) -> None:
    opened.dashboard.feed.close()  # streams end after their first look
    first, mark = _fragment(opened, path.format(bad=opened.bad))
    assert first
    assert "<html" not in first
    assert "<script" not in first
    if path == "/jobs":  # how long runs take goes on
        assert _fragment(opened, path, mark) == ("", "")


def test_a_live_page_sends_what_changed(opened: Opened) -> None:
    opened.dashboard.feed.close()
    path = f"/runs/{opened.bad}"
    mark = _fragment(opened, path)[1]
    opened.tracker.update(opened.bad, UpdateRequest(concurrency=2))
    after, other = _fragment(opened, path, mark)
    assert "Concurrency 2" in after
    assert other not in ("", mark)


def test_a_live_page_that_is_gone_says_so(opened: Opened) -> None:
    answer = opened.browser.get("/live", params={"page": "/runs/00000000"})
    assert "event: gone" in answer.text


def _fragment(opened: Opened, page: str, seen: str = "") -> tuple[str, str]:
    answer = opened.browser.get("/live", params={"page": page}, headers={"last-event-id": seen})
    assert answer.status_code == 200
    fields = dict(line.split(": ", 1) for line in answer.text.splitlines() if ": " in line)
    return json.loads(fields["data"]) if "data" in fields else "", fields.get("id", "")
