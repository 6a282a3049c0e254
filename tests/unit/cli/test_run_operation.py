"""Operating runs: who is told, what it may cost, repeated runs, errors, logs, the queue, uploads."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import insert

from tests.stored_runs import add_executor
from tests.unit.cli.command_result import CommandResult
from tests.unit.cli.filled_store import FilledStore, lost, passed, unended
from tests.unit.cli.recorded_tracker import RecordedTracker
from valkyrie.domain import Identity
from valkyrie.errors import InfrastructureError, UserError
from valkyrie.store.schema import hook
from valkyrie.tracker.app import TrackerApp
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import LogQuery, ResultsLink, ResultsWanted, RunFilter, StopRequest, UpdateRequest

Valk = Callable[..., CommandResult]
NULL = "valkyrie.testing.null:NullBenchmark"
START = ("run", "start", "--agent", "nop", "--benchmark", NULL, "--provider", "null")
EVIL = "x\x1b]0;owned\x07y\x1b[31mz\r\n\u202eq"


def test_start_passes_on_whom_to_tell_and_what_it_may_cost(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    for name in ("slack", "sign"):
        valk("secret", "set", name, "--stdin", stdin="https://x.example/hook")
    words = (
        "-i 25 -i 75 --webhook slack --webhook-url https://x.example/hook --webhook-key sign "
        "--priority 0 --max-cost $12.5 --no-store-secrets"
    )
    assert valk(*START, *words.split()).code == 0
    assert valk(*START, "--lambda", "after").code == 1, "there is no account to call it in"
    request, other = tracker.asked("start")
    assert (request.intervals, request.webhook, request.webhook_url) == (
        (25, 75),
        "slack",
        "https://x.example/hook",
    )
    assert (request.webhook_key, other.lambda_function) == ("sign", "after")
    assert (request.priority, request.max_cost, request.store_secrets) == (0, 12.5, False)
    (run_id,) = filled.run_ids()
    row = filled.run_row(run_id)
    assert (row.priority, row.max_cost) == (0, 12.5) and "x.example" not in json.dumps(row.arguments)


def test_start_asks_for_nothing_of_it_by_itself(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    valk(*START)
    (request,) = tracker.asked("start")
    assert (request.priority, request.max_cost, request.store_secrets) == (3, None, True)
    assert (request.intervals, request.webhook, request.webhook_url, request.webhook_key) == (
        (),
        None,
        None,
        None,
    )
    (run_id,) = filled.run_ids()
    assert not filled.run_row(run_id).notify


def test_whom_to_tell_comes_from_the_config_where_no_flag_says_it(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    valk("config", "set", "webhook", "team-slack")
    valk("config", "set", "webhook_key", "sign")
    valk(*START)
    valk("config", "set", "webhook_url", "https://x.example/hook")
    valk(*START, "--webhook", "own")
    first, second = tracker.asked("start")
    assert (first.webhook, first.webhook_key) == ("team-slack", None), "a key alone signs nothing"
    assert (second.webhook, second.webhook_url, second.webhook_key) == (
        "own",
        "https://x.example/hook",
        "sign",
    )
    assert filled.run_ids() == [], "none of the secrets is there"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--priority", "5"], "5 is not in the range 0<=x<=4"),
        (["--max-cost", "0"], "0.0 is not in the range x>0"),
        (["--max-cost", "inf"], "leave --max-cost out for no limit"),
        (["--max-cost", "nan"], "is not a number"),
        (["--max-cost", "much"], "'much' is not a valid US dollars"),
        (["--count", "11"], "11 is not in the range 1<=x<=10"),
        (["-n", "2", "--connect"], "--count and --connect exclude each other"),
        (["-n", "2", "--dry-run"], "--count and --dry-run exclude each other"),
        (["-i", "half"], "'half' is not a valid integer"),
    ],
)
def test_flags_out_of_range(valk: Valk, tracker: RecordedTracker, flags: list[str], says: str) -> None:
    said = valk(*START, *flags)
    assert (said.code, said.out) == (2, "") and says in said.err and not tracker.asked()


def test_repeated_runs_are_listed_together(valk: Valk, filled: FilledStore) -> None:
    said = valk(*START, "-n", "3", "--model-url", "http://127.0.0.1:1/v1")
    assert said.code == 0 and "3 runs started" in said.out and said.err.count("Note: ") == 1
    for number, run_id in enumerate(filled.run_ids(), 1):
        assert f"Run {number}" in said.out and f"valk run fetch {run_id[:8]} --connect" in said.out
    document = valk(*START, "--count", "3", "--json").json
    assert (document["requested"], document["attempted"], document["confirmed"]) == (3, 3, 3)
    assert document["outcome"] == "in_progress"
    assert {run["id"] for run in document["runs"]} < set(filled.run_ids()) and len(filled.run_ids()) == 6


def test_the_first_refusal_ends_repeated_runs_and_tells_what_was_started(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    tracker.fail("start", UserError("the disk is full"), after=2)
    said = valk(*START, "-n", "5", "--json")
    assert said.code == 1 and said.json_error["error_message"] == "the disk is full"
    document = said.json
    assert (document["outcome"], document["requested"], document["attempted"], document["confirmed"]) == (
        "partial",
        5,
        3,
        2,
    )
    assert {run["id"] for run in document["runs"]} == set(filled.run_ids())
    tracker.fail("start", UserError("the disk is full"), after=2)
    said = valk(*START, "-n", "5")
    assert said.code == 1 and "2 of 5 started" in said.out
    assert sum(run_id in said.out for run_id in filled.run_ids()) == 2
    tracker.fail("start", UserError("the disk is full"))
    said = valk(*START, "-n", "5")
    assert (said.code, said.out) == (1, "")


@pytest.mark.parametrize("refusal", [InfrastructureError("the tracker went away"), KeyboardInterrupt()])
def test_whether_the_last_one_was_taken_is_not_always_known(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore, refusal: BaseException
) -> None:
    tracker.fail("start", refusal, after=1)
    said = valk(*START, "-n", "2", "--json")
    assert said.code in (1, 130) and said.json["outcome"] == "uncertain" and said.json["confirmed"] == 1
    assert len(filled.run_ids()) == 1


def test_errors_say_what_to_do(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(
        trials=[
            *[lost()] * 7,
            *[lost(cause="lost_again", passes=(1, 2, 3, 4))] * 3,
            *[lost(category="user", cause="missing_secret")] * 2,
            *[unended("PENDING", category="agent", cause="agent_failed", message="it fell over")] * 9,
        ]
    )
    said = valk("run", "errors", "aaaa")
    assert "12 errors: infrastructure 10, user 2." in said.out
    assert "7 may go away: valk run retry aaaa1111 --category infrastructure" in said.out
    assert "3 are chronic" in said.out and "failed alike in 4 passes" in said.out
    assert "2 need something changed first" in said.out and "tried again by themselves" in said.out
    document = valk("run", "errors", "aaaa", "--json").json
    assert document["totals"] == {"infrastructure": 10, "user": 2}
    assert document["dispositions"] == {"retryable": 7, "chronic": 3, "fix first": 2}


def test_errors_that_all_may_go_away_are_retried_together(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(trials=[lost(), lost(), lost(category="benchmark", cause="setup_timeout")])
    assert "3 may go away: valk run retry aaaa1111\n" in valk("run", "errors", "aaaa").out
    filled.add_run(trials=[lost(passes=(1, 2))] * 2)
    assert "valk run retry" not in valk("run", "errors", "aaaa").out
    waiting = unended("PENDING", category="infrastructure", cause="sandbox_failed", message="no room")
    filled.add_run(trials=[waiting] * 2)
    assert "No open errors." in valk("run", "errors", "aaaa").out


def test_many_groups_are_cut_for_people_only(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(trials=[lost(cause=f"cause-{number}") for number in range(70)])
    said = valk("run", "errors", "aaaa")
    assert "cause-49" in said.out and "cause-50" not in said.out and "50 of 70 groups" in said.err
    assert len(valk("run", "errors", "aaaa", "--json").json["groups"]) == 70


def test_logs_of_a_run_name_the_task_of_each_line(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    filled.add_run(trials=[passed("a"), passed("b", k=2, attempts=3)])
    filled.log("one x\n", "a")
    filled.log("two\x1b[31m x\n", "b", k=2, number=3)
    said = valk("run", "logs", "aaaa", "--query", "x", "--follow")
    assert said.out == "a │ one x\nb#2 │ two x\n"
    assert tracker.asked("run_logs") == [("aaaa", LogQuery(None, None, None, "x", True))]
    said = valk("run", "logs", "aaaa", "--json")
    assert [json.loads(line)["attempt"] for line in said.out.splitlines()] == [1, 3]


@pytest.mark.parametrize(
    ("words", "asked", "said"),
    [
        (["a", "--query", "x"], LogQuery(["a"], 0, None, "x", False), "x one\n"),
        (["a", "--query", "x", "-k", "1"], LogQuery(["a"], 1, None, "x", False), "x again\n"),
        (["--task-id", "a"], LogQuery(["a"], None, None, None, False), "a │ x one\na#1 │ x again\n"),
        (
            ["a", "--task-id", "b", "--task-id", "a"],
            LogQuery(["a", "b"], None, None, None, False),
            "a │ x one\nb │ two\na#1 │ x again\n",
        ),
        (["--attempt", "2", "-k", "0"], LogQuery(None, 0, 2, None, False), "b │ two\n"),
    ],
)
def test_which_logs(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore, words: list[str], asked: LogQuery, said: str
) -> None:
    filled.add_run(trials=[passed("a"), passed("b", attempts=2), passed("a", k=1)])
    filled.log("x one\n", "a")
    filled.log("two\n", "b", number=2)
    filled.log("x again\n", "a", k=1)
    assert valk("run", "logs", "aaaa", *words).out == said
    assert [query for _, query in tracker.asked("run_logs")] == [asked]


def add_hook(filled: FilledStore, kind: str, trigger: str, state: str, **more: Any) -> None:
    row = {"run_id": "aaaa1111", "kind": kind, "trigger": trigger, "state": state, "created_at": 1.0, **more}
    with filled.store.writing() as connection:
        connection.execute(insert(hook).values(**row))


def test_fetch_tells_whose_it_is_what_it_cost_and_who_was_told(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    filled.add_run(
        trials=[*[passed(cost=0.5)] * 7, *[passed()] * 5],
        started_by="ann",
        priority=0,
        max_cost=10.0,
        place={"artifacts": {"kind": "s3", "bucket": "bucket", "prefix": ""}},
    )
    add_hook(filled, "lambda", "ended:2", "failed", detail="function not found", attempts=3, created_at=2.0)
    add_hook(filled, "slack", "progress:25", "done", attempts=1, finished_at=1.0)
    add_hook(filled, "webhook", "ended:1", "pending")
    out = valk("run", "fetch", "aaaa").out
    for row in (
        "Started by   ann",
        "Priority     0 (0 is first, 4 last)",
        "Cost         $3.50 reported by 7 attempts; limit $10.00",
        "Artifacts    s3://bucket/benchmarks/aaaa1111/",
        "Slack        at 25 %  done",
        "Webhook      at the end  to be done",
        "Lambda       at end 2  failed after 3 attempts: function not found",
    ):
        assert row in out, row
    assert "FINISHED" in out and out.index("Slack") < out.index("Lambda")
    plain = valk(*START, "--max-cost", "5").out
    assert "Started by" in plain and "Cost" in plain
    tracker.use(LocalTracker(TrackerApp(filled.data), Identity(org="acme")))
    assert "Organisation  acme" in valk("run", "fetch", "aaaa").out


def test_fetch_says_nothing_of_what_is_as_always(valk: Valk, filled: FilledStore) -> None:
    filled.add_run()
    out = valk("run", "fetch", "aaaa").out
    assert not any(word in out for word in ("Started by", "Organisation", "Priority", "Cost", "Alarm"))


def test_fetch_raises_alarms(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(
        trials=[*[passed()] * 5, unended("IN_PROGRESS", "slow"), *[unended("PENDING")] * 6],
    )
    said = valk("run", "fetch", "aaaa")
    assert "1 trial is under way for more than 30 min: slow (" in said.out
    assert "1 of 5 trials at once, although 6 are pending" in said.out
    assert len(valk("run", "fetch", "aaaa", "--json").json["alarms"]) == 2
    assert valk("run", "fetch", "aaaa", "--json").json["run"]["state"] == "IN_PROGRESS"


def test_list_by_people(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    filled.add_run(started_by="ann", label="x")
    filled.add_run("bbbb", started_by="eve", label="x")
    out = valk("run", "list", "--started-by", "ann, bob,,ann", "--label", "x").out
    assert tracker.asked("list") == [RunFilter(label="x", started_by=("ann", "bob"))]
    assert "Started By" in out and " ann " in out.splitlines()[2] and "eve" not in out
    said = valk("run", "list", "--started-by", " , ")
    assert said.code == 2 and "--started-by names nobody" in said.err


def test_update_changes_place_and_limit(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    filled.add_run(trials=[unended("PENDING")])
    said = valk("run", "update", "aaaa", "--priority", "0", "--max-cost", "50")
    assert tracker.asked("update") == [("aaaa", UpdateRequest(max_cost=50.0, priority=0))]
    assert "priority 0" in said.out and "cost nothing reported; limit $50.00" in said.out


def test_stopping_some_tasks_by_force_asks_about_those(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    filled.add_run(trials=[unended("IN_PROGRESS", task) for task in "abc"])
    said = valk("run", "stop", "aaaa", "--task-ids", "a,b", "--force")
    assert said.code == 2 and "Kill what is under way of 2 tasks of run aaaa1111?" in said.err
    assert valk("run", "stop", "aaaa", "--task-ids-file", "-", stdin="a\nb\n").code == 0
    assert tracker.asked("stop") == [("aaaa", StopRequest(False, ["a", "b"]))]


def test_upload_prints_the_address_and_no_signed_link_in_a_pipe(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    filled.add_run()
    link = ResultsLink("s3://b/k.json", "https://b/k.json?X-Amz-Signature=s3cret", "https://console/b")
    tracker.answers["upload_results"] = lambda _ref, _request: link
    said = valk("run", "results", "aaaa", "--s3", "--task-ids", "a,b")
    assert said.out == "Uploaded to s3://b/k.json\nBrowse   https://console/b\n" and "s3cret" not in said.err
    assert tracker.asked("upload_results") == [("aaaa", ResultsWanted(["a", "b"]))]
    said = valk("run", "results", "aaaa", "--s3", "--json")
    assert said.json == {
        "schema_version": 1, "kind": "results", "status": "completed", "url": "s3://b/k.json",
        "console_url": "https://console/b",
    }  # fmt: skip
    assert valk("run", "results", "aaaa", "--s3", "--path", "x").code == 2


def test_the_queue(valk: Valk, filled: FilledStore) -> None:
    assert valk("queue", "status").out == "The queue is empty; no executor at work.\n"
    two = [unended("IN_PROGRESS")] * 2
    filled.add_run("aaaa1111", [*two, *[unended("PENDING")] * 7], agent="mine", priority=0, started_by="ann")
    filled.add_run("bbbb2222", [unended("PENDING")], agent=EVIL, note="waits for secrets")
    said = valk("queue", "status")
    assert "2 runs: 8 pending, 2 active; no executor at work." in said.out
    assert "valk run resume aaaa1111 goes on" in said.err and "\x1b" not in said.out
    lines = said.out.splitlines()
    assert (
        lines[4].split()[:6] == ["aaaa1111", "0", "IN_PROGRESS", "7", "2", "5"]
        and "waits for secrets" in lines[5]
    )
    add_executor(filled.store, "exec-1")
    add_executor(filled.store, "exec-2")
    said = valk("queue", "status")
    assert " h " in said.out and "2 executors at work" in said.out and " ago" in said.out
    assert said.out.splitlines()[-1].split()[:4] == ["exec-2", "h", "1", "1"]
    assert valk("queue", "status", "--json").json["queue"]["entries"][0]["priority"] == 0


def test_new_text_cannot_drive_the_terminal(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    filled.add_run(started_by=EVIL, place={"artifacts": {"kind": "s3", "bucket": EVIL, "prefix": EVIL}})
    add_hook(filled, EVIL, EVIL, EVIL, detail=EVIL, attempts=1, finished_at=0.0)
    tracker.answers["upload_results"] = lambda _ref, _request: ResultsLink(EVIL, None, EVIL)
    for words in (["fetch", "aaaa"], ["list"], ["results", "aaaa", "--s3"]):
        said = valk("run", *words)
        assert said.code == 0 and "xyz q" in said.out
        assert not any(character in said.out for character in "\x1b\x07\r\u202e")
