"""`run …`: what is asked of the tracker, and what is printed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.command_result import CommandResult
from tests.unit.cli.filled_store import (
    HALFWAY,
    PROVISIONAL,
    RUN,
    FilledStore,
    Trial,
    failed,
    lost,
    passed,
    unended,
)
from tests.unit.cli.recorded_tracker import RecordedTracker
from valkyrie.tracker.app import TrackerApp
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import (
    ResumeRequest,
    RetryRequest,
    RunFilter,
    RunRequest,
    StopRequest,
    TrialFilter,
    UpdateRequest,
)

Valk = Callable[..., CommandResult]
EVIL = "x\x1b]0;owned\x07y\x1b[31mz\r\n\u202eq"
NULL = "valkyrie.testing.null:NullBenchmark"
START = ("run", "start", "--agent", "nop", "--benchmark", NULL, "--dataset", "2", "--provider", "null")


def test_start_asks_for_all_that_was_said(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore, tmp_path: Path
) -> None:
    (tmp_path / "ids.txt").write_text("task-2\n\n  task-3 \ntask-0\n")
    words = (
        f"--agent nop --benchmark {NULL} --model m --dataset 9 --concurrency 9 -s K name -k t 1 --kwarg u 2 "
        "--task-ids task-0,task-1 --task-ids-file ids.txt --slice 0:3 -l mine --provider null --host-image "
        "--on-agent-failure error --keep-sandbox --trials 3 --timeout-multiplier 2 --max-attempts 4 "
        "-H X-Team blue --header Authorization own --ics"
    )
    said = valk("run", "start", *words.split())
    assert tracker.asked("start") == [
        RunRequest(
            "nop", NULL, "m", "9", 9, 3, {"t": "1", "u": "2"}, {"K": "name"},
            ["task-0", "task-1", "task-2", "task-3"], "0:3", "mine", "null",
            {"X-Team": "blue", "Authorization": "own"}, True, True, "error", True, 2.0, 4,
        )
    ]  # fmt: skip
    assert said.code == 1 and "3 things stand in the way" in said.err
    assert "takes no parameters" in said.err and "null is none" in said.err and "fills K" in said.err
    assert len(tracker.asked("close")) == 1 and filled.run_ids() == []


def test_start_prints_the_panel_and_the_commands_one_needs_next(valk: Valk, filled: FilledStore) -> None:
    said = valk(*START, "--model-url", "http://127.0.0.1:1/v1")
    (run_id,) = filled.run_ids()
    for word in ("Run started", run_id, "Concurrency  5", str(filled.data.run(run_id).root)):
        assert word in said.out
    for verb in ("results", "resume", "retry", "outputs"):
        assert f"valk run {verb} {run_id[:8]}" in said.out
    assert "\x1b" not in said.out
    assert said.err.startswith("Note: ") and "127.0.0.1:1" in said.err and said.err.count("\n") == 1


def test_start_takes_defaults_from_config(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    valk("config", "set", "DEFAULT_concurrency", "17")
    monkeypatch.setenv("VALKYRIE_PROVIDER", "null")
    assert valk(*START[:8]).code == 0
    (request,) = tracker.asked("start")
    assert (request.concurrency, request.provider) == (17, "null")
    (run_id,) = filled.run_ids()
    assert (filled.run_row(run_id).concurrency, filled.run_row(run_id).provider) == (17, "null")


def test_task_ids_from_stdin_and_bad_files(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    words = (*START, "--task-ids-file")
    assert valk(*words, "-", stdin="task-1\n# a remark\n task-0\n").code == 0
    assert tracker.asked("start")[0].task_ids == ["task-1", "task-0"] and len(filled.run_ids()) == 1
    assert "missing.txt: No such file" in valk(*words, "missing.txt").err
    Path("picture.png").write_bytes(b"\x89PNG")
    assert "picture.png: not a text file" in valk(*words, "picture.png").err
    said = valk(*words, "-", stdin="\n\n")
    assert said.code == 2 and "No task id was given" in said.err


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        (["X Team", "v-secret"], "'X Team' is not the name of a header"),
        (["X-Team\n", "v-secret"], "is not the name of a header"),
        (["X-Team", "v-secret\r\nX-Other: 1"], "the value of X-Team is not plain ASCII on one line"),
        (["X-Team", "v-secret\u00e9"], "the value of X-Team is not plain ASCII on one line"),
        (["Content-Length", "v-secret"], "Content-Length belongs to the connection itself"),
        (["Sec-WebSocket-Key", "v-secret"], "belongs to the connection itself"),
        (["X-Team", "v-secret", "-H", "x-team", "v-secret"], "x-team is given twice"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_without_their_value(
    valk: Valk, tracker: RecordedTracker, pairs: list[str], says: str
) -> None:
    said = valk("run", "start", "--agent", "a", "--benchmark", "b", "-H", *pairs)
    assert (said.code, said.out) == (2, "") and says in said.err
    assert "v-secret" not in said.err and not tracker.asked()


def test_dry_run_starts_nothing_and_tells_all_problems(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    said = valk(*START, "--dry-run")
    assert said.code == 0 and "2 (2 tasks)" in said.out and "nothing was started" in said.out
    words = (*START, "-s", "API_KEY", "none-such", "-s", "OTHER", "gone", "--dry-run")
    said = valk(*words)
    assert said.code == 1 and "none-such" in said.out and "gone (fills OTHER)" in said.out
    said = valk(*words, "--json")
    assert said.code == 1 and said.json["would_start"] is False
    assert len(tracker.asked("plan")) == 3 and not tracker.asked("start") and filled.run_ids() == []


def test_a_refused_start_exits_1_and_says_why(valk: Valk, filled: FilledStore) -> None:
    said = valk(*START, "-s", "API_KEY", "none-such")
    assert (said.code, said.out) == (1, "") and filled.run_ids() == []
    assert said.err == (
        "Error: 1 secret without a value:\n  none-such (fills API_KEY): `export API_KEY=…`, or API_KEY=… in "
        ".env, or `valk secret set none-such`\n"
    )


def test_connect_in_a_pipe_is_a_line_per_change(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    filled.add_run(trials=HALFWAY)
    tracker.changes["follow"] = [lambda: filled.change_run(priority=1), filled.end_runs]
    said = valk("run", "fetch", "aaaa", "--connect")
    lines = [line for line in said.out.splitlines() if "oracle on quickstart" in line]
    assert said.code == 0 and len(lines) == 2, "another priority is no other state"
    assert "IN_PROGRESS  5/12" in lines[0] and "FINISHED  12/12" in lines[1]
    assert "Run ended" in said.out and "\x1b" not in said.out


def test_connect_under_json_is_json_lines(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    filled.add_run(trials=HALFWAY)
    tracker.changes["follow"] = [filled.end_runs]
    said = valk("run", "fetch", "aaaa", "--connect", "--json")
    assert [json.loads(line)["event"] for line in said.out.splitlines()] == ["snapshot", "update", "complete"]


def interrupt(*_words: object, **_named: object) -> Any:
    raise KeyboardInterrupt


def test_ctrl_c_detaches_with_next_steps(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    filled.add_run(trials=HALFWAY)
    tracker.answers["follow"] = interrupt
    said = valk("run", "fetch", "aaaa", "--connect")
    assert said.code == 130
    assert "goes on without this window" in said.out and "valk run fetch aaaa1111 --connect" in said.out


def test_fetch_leads_with_the_right_number(valk: Valk, filled: FilledStore) -> None:
    filled.add_run()
    said = valk("run", "fetch", "aaaa")
    assert "final_score  100.0 % (95 % interval 73.5–100.0)" in said.out
    assert "coverage     12/12 graded (100.0 %), no errors" in said.out
    filled.add_run(trials=PROVISIONAL)
    said = valk("run", "fetch", "aaaa")
    lines = [line for line in said.out.splitlines() if "score" in line or "coverage" in line]
    assert "score         75.0 % to 91.7 %, depending on 2 ungraded trials" in lines[0]
    assert "score_graded  90.0 % provisional (95 % interval 55.5–99.7)" in lines[1]
    assert "final_score   75.0 %" in lines[2]
    assert "coverage      10/12 graded (83.3 %), 2 errors: infrastructure 2" in lines[-1]
    assert "valk run retry" in said.out and "valk run errors" in said.out


def test_fetch_json_holds_the_whole_view(valk: Valk, filled: FilledStore) -> None:
    filled.add_run()
    document = valk("run", "fetch", "aaaa", "--json").json
    assert document["kind"] == "run" and document["schema_version"] == 1
    assert document["run"]["score"]["coverage"] == 1.0


def test_list_shows_errors_and_coverage_beside_the_score(valk: Valk, filled: FilledStore) -> None:
    filled.executor.leave()
    benchmark_errors = [*[passed()] * 9, failed(), *[lost(category="benchmark", cause="bad_task")] * 2]
    filled.add_run("cccc", benchmark_errors, created_at=3.0)
    filled.add_run(trials=PROVISIONAL, created_at=2.0)
    filled.add_run("bbbb", HALFWAY, model="m/1", label="mine", created_at=1.0)
    said = valk("run", "list")
    assert "75.0 to 91.7 %" in said.out and "10/12" in said.out and "a to b: the score if" in said.out
    assert "IN_PROGRESS (no executor)" in said.out and "valk run resume bbbb goes on" in said.out
    lines = said.out.splitlines()
    assert len({len(line) for line in lines[:2]}) == 1 and "default" in lines[2]


def test_fetch_says_how_agents_ended_and_leads_to_their_logs(valk: Valk, filled: FilledStore) -> None:
    codes = [127] * 9 + [1] * 2 + [2]
    filled.add_run(trials=[failed(exit_code=code) for code in codes])
    said = valk("run", "fetch", "aaaa").out
    assert "12 of 12 agents ended with exit codes other than 0 (127: 9, 1: 2, 2: 1)" in said
    assert "valk run logs" in said.partition("Next")[2]


def test_took_is_the_time_a_run_worked(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(worked_s=125.0, started_at=1_700_000_000.0, finished_at=1_700_090_000.0)
    assert "took 2 min 05 s" in valk("run", "fetch", "aaaa").out
    assert "2 min 05 s" in valk("run", "list").out


def test_list_says_why_runs_stopped_by_themselves(valk: Valk, filled: FilledStore) -> None:
    filled.add_run()
    filled.add_run("bbbb", [unended("STOPPED")], stop_reason="stopped by itself: all failed")
    assert "bbbb stopped by itself: all failed" in valk("run", "list").out


def test_list_passes_filters_on(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    words = "--agent-name a --benchmark-name b --model m --dataset d -l x --status finished"
    filled.add_run("cccc")
    filled.add_run("dddd", agent="a", benchmark="b", model="m", dataset="d", label="x")
    found = valk("run", "list", *words.split(), "--order-by", "asc", "--limit", "7", "--json").json["runs"]
    assert [run["id"] for run in found] == ["dddd"]
    assert tracker.asked("list") == [RunFilter("a", "b", "m", "d", "FINISHED", "x", (), False, 7)]


def test_list_all_puts_pages_together(valk: Valk, filled: FilledStore) -> None:
    filled.add_runs([f"{number:04x}" for number in range(1203)])
    assert len(valk("run", "list", "--all", "--json").json["runs"]) == 1203
    said = valk("run", "list")
    assert len(said.out.splitlines()) == 52 and "50 of 1203 runs" in said.err


def test_empty_lists_say_what_to_do(valk: Valk, filled: FilledStore) -> None:
    assert "valk run start" in valk("run", "list").out
    assert valk("run", "list", "--label", "x").out == "No run matches.\n" and filled.run_ids() == []


@pytest.mark.parametrize(
    ("trials", "columns", "flags", "code", "says"),
    [
        ([passed()], {}, [], 0, ""),
        ([passed()], {}, ["--min-score", "1.0"], 0, ""),
        (PROVISIONAL, {}, [], 1, "2 errors open"),
        ([passed(), unended("STOPPED")], {}, [], 1, "ended STOPPED"),
        (
            [passed(), unended("STOPPED")],
            {"stop_reason": "stopped by itself"},
            [],
            1,
            "the run ended STOPPED: stopped by itself",
        ),
        (PROVISIONAL[:10] + [unended("STOPPED")] * 2, {"state": "FINISHED"}, [], 1, "10 of 12 planned"),
        ([lost()], {}, [], 1, "no trial was graded"),
        (
            [failed(exit_code=3), *[passed()] * 11],
            {},
            [],
            0,
            "1 of 12 agents ended with exit code 3; `valk run logs",
        ),
        ([passed()], {}, ["--min-score", "1.1"], 1, "final_score 100.0 % is below 110.0 %"),
        (HALFWAY, {}, ["--timeout", "0"], 124, "did not end within 0 s"),
    ],
)
def test_wait_is_an_exit_code(
    valk: Valk,
    filled: FilledStore,
    trials: Sequence[Trial],
    columns: dict[str, Any],
    flags: list[str],
    code: int,
    says: str,
) -> None:
    filled.add_run(trials=trials, **columns)
    said = valk("run", "wait", "aaaa", *flags)
    assert said.code == code and says in said.err
    document = valk("run", "wait", "aaaa", *flags, "--json").json
    assert document["passed"] is (code == 0) and bool(document["reasons"]) is (code != 0)


@pytest.mark.parametrize(
    ("passes", "wanted", "outcome", "says"),
    [
        (12, "0.7", "reached", ""),
        (12, "0.8", "can't tell", "reaches 80.0 %: its 95 % interval is 73.5–100.0"),
        (2, "0.5", "below", "final_score is surely below 50.0 %: its 95 % interval is 2.1–48.4"),
        (None, "0.5", "can't tell", "it has no interval"),
    ],
)
def test_wait_can_ask_the_whole_interval(
    valk: Valk, filled: FilledStore, passes: int | None, wanted: str, outcome: str, says: str
) -> None:
    if passes is None:
        filled.add_run(trials=[passed()], fraction=False, final_score=4876.5)
    else:
        filled.add_run(trials=[passed()] * passes + [failed()] * (12 - passes))
    words = ("run", "wait", "aaaa", "--min-score", wanted, "--sure")
    said = valk(*words)
    assert said.code == (0 if outcome == "reached" else 1) and says in said.err
    document = valk(*words, "--json").json
    assert (document["sure"], document["passed"]) == (outcome, outcome == "reached")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["wait", "aaaa", "--min-score", "nan"], "'nan' is not a number"),
        (["wait", "aaaa", "--timeout", "nan"], "'nan' is not a number"),
        (["wait", "aaaa", "--sure"], "--sure is about --min-score"),
        (["update", "aaaa", "--concurrency", "many"], "'many' is not a valid whole number"),
    ],
)
def test_what_is_no_number_is_refused(valk: Valk, words: list[str], says: str) -> None:
    said = valk("run", *words)
    assert said.code == 2 and says in said.err


def test_resuming_a_finished_run_says_so(valk: Valk, filled: FilledStore) -> None:
    filled.add_run()
    said = valk("run", "resume", "aaaa", "--connect")
    assert said.code == 0 and "Nothing to do" in said.out and "goes on" not in said.out


def test_force_stop_needs_a_yes(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    filled.add_run(trials=[unended("IN_PROGRESS", "a"), unended("PENDING", "b"), unended("PENDING", "c")])
    said = valk("run", "stop", "aaaa", "--force")
    assert said.code == 2 and "--yes" in said.err
    assert valk("run", "stop", "aaaa", "--force", "--yes", "--task-ids", "a").code == 0
    assert (filled.run_row().n_stopped, filled.run_row().n_pending) == (1, 2)
    assert valk("run", "stop", "aaaa").code == 0
    assert filled.run_row().n_stopped == 3
    assert tracker.asked("stop") == [
        ("aaaa1111", StopRequest(True, ["a"])),
        ("aaaa", StopRequest(False, None)),
    ]


def test_resume_retry_update_delete(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    filled.add_run(trials=[lost("a"), lost("b"), unended("STOPPED", "c")])
    assert valk("run", "resume", "aaaa", "--concurrency", "20").code == 0
    assert (filled.run_row().n_pending, filled.run_row().concurrency) == (1, 20)
    assert valk("run", "retry", "aaaa", "--category", "infrastructure", "--task-ids", "a").code == 0
    assert (filled.run_row().n_pending, filled.run_row().n_error) == (2, 1)
    assert valk("run", "retry", "aaaa", "--from-scratch").code == 0
    assert (filled.run_row().n_pending, filled.run_row().n_error) == (3, 0)
    assert "is not on a benchmark service" in valk("run", "resume", "aaaa", "-H", "X-Team", "blue").err
    assert valk("run", "retry", "aaaa", "-H", "X-Team", "red").code == 1
    assert "concurrency 40" in valk("run", "update", "aaaa", "--concurrency", "40").out
    assert valk("run", "delete", "aaaa").code == 2
    assert valk("run", "delete", "aaaa", "-y").code == 1, "it has not ended"
    filled.end_runs()
    assert valk("run", "delete", "aaaa", "-y").out == "Deleted run aaaa1111.\n"
    assert filled.run_ids() == []
    assert tracker.asked("resume") == [
        ("aaaa", ResumeRequest(20, None, {})),
        ("aaaa", ResumeRequest(None, None, {"X-Team": "blue"})),
    ]
    assert tracker.asked("retry") == [
        ("aaaa", RetryRequest(task_ids=["a"], category="infrastructure")),
        ("aaaa", RetryRequest(from_scratch=True)),
        ("aaaa", RetryRequest(headers={"X-Team": "red"})),
    ]
    assert tracker.asked("update") == [("aaaa", UpdateRequest(concurrency=40))]
    assert tracker.asked("delete") == ["aaaa1111"] * 2


def test_results_never_overwrites_unasked(valk: Valk, filled: FilledStore, tmp_path: Path) -> None:
    filled.add_run()
    assert valk("run", "results", "aaaa").code == 0
    target = tmp_path / "quickstart.json"
    assert json.loads(target.read_text())["score"]["final_score"] == 1.0
    target.write_text("mine")
    said = valk("run", "results", "aaaa", "--json")
    assert said.code == 1 and said.json_error["reason"] == "target_exists"
    assert target.read_text() == "mine"
    assert valk("run", "results", "aaaa", "--force", "--json").json["status"] == "completed"
    assert target.read_text() != "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "quickstart.json"]


def test_results_to_stdout_and_to_nowhere(valk: Valk, filled: FilledStore) -> None:
    (first, *_) = tasks = valk("benchmark", "tasks", "quickstart").out.split()
    filled.add_run(trials=[passed(task) for task in tasks], final_evaluation={"final_score": 1.0})
    said = valk("run", "results", "aaaa", "--path", "-", "--task-ids", first)
    assert said.json["benchmark_id"] == RUN and list(said.json["evaluation_results"]) == [first]
    said = valk("run", "results", "aaaa", "--path", "no/such/folder.json")
    assert (said.code, said.err) == (
        1,
        "Error: no/such/folder.json cannot be written: No such file or directory.\n",
    )
    said = valk("run", "results", "aaaa", "--path", ".", "--force")
    assert (said.code, said.out) == (0, "Wrote quickstart.json\n")


@pytest.mark.parametrize("noun", ["run", "agent"])
def test_outputs(valk: Valk, filled: FilledStore, noun: str) -> None:
    filled.add_run(trials=[passed("a"), passed("b")])
    filled.keep({"agent/answer.txt": "42"}, "a")
    assert valk(noun, "outputs", "aaaa", "--output-dir", "out").out == "1 trial folder in out\n"
    assert Path("out/a/agent/answer.txt").read_text() == "42"
    assert valk(noun, "outputs", "aaaa", "--json").json["folder"].endswith("quickstart_oracle_aaaa1111")


def test_errors_are_grouped_with_the_way_on(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(trials=[lost(task, k=k) for task in "abcdefg" for k in range(10)])
    said = valk("run", "errors", "aaaa")
    assert "infrastructure/sandbox_failed" in said.out and "a, b, c, d, e and 2 more" in said.out
    assert "valk run retry aaaa1111" in said.out and "valk run logs aaaa1111 a" in said.out
    assert valk("run", "errors", "aaaa", "--json").json["groups"][0]["count"] == 70
    filled.add_run()
    assert valk("run", "errors", "aaaa").out == "No open errors.\n"


def test_tasks_pass_filters_on(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    filled.add_run(trials=[passed()] * 5)
    words = "--status finished --status ERROR --search t --sort duration --order-by DESC --limit 2 --offset 1"
    said = valk("run", "tasks", "aaaa", *words.split())
    assert tracker.asked("trials")[0][1] == TrialFilter(("FINISHED", "ERROR"), "t", "duration", True, 2, 1)
    assert "t1" in said.out and "3.2 s" in said.out and "2 trials of 5, from 1" in said.err


def test_logs(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    filled.add_run(trials=[passed("a"), passed("a/b", k=1, attempts=2)])
    filled.log("hello from the agent\n", "a")
    filled.log("hello from the agent\n", "a/b", k=1, number=2)
    words = ("run", "logs", "aaaa", "a/b", "--attempt", "2", "-k", "1", "-f")
    assert valk(*words).out == "hello from the agent\n"
    assert tracker.asked("logs") == [("aaaa", "a/b", 1, 2, True)]
    assert valk("run", "logs", "aaaa", "a", "--json").json["text"] == "hello from the agent\n"


def test_debug_under_json_prints_the_command(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(trials=[passed("a")])
    assert valk("run", "debug", "aaaa", "a", "--json").json["argv"] == ["echo", "in", "the", "sandbox"]


def test_debug_again_runs_the_task_once_more_and_opens_that_sandbox(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    valk(*START, "--model", "m")
    (first,) = filled.run_ids()
    filled.end_runs()
    filled.change_run(first, arguments={**filled.run_row(first).arguments, "agent_digest": "old"})
    filled.executor.on_wake = filled.end_runs
    tracker.forget()
    ended = valk("run", "debug", first, "task-1", "--again", "--json")
    assert (ended.code, ended.json["argv"]) == (0, filled.executor.shell), ended
    (request,) = tracker.asked("start")
    assert (request.agent, request.model, request.task_ids) == ("nop", "m", ["task-1"])
    assert request.keep_sandbox and request.max_attempts == 1 and request.provider == "null"
    (again,) = (run_id for run_id in filled.run_ids() if run_id != first)
    assert tracker.asked("shell") == [(again, "task-1", 0)]
    assert "The agent is not as it was" in ended.err and "its sandbox is kept" in ended.err


def test_debug_takes_headers_only_to_run_again(valk: Valk) -> None:
    ended = valk("run", "debug", "aaaa", "a", "-H", "X-Key", "v")
    assert ended.code == 2 and "-H is for --again" in ended.err


def test_user_text_cannot_drive_the_terminal(valk: Valk, filled: FilledStore) -> None:
    error = lost(EVIL, category="agent", cause=EVIL, message=EVIL)
    filled.add_run(trials=[error], agent=EVIL, model=EVIL, benchmark=EVIL, label=EVIL, note=EVIL, error=EVIL)
    for words in (
        ["list"],
        ["fetch", "aaaa"],
        ["tasks", "aaaa"],
        ["errors", "aaaa"],
        ["fetch", "aaaa", "--connect"],
    ):
        said = valk("run", *words)
        assert said.code == 0 and "xyz q" in said.out
        assert not any(character in said.out for character in "\x1b\x07\r\u202e")


def test_disk(valk: Valk, filled: FilledStore) -> None:
    filled.add_run()
    filled.keep({"large": "x" * 2**20}, "a")
    said = valk("disk")
    assert " GiB" in said.out and "1.0 MiB" in said.out and "valk run delete aaaa1111" in said.out
    assert valk("disk", "--json").json["disk"]["free_bytes"] > 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(valk: Valk, shell: str) -> None:
    said = valk("completion", shell)
    assert "_VALK_COMPLETE" in said.out and "_VALKYRIE_COMPLETE" in said.out


def test_the_list_shows_what_it_is_sorted_by_and_who_goes_on(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    filled.add_run(started_at=1_700_090_000.0)
    out = valk("run", "list").out
    assert "Created" in out and "2023-11-14" in out and "2023-11-15" not in out
    filled.add_run(trials=HALFWAY)
    filled.executor.leave()
    tracker.use(LocalTracker(TrackerApp(filled.data, server=True)))
    out = valk("run", "list").out
    assert "1 run without an executor; the tracker goes on as soon as one is back" in out
    assert "run resume" not in out
    assert "run resume" not in valk("run", "fetch", "aaaa").out


def test_old_runs_are_deleted_together(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    now, day = time.time(), 86_400.0
    filled.add_run("ae00", created_at=now - 5, finished_at=now - day)
    filled.add_run("b500", HALFWAY, created_at=now - 6)
    filled.add_run("cebd", created_at=now - 41 * day, finished_at=now - 40 * day)
    stopped = [*[passed()] * 11, unended("STOPPED")]
    filled.add_run("a17d", stopped, created_at=now - 51 * day, finished_at=now - 50 * day)
    filled.add_run("01d0", created_at=now - 61 * day, finished_at=now - 60 * day)
    rule = ("run", "delete", "--before", "30d", "--keep-last", "3")
    assert valk(*rule, "--dry-run", "--json").json["run_ids"] == ["01d0", "a17d"]
    would = "Would delete run 01d0 (oracle on quickstart, FINISHED, 12 trials)."
    assert would in valk(*rule, "--dry-run").out
    assert valk(*rule).code == 2  # nobody can be asked
    assert not tracker.asked("delete")
    assert valk(*rule, "--status", "stopped", "-y").out == "Deleted run a17d (12 trials), 1 of 1.\n"
    said = valk("run", "delete", "--before", "2w", "--yes", "--json").json
    assert said["run_ids"] == ["01d0", "cebd"] and said["trials"] == 24
    assert tracker.asked("delete") == ["a17d", "01d0", "cebd"]
    assert sorted(filled.run_ids()) == ["ae00", "b500"]
    assert valk("run", "delete", "--before", "99w", "--yes").out == "No ended run matches.\n"
    assert valk("run", "delete", "--status", "IN_PROGRESS", "--yes").code == 2
    assert "no age; write 30d" in valk("run", "delete", "--before", "soon", "--yes").err
    assert "Name a RUN, or choose" in valk("run", "delete", "--yes").err
    assert "choose among all" in valk("run", "delete", "01d0", "--before", "1d", "--yes").err
