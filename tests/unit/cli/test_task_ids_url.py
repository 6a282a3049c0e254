"""`--task-ids-file URL`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.cli.command_result import CommandResult
from tests.unit.cli.filled_store import FilledStore, lost
from tests.unit.cli.recorded_tracker import RecordedTracker
from tests.unit.cli.web_server import Answer, Web
from valkyrie.cli import options

Valk = Callable[..., CommandResult]
NULL = ("--benchmark", "valkyrie.testing.null:NullBenchmark", "--provider", "null")
START = ("run", "start", "--agent", "nop", *NULL, "--task-ids-file")


def test_ten_thousand_ids_from_the_web(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore, web: Web
) -> None:
    ids = [f"task-{number}" for number in range(10_000)]
    web.answers["/ids"] = Answer(status=302, location="/moved")
    web.answers["/moved"] = Answer("# all\n{}\n".format("\n".join(ids)).encode())
    assert valk(*START, f"{web.url}/ids", "--dataset", "10000").code == 0
    assert tracker.asked("start")[0].task_ids == ids
    (run_id,) = filled.run_ids()
    assert filled.run_row(run_id).n_pending == 10_000


def test_other_commands_take_a_url_too(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore, web: Web
) -> None:
    filled.add_run(trials=[lost(task) for task in "abcd"])
    web.answers["/ids"] = Answer(b"a\nb\n")
    assert valk("run", "retry", "aaaa", "--task-ids-file", f"{web.url}/ids", "--task-ids", "b,c").code == 0
    assert valk("run", "stop", "aaaa", "--task-ids-file", f"{web.url}/ids").code == 0
    assert [request.task_ids for _, request in tracker.asked("retry", "stop")] == [
        ["b", "c", "a"],
        ["a", "b"],
    ]
    row = filled.run_row()
    assert (row.n_error, row.n_pending, row.n_stopped) == (1, 1, 2)


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
    valk: Valk, tracker: RecordedTracker, web: Web, monkeypatch: pytest.MonkeyPatch, answer: Answer, says: str
) -> None:
    monkeypatch.setattr(options, "LARGEST_BYTES", 100)
    web.answers["/ids"] = answer
    address = web.url.replace("://", "://me:hunter2@")
    said = valk(*START, f"{address}/ids?token=hunter3")
    assert (said.code, said.out) == (2, "") and says in said.err
    assert "hunter" not in said.err and "root:" not in said.err
    assert len(said.err.splitlines()) <= 2 and not tracker.asked()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/ids", "http://", "http://[", "https://127.0.0.1:99999/x"]
)
def test_addresses_that_lead_nowhere(valk: Valk, tracker: RecordedTracker, url: str) -> None:
    said = valk(*START, url)
    assert said.code == 2 and said.err.startswith("Error: --task-ids-file http") and not tracker.asked()


def test_a_server_that_never_answers(
    valk: Valk, tracker: RecordedTracker, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "TIMEOUT_SECONDS", 0.2)
    web.silent.add("/ids")
    said = valk(*START, f"{web.url}/ids")
    assert said.code == 2 and "/ids: no answer within 0.2 s" in said.err and not tracker.asked()
