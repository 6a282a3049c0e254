"""`--task-ids-file URL`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.cli.fake_tracker import FakeTracker
from tests.unit.cli.said import Said
from tests.unit.cli.web import Answer, Web
from valkyrie.cli import options

Valk = Callable[..., Said]
START = ("run", "start", "--agent", "a", "--benchmark", "b", "--task-ids-file")


def test_ten_thousand_ids_from_the_web(valk: Valk, fake: FakeTracker, web: Web) -> None:
    ids = [f"task/{number}" for number in range(10_000)]
    web.answers["/ids"] = Answer(status=302, location="/moved")
    web.answers["/moved"] = Answer("# all\n{}\n".format("\n".join(ids)).encode())
    assert valk(*START, f"{web.url}/ids").code == 0
    assert fake.asked[0][1].task_ids == ids


def test_other_commands_take_a_url_too(valk: Valk, fake: FakeTracker, web: Web) -> None:
    web.answers["/ids"] = Answer(b"a\nb\n")
    valk("run", "stop", "run", "--task-ids-file", f"{web.url}/ids")
    valk("run", "retry", "run", "--task-ids-file", f"{web.url}/ids", "--task-ids", "b,c")
    assert [asked[3] for asked in fake.asked if asked[0] in ("stop", "retry")] == [
        ["a", "b"],
        ["b", "c", "a"],
    ]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(b"", 404), "/ids: the server answered 404 Not Found"),
        (Answer(b"", 500), "/ids: the server answered 500"),
        (
            Answer(b"<html>sign in</html>", type="text/html; charset=utf-8"),
            "/ids: the server sent a web page",
        ),
        (Answer(b"\xff\xfe\x00"), "/ids: not a text file (UTF-8)"),
        (Answer(status=302, location="/ids"), "/ids: Exceeded maximum allowed redirects"),
        (Answer(status=302, location="file:///etc/passwd"), "/ids: "),
        (Answer(b"\n# none\n"), "No task id was given"),
        (Answer(b"x" * 101), "/ids: more than"),
    ],
)
def test_what_cannot_be_had_is_told_without_secrets(
    valk: Valk, fake: FakeTracker, web: Web, monkeypatch: pytest.MonkeyPatch, answer: Answer, says: str
) -> None:
    monkeypatch.setattr(options, "LARGEST_BYTES", 100)
    web.answers["/ids"] = answer
    address = web.url.replace("://", "://me:hunter2@")
    said = valk(*START, f"{address}/ids?token=hunter3")
    assert (said.code, said.out) == (2, "") and says in said.err
    assert "hunter" not in said.err and "root:" not in said.err
    assert len(said.err.splitlines()) <= 2 and not fake.asked


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/ids", "http://", "http://[", "https://127.0.0.1:99999/x"]
)
def test_addresses_that_lead_nowhere(valk: Valk, fake: FakeTracker, url: str) -> None:
    said = valk(*START, url)
    assert said.code == 2 and said.err.startswith("Error: --task-ids-file http") and not fake.asked


def test_a_server_that_never_answers(
    valk: Valk, fake: FakeTracker, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "TIMEOUT_SECONDS", 0.2)
    web.silent.add("/ids")
    said = valk(*START, f"{web.url}/ids")
    assert said.code == 2 and "/ids: no answer within 0.2 s" in said.err and not fake.asked
