from __future__ import annotations

import pytest

from tests.unit.dashboard.conftest import Opened
from valkyrie.dashboard.sessions import LASTS_S, LINK_LASTS_S, Sessions
from valkyrie.domain import Identity


def test_a_link_opens_one_session_and_no_second_one() -> None:
    sessions = Sessions()
    token = sessions.link(Identity(person="ann"))
    cookie = sessions.open(token)
    assert cookie is not None
    assert sessions.open(token) is None
    found = sessions.find(cookie)
    assert found is not None
    assert found.identity.person == "ann"
    assert sessions.find(cookie + "x") is None
    assert sessions.find(None) is None


def test_links_and_sessions_end() -> None:
    now = 0.0
    sessions = Sessions(clock=lambda: now)
    late = sessions.link(Identity())
    cookie = sessions.open(sessions.link(Identity()))
    now = LINK_LASTS_S + 1
    assert sessions.open(late) is None
    assert sessions.find(cookie) is not None, "use makes it last"
    now += LASTS_S - 1
    assert sessions.find(cookie) is not None
    now += LASTS_S + 1
    assert sessions.find(cookie) is None


def test_strangers_see_nothing(opened: Opened) -> None:
    stranger = opened.stranger()
    for path in (
        "/",
        f"/runs/{opened.good}",
        "/jobs",
        "/live?page=/",
        f"/runs/{opened.good}/file?task=easy&name=x",
    ):
        answer = stranger.get(path)
        assert answer.status_code == 401
        assert opened.good[:8] not in answer.text
    assert stranger.post(f"/runs/{opened.good}/stop").status_code == 401


def test_the_cookie_is_kept_from_scripts_and_other_sites(opened: Opened) -> None:
    answer = opened.stranger().get("/open", params={"token": opened.sessions.link(Identity())})
    said = answer.headers["set-cookie"].lower()
    assert "httponly" in said
    assert "samesite=strict" in said


@pytest.mark.parametrize(
    "said", ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
def test_a_link_leads_to_no_other_site(opened: Opened, said: str) -> None:
    token = opened.sessions.link(Identity())
    answer = opened.stranger().get("/open", params={"token": token, "next": said})
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 400),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_pages_of_other_sites_can_do_nothing(opened: Opened, headers: dict[str, str], status: int) -> None:
    token = _form_token(opened)
    answer = opened.browser.post(f"/runs/{opened.bad}/stop", data={"form_token": token}, headers=headers)
    assert answer.status_code == status
    assert opened.tracker.fetch(opened.bad).state == "IN_PROGRESS"


def _form_token(opened: Opened) -> str:
    html = opened.browser.get(f"/runs/{opened.bad}").text
    return html.split('name="form_token" value="')[1].split('"')[0]


def test_a_form_needs_its_token_and_then_does_what_it_says(opened: Opened) -> None:
    path = f"/runs/{opened.bad}"
    assert opened.browser.post(f"{path}/stop", data={"form_token": "guess"}).status_code == 403
    assert opened.browser.post(f"{path}/stop").status_code == 403
    assert opened.tracker.fetch(opened.bad).state == "IN_PROGRESS"
    token = _form_token(opened)
    more = opened.browser.post(f"{path}/concurrency", data={"form_token": token, "concurrency": "3"})
    assert more.headers["location"] == path
    assert opened.tracker.fetch(opened.bad).concurrency == 3
    assert "At most 3 trials at once" in opened.browser.get(path).text
    assert "At most 3 trials at once" not in opened.browser.get(path).text, "said once"
    assert opened.browser.post(f"{path}/stop", data={"form_token": token}).status_code == 303
    assert opened.tracker.fetch(opened.bad).state in ("STOPPING", "STOPPED")
    assert opened.browser.post(f"{path}/burn", data={"form_token": token}).status_code == 303
    assert "no such action" in opened.browser.get(path).text


def test_a_closed_session_is_over(opened: Opened) -> None:
    assert opened.browser.post("/close", data={"form_token": _form_token(opened)}).status_code == 200
    assert opened.browser.get("/").status_code == 401


def test_a_large_form_is_refused(opened: Opened) -> None:
    answer = opened.browser.post(f"/runs/{opened.bad}/stop", data={"form_token": "x" * 100_000})
    assert answer.status_code == 413
