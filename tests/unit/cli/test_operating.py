"""Operating runs: who is told, what it may cost, repeated runs, errors, logs, the queue, uploads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.cli.fake_tracker import HALFWAY, FakeTracker, make_run, make_trial
from tests.unit.cli.said import Said
from valkyrie.errors import InfrastructureError
from valkyrie.views import (
    CostView,
    ErrorGroup,
    ExecutorView,
    HookView,
    LogLine,
    LogQuery,
    QueueEntry,
    QueueView,
    ResultsLink,
    RunFilter,
)

Valk = Callable[..., Said]
START = ("run", "start", "--agent", "a", "--benchmark", "b")
EVIL = "x\x1b]0;owned\x07y\x1b[31mz\r\n\u202eq"


def use(fake: FakeTracker, *runs: object) -> None:
    fake.runs = {run.id: run for run in runs}  # type: ignore[attr-defined]


def test_start_passes_on_whom_to_tell_and_what_it_may_cost(valk: Valk, fake: FakeTracker) -> None:
    words = (
        "-i 25 -i 75 --webhook slack --webhook-url https://x.example/hook --webhook-key sign --lambda after "
        "--priority 0 --max-cost $12.5 --no-store-secrets"
    )
    assert valk(*START, *words.split()).code == 0
    request = fake.asked[0][1]
    assert (request.intervals, request.webhook, request.webhook_url) == (
        (25, 75),
        "slack",
        "https://x.example/hook",
    )
    assert (request.webhook_key, request.lambda_function) == ("sign", "after")
    assert (request.priority, request.max_cost, request.store_secrets) == (0, 12.5, False)


def test_start_asks_for_nothing_of_it_by_itself(valk: Valk, fake: FakeTracker) -> None:
    valk(*START)
    request = fake.asked[0][1]
    assert (request.priority, request.max_cost, request.store_secrets) == (3, None, True)
    assert (request.intervals, request.webhook, request.webhook_url, request.webhook_key) == (
        (),
        None,
        None,
        None,
    )


def test_whom_to_tell_comes_from_the_config_where_no_flag_says_it(valk: Valk, fake: FakeTracker) -> None:
    valk("config", "set", "webhook", "team-slack")
    valk("config", "set", "webhook_key", "sign")
    valk(*START)
    first = fake.asked[0][1]
    assert (first.webhook, first.webhook_key) == ("team-slack", None), "a key alone signs nothing"
    valk("config", "set", "webhook_url", "https://x.example/hook")
    valk(*START, "--webhook", "own")
    second = [asked for asked in fake.asked if asked[0] == "start"][1][1]
    assert (second.webhook, second.webhook_url, second.webhook_key) == (
        "own",
        "https://x.example/hook",
        "sign",
    )


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
def test_flags_out_of_range(valk: Valk, fake: FakeTracker, flags: list[str], says: str) -> None:
    said = valk(*START, *flags)
    assert (said.code, said.out) == (2, "") and says in said.err and not fake.asked


def test_repeated_runs_are_listed_together(valk: Valk, fake: FakeTracker) -> None:
    use(fake, *(make_run(f"run-{number}") for number in range(3)))
    said = valk(*START, "-n", "3")
    assert said.code == 0 and "3 runs started" in said.out and said.err.count("Note: ") == 1
    for number in range(3):
        assert f"Run {number + 1}" in said.out and f"valk run fetch run-{number} --connect" in said.out
    document = valk(*START, "--count", "3", "--json").json
    assert (document["requested"], document["attempted"], document["confirmed"]) == (3, 3, 3)
    assert document["outcome"] == "in_progress" and [run["id"] for run in document["runs"]] == [
        "run-0",
        "run-1",
        "run-2",
    ]


def test_the_first_refusal_ends_repeated_runs_and_tells_what_was_started(
    valk: Valk, fake: FakeTracker
) -> None:
    use(fake, make_run("run-0"), make_run("run-1"))
    fake.most_starts = 2
    said = valk(*START, "-n", "5", "--json")
    assert said.code == 1 and said.json_error["error_message"] == "the disk is full"
    document = said.json
    assert (document["outcome"], document["requested"], document["attempted"], document["confirmed"]) == (
        "partial",
        5,
        3,
        2,
    )
    fake.asked.clear()
    said = valk(*START, "-n", "5")
    assert said.code == 1 and "2 of 5 started" in said.out and "run-1" in said.out
    fake.asked.clear()
    fake.most_starts = 0
    said = valk(*START, "-n", "5")
    assert (said.code, said.out) == (1, "")


@pytest.mark.parametrize("refusal", [InfrastructureError("the tracker went away"), KeyboardInterrupt()])
def test_whether_the_last_one_was_taken_is_not_always_known(
    valk: Valk, fake: FakeTracker, refusal: BaseException
) -> None:
    fake.most_starts, fake.refusal = 1, refusal
    said = valk(*START, "-n", "2", "--json")
    assert said.code in (1, 130) and said.json["outcome"] == "uncertain" and said.json["confirmed"] == 1


def group(disposition: str, count: int, category: str = "infrastructure", **changed: object) -> ErrorGroup:
    made = ErrorGroup(category, "cause", "no room", count, True, ["a"], disposition=disposition)  # type: ignore[arg-type]
    return replace(made, **changed)  # type: ignore[arg-type]


def test_errors_say_what_to_do(valk: Valk, fake: FakeTracker) -> None:
    fake.groups = [
        group("retryable", 7),
        group("chronic", 3, passes=4),
        group("fix first", 2, "user"),
        group("retryable", 9, "agent", retrying=True),
    ]
    said = valk("run", "errors", "run")
    assert "12 errors: infrastructure 10, user 2." in said.out
    assert "7 may go away: valk run retry run-aaaa1111 --category infrastructure" in said.out
    assert "3 are chronic" in said.out and "failed alike in 4 passes" in said.out
    assert "2 need something changed first" in said.out and "tried again by themselves" in said.out
    document = valk("run", "errors", "run", "--json").json
    assert document["totals"] == {"infrastructure": 10, "user": 2}
    assert document["dispositions"] == {"retryable": 7, "chronic": 3, "fix first": 2}


def test_errors_that_all_may_go_away_are_retried_together(valk: Valk, fake: FakeTracker) -> None:
    fake.groups = [group("retryable", 2), group("retryable", 1, "benchmark")]
    assert "3 may go away: valk run retry run-aaaa1111\n" in valk("run", "errors", "run").out
    fake.groups = [group("chronic", 2)]
    assert "valk run retry" not in valk("run", "errors", "run").out
    fake.groups = [group("retryable", 2, retrying=True)]
    assert "No open errors." in valk("run", "errors", "run").out


def test_many_groups_are_cut_for_people_only(valk: Valk, fake: FakeTracker) -> None:
    fake.groups = [group("retryable", 1, cause=f"cause-{number}") for number in range(70)]
    said = valk("run", "errors", "run")
    assert "cause-49" in said.out and "cause-50" not in said.out and "50 of 70 groups" in said.err
    assert len(valk("run", "errors", "run", "--json").json["groups"]) == 70


def test_logs_of_a_run_name_the_task_of_each_line(valk: Valk, fake: FakeTracker) -> None:
    fake.lines = [LogLine("a", 0, 1, "one"), LogLine("b", 2, 3, "two\x1b[31m")]
    said = valk("run", "logs", "run", "--query", "x", "--follow")
    assert said.out == "a │ one\nb#2 │ two\n"
    assert fake.asked[0] == ("run_logs", "run-aaaa1111", LogQuery(None, None, None, "x", True))
    said = valk("run", "logs", "run", "--json")
    assert [json.loads(line)["attempt"] for line in said.out.splitlines()] == [1, 3]


@pytest.mark.parametrize(
    ("words", "asked", "first"),
    [
        (["a", "--query", "x"], LogQuery(["a"], 0, None, "x", False), "one"),
        (["a", "--query", "x", "-k", "1"], LogQuery(["a"], 1, None, "x", False), "one"),
        (["--task-id", "a"], LogQuery(["a"], None, None, None, False), "a │ one"),
        (["a", "--task-id", "b", "--task-id", "a"], LogQuery(["a", "b"], None, None, None, False), "a │ one"),
        (["--attempt", "2", "-k", "0"], LogQuery(None, 0, 2, None, False), "a │ one"),
    ],
)
def test_which_logs(valk: Valk, fake: FakeTracker, words: list[str], asked: LogQuery, first: str) -> None:
    fake.lines = [LogLine("a", 0, 1, "one")]
    said = valk("run", "logs", "run", *words)
    assert said.out == first + "\n" and fake.asked[0] == ("run_logs", "run-aaaa1111", asked)


def test_fetch_tells_whose_it_is_what_it_cost_and_who_was_told(valk: Valk, fake: FakeTracker) -> None:
    hooks = [
        HookView("lambda", "ended:2", "failed", "function not found", 3, 2.0, 3.0),
        HookView("slack", "progress:25", "done", None, 1, 1.0, 1.0),
        HookView("webhook", "ended:1", "pending", None, 0, 1.5, None),
    ]
    run = make_run(
        started_by="ann", org="acme", priority=0, cost=CostView(3.5, 7, 10.0), hooks=hooks,
        links={"artifacts": "s3://bucket/benchmarks/x/", "logs": "benchmarks/x"},
    )  # fmt: skip
    use(fake, run)
    out = valk("run", "fetch", "run").out
    for row in (
        "Started by    ann",
        "Organisation  acme",
        "Priority      0 (0 is first, 4 last)",
        "Cost          $3.50 reported by 7 attempts; limit $10.00",
        "Artifacts     s3://bucket/benchmarks/x/",
        "Slack         at 25 %  done",
        "Webhook       at the end  to be done",
        "Lambda        at end 2  failed after 3 attempts: function not found",
    ):
        assert row in out
    assert "FINISHED" in out and out.index("Slack") < out.index("Lambda")
    plain = valk("run", "start", "--agent", "a", "--benchmark", "b").out
    assert "Started by" in plain and "Cost" in plain


def test_fetch_says_nothing_of_what_is_as_always(valk: Valk) -> None:
    out = valk("run", "fetch", "run").out
    assert not any(word in out for word in ("Started by", "Organisation", "Priority", "Cost", "Alarm"))


def test_fetch_raises_alarms(valk: Valk, fake: FakeTracker) -> None:
    going = make_run(
        state="IN_PROGRESS", finished_at=None, score=HALFWAY,
        counts={"FINISHED": 5, "IN_PROGRESS": 1, "PENDING": 6},
    )  # fmt: skip
    use(fake, going)
    fake.trial_views = [
        make_trial("slow", state="IN_PROGRESS", finished_at=None),
        make_trial("p", state="PENDING"),
    ]
    said = valk("run", "fetch", "run")
    assert "1 trial is under way for more than 30 min: slow (" in said.out
    assert "1 of 5 trials at once, although 6 are pending" in said.out
    assert len(valk("run", "fetch", "run", "--json").json["alarms"]) == 2
    assert valk("run", "fetch", "run", "--json").json["run"]["state"] == "IN_PROGRESS"


def test_list_by_people(valk: Valk, fake: FakeTracker) -> None:
    use(fake, make_run(started_by="ann"))
    out = valk("run", "list", "--started-by", "ann, bob,,ann", "--label", "x").out
    assert fake.asked[0] == ("list", RunFilter(label="x", started_by=("ann", "bob")))
    assert "Started By" in out and " ann " in out.splitlines()[2]
    said = valk("run", "list", "--started-by", " , ")
    assert said.code == 2 and "--started-by names nobody" in said.err


def test_update_changes_place_and_limit(valk: Valk, fake: FakeTracker) -> None:
    said = valk("run", "update", "run", "--priority", "0", "--max-cost", "50")
    assert fake.asked[0] == ("update", "run", None, None, 50.0, 0)
    assert "priority 0" in said.out and "cost nothing reported; limit $50.00" in said.out


def test_stopping_some_tasks_by_force_asks_about_those(valk: Valk, fake: FakeTracker) -> None:
    said = valk("run", "stop", "run", "--task-ids", "a,b", "--force")
    assert said.code == 2 and "Kill what is under way of 2 tasks of run run-aaaa1111?" in said.err
    assert valk("run", "stop", "run", "--task-ids-file", "-", stdin="a\nb\n").code == 0
    assert [asked for asked in fake.asked if asked[0] == "stop"] == [("stop", "run", False, ["a", "b"])]


def test_upload_prints_the_address_and_no_signed_link_in_a_pipe(valk: Valk, fake: FakeTracker) -> None:
    fake.link = ResultsLink("s3://b/k.json", "https://b/k.json?X-Amz-Signature=s3cret", "https://console/b")
    said = valk("run", "results", "run", "--s3", "--task-ids", "a,b")
    assert said.out == "Uploaded to s3://b/k.json\nBrowse   https://console/b\n" and "s3cret" not in said.err
    assert fake.asked[0] == ("upload", "run", ["a", "b"])
    said = valk("run", "results", "run", "--s3", "--json")
    assert said.json == {
        "schema_version": 1, "kind": "results", "status": "completed", "url": "s3://b/k.json",
        "console_url": "https://console/b",
    }  # fmt: skip
    assert valk("run", "results", "run", "--s3", "--path", "x").code == 2


def test_the_queue(valk: Valk, fake: FakeTracker) -> None:
    assert valk("queue", "status").out == "The queue is empty; no executor at work.\n"
    entries = [
        QueueEntry("run-1", "mine", "quickstart", 0, "IN_PROGRESS", 7, 2, 5, 1_700_000_000.0, "ann", None),
        QueueEntry(
            "run-2", EVIL, "quickstart", 3, "IN_PROGRESS", 1, 0, 5, 1_700_000_000.0, None, "waits for secrets"
        ),
    ]
    fake.queued = QueueView(entries, [])
    said = valk("queue", "status")
    assert "2 runs: 8 pending, 2 active; no executor at work." in said.out
    assert "valk run resume run-1 goes on" in said.err and "\x1b" not in said.out
    lines = said.out.splitlines()
    assert (
        lines[4].split()[:6] == ["run-1", "0", "IN_PROGRESS", "7", "2", "5"]
        and "waits for secrets" in lines[5]
    )
    executors = [
        ExecutorView("exec-1", "host-a", 42, "1.2", 1_700_000_000.0, 1_700_000_000.0, 4),
        ExecutorView("exec-2", "", 0, "1.2", 1_700_000_000.0, 1_700_000_000.0, 0),
    ]
    fake.queued = QueueView(entries, executors)
    said = valk("queue", "status")
    assert "host-a" in said.out and "2 executors at work" in said.out and " ago" in said.out
    assert said.out.splitlines()[-1].split()[:5] == ["exec-2", "—", "—", "1.2", "—"]
    assert valk("queue", "status", "--json").json["queue"]["entries"][0]["priority"] == 0


def test_new_text_cannot_drive_the_terminal(valk: Valk, fake: FakeTracker) -> None:
    run = make_run(
        started_by=EVIL, org=EVIL, links={EVIL: EVIL}, hooks=[HookView(EVIL, EVIL, EVIL, EVIL, 1, 0.0, 0.0)]
    )
    use(fake, run)
    fake.link = ResultsLink(EVIL, None, EVIL)
    for words in (["fetch", "run"], ["list"], ["results", "run", "--s3"]):
        said = valk("run", *words)
        assert said.code == 0 and "xyz q" in said.out
        assert not any(character in said.out for character in "\x1b\x07\r\u202e")
