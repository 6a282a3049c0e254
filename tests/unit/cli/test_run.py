"""`run …`: what is asked of the tracker, and what is printed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.fake_tracker import FULL, HALFWAY, PROVISIONAL, FakeTracker, make_run, make_trial
from tests.unit.cli.said import Said
from valkyrie.views import ErrorGroup, RunFilter, RunRequest, TrialFilter

Valk = Callable[..., Said]
EVIL = "x\x1b]0;owned\x07y\x1b[31mz\r\n\u202eq"


def use(fake: FakeTracker, *runs: object) -> None:
    fake.runs = {run.id: run for run in runs}  # type: ignore[attr-defined]


def test_start_asks_for_all_that_was_said(valk: Valk, fake: FakeTracker, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("c\n\n  d \na\n")
    words = (
        "--agent ./a --benchmark b --model m --dataset lite --concurrency 9 -s K name -k t 1 --kwarg u 2 "
        "--task-ids a,b --task-ids-file ids.txt --slice 0:3 -l mine --provider null --host-image "
        "--on-agent-failure error --keep-sandbox --trials 3 --timeout-multiplier 2 --max-attempts 4 "
        "-H X-Team blue --header Authorization own --ics"
    )
    said = valk("run", "start", *words.split())
    assert said.code == 0
    assert fake.asked[0] == (
        "start",
        RunRequest(
            "./a", "b", "m", "lite", 9, 3, {"t": "1", "u": "2"}, {"K": "name"}, ["a", "b", "c", "d"], "0:3",
            "mine", "null", {"X-Team": "blue", "Authorization": "own"}, True, True, "error", True, 2.0, 4,
        ),
    )  # fmt: skip
    assert fake.asked[-1] == ("close",)


def test_start_prints_the_panel_and_the_commands_one_needs_next(valk: Valk) -> None:
    said = valk("run", "start", "--agent", "oracle", "--benchmark", "quickstart")
    for word in ("Run started", "run-aaaa1111", "Concurrency  5", "/data/runs/run-aaaa1111"):
        assert word in said.out
    for verb in ("results", "resume", "retry", "outputs"):
        assert f"valk run {verb} run-aaaa1111" in said.out
    assert "\x1b" not in said.out
    assert said.err == "Note: secret API_KEY comes from the environment\n"


def test_start_takes_defaults_from_config(
    valk: Valk, fake: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    valk("config", "set", "DEFAULT_concurrency", "17")
    monkeypatch.setenv("VALKYRIE_PROVIDER", "process")
    valk("run", "start", "--agent", "a", "--benchmark", "b")
    request = fake.asked[0][1]
    assert (request.concurrency, request.provider) == (17, "process")


def test_task_ids_from_stdin_and_bad_files(valk: Valk, fake: FakeTracker) -> None:
    words = ("run", "start", "--agent", "a", "--benchmark", "b", "--task-ids-file")
    valk(*words, "-", stdin="one\n# a remark\n two\n")
    assert fake.asked[0][1].task_ids == ["one", "two"]
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
    valk: Valk, fake: FakeTracker, pairs: list[str], says: str
) -> None:
    said = valk("run", "start", "--agent", "a", "--benchmark", "b", "-H", *pairs)
    assert (said.code, said.out) == (2, "") and says in said.err
    assert "v-secret" not in said.err and not fake.asked


def test_dry_run_starts_nothing_and_tells_all_problems(valk: Valk, fake: FakeTracker) -> None:
    words = ("run", "start", "--agent", "a", "--benchmark", "b", "--dry-run")
    said = valk(*words)
    assert said.code == 0 and "2 (2 tasks)" in said.out and "nothing was started" in said.out
    fake.problems = ["secret API_KEY has no value", "no tests in task c"]
    said = valk(*words)
    assert said.code == 1 and all(problem in said.out for problem in fake.problems)
    said = valk(*words, "--json")
    assert said.code == 1 and said.json["would_start"] is False
    assert [asked[0] for asked in fake.asked if asked[0] != "close"] == ["plan"] * 3


def test_a_refused_start_exits_1_with_one_line(valk: Valk, fake: FakeTracker) -> None:
    fake.problems = ["local cannot work here: install bubblewrap"]
    said = valk("run", "start", "--agent", "a", "--benchmark", "b")
    assert (said.code, said.out, said.err) == (1, "", "Error: local cannot work here: install bubblewrap\n")


def test_connect_in_a_pipe_is_a_line_per_change(valk: Valk, fake: FakeTracker) -> None:
    going = make_run(
        state="IN_PROGRESS", score=HALFWAY, finished_at=None, counts={"FINISHED": 5, "PENDING": 7}
    )
    fake.steps = [going, going, replace(going, version=2), make_run(version=3)]
    said = valk("run", "fetch", "run", "--connect")
    lines = [line for line in said.out.splitlines() if "oracle on quickstart" in line]
    assert said.code == 0 and len(lines) == 2
    assert "IN_PROGRESS  5/12" in lines[0] and "FINISHED  12/12" in lines[1]
    assert "Run ended" in said.out and "\x1b" not in said.out


def test_connect_under_json_is_json_lines(valk: Valk, fake: FakeTracker) -> None:
    going = make_run(state="IN_PROGRESS", score=HALFWAY)
    fake.steps = [going, going, make_run(version=2)]
    said = valk("run", "fetch", "run", "--connect", "--json")
    assert [json.loads(line)["event"] for line in said.out.splitlines()] == ["snapshot", "update", "complete"]


def test_ctrl_c_detaches_with_next_steps(
    valk: Valk, fake: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(fake, make_run(state="IN_PROGRESS", score=HALFWAY))

    def interrupted(ref: str) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(fake, "follow", interrupted)
    said = valk("run", "fetch", "run", "--connect")
    assert said.code == 130
    assert "goes on without this window" in said.out and "valk run fetch run-aaaa1111 --connect" in said.out


def test_fetch_leads_with_the_right_number(valk: Valk, fake: FakeTracker) -> None:
    said = valk("run", "fetch", "run-a")
    assert "final_score  100.0 % (95 % interval 75.7–100.0)" in said.out
    assert "coverage     12/12 graded (100.0 %), no errors" in said.out
    use(fake, make_run(score=PROVISIONAL, counts={"FINISHED": 10, "ERROR": 2}))
    said = valk("run", "fetch", "run-a")
    lines = [line for line in said.out.splitlines() if "score" in line or "coverage" in line]
    assert "score_graded  90.0 % provisional (95 % interval 59.6–98.2)" in lines[0]
    assert "final_score   75.0 %" in lines[1]
    assert "coverage      10/12 graded (83.3 %), 2 errors: infrastructure 2" in lines[2]
    assert "valk run retry" in said.out and "valk run errors" in said.out


def test_fetch_json_holds_the_whole_view(valk: Valk) -> None:
    document = valk("run", "fetch", "run-a", "--json").json
    assert document["kind"] == "run" and document["schema_version"] == 1
    assert document["run"]["score"]["coverage"] == 1.0


def test_list_shows_errors_and_coverage_beside_the_score(valk: Valk, fake: FakeTracker) -> None:
    orphan = make_run(
        "run-bbbb", state="IN_PROGRESS", executor="none", score=HALFWAY, model="m/1", label="mine"
    )
    use(fake, make_run(score=PROVISIONAL), orphan)
    said = valk("run", "list")
    assert "90.0 %*" in said.out and "10/12" in said.out and "* score_graded" in said.out
    assert "IN_PROGRESS (no executor)" in said.out and "valk run resume run-bbbb goes on" in said.out
    lines = said.out.splitlines()
    assert len({len(line) for line in lines[:2]}) == 1 and "default" in lines[2]


def test_fetch_says_how_agents_ended_and_leads_to_their_logs(valk: Valk, fake: FakeTracker) -> None:
    use(fake, make_run(exit_codes={"127": 9, "1": 2, "2": 1}))
    said = valk("run", "fetch", "run").out
    assert "12 of 12 agents ended with exit codes other than 0 (127: 9, 1: 2, 2: 1)" in said
    assert "valk run logs" in said.partition("Next")[2]


def test_took_is_the_time_a_run_worked(valk: Valk, fake: FakeTracker) -> None:
    use(fake, make_run(worked_s=125.0, started_at=1_700_000_000.0, finished_at=1_700_090_000.0))
    assert "took 2 min 05 s" in valk("run", "fetch", "run").out
    assert "2 min 05 s" in valk("run", "list").out


def test_list_says_why_runs_stopped_by_themselves(valk: Valk, fake: FakeTracker) -> None:
    use(fake, make_run(), make_run("run-bbbb", state="STOPPED", note="stopped by itself: all failed"))
    assert "run-bbbb stopped by itself: all failed" in valk("run", "list").out


def test_list_passes_filters_on(valk: Valk, fake: FakeTracker) -> None:
    words = "--agent-name a --benchmark-name b --model m --dataset d -l x --status finished"
    valk("run", "list", *words.split(), "--order-by", "asc", "--limit", "7")
    assert fake.asked[0] == ("list", RunFilter("a", "b", "m", "d", "FINISHED", "x", (), False, 7))


def test_list_all_puts_pages_together(valk: Valk, fake: FakeTracker) -> None:
    use(fake, *(make_run(f"run-{number:04d}") for number in range(1203)))
    assert len(valk("run", "list", "--all", "--json").json["runs"]) == 1203
    said = valk("run", "list")
    assert len(said.out.splitlines()) == 52 and "50 of 1203 runs" in said.err


def test_empty_lists_say_what_to_do(valk: Valk, fake: FakeTracker) -> None:
    fake.runs = {}
    assert "valk run start" in valk("run", "list").out
    assert valk("run", "list", "--label", "x").out == "No run matches.\n"


@pytest.mark.parametrize(
    ("changed", "flags", "code", "says"),
    [
        ({}, [], 0, ""),
        ({}, ["--min-score", "1.0"], 0, ""),
        ({"score": PROVISIONAL}, [], 1, "2 errors open"),
        ({"state": "STOPPED"}, [], 1, "ended STOPPED"),
        (
            {"state": "STOPPED", "note": "stopped by itself"},
            [],
            1,
            "the run ended STOPPED: stopped by itself",
        ),
        ({"score": replace(PROVISIONAL, errors={}, provisional=False)}, [], 1, "10 of 12 planned"),
        ({"score": replace(FULL, graded=0)}, [], 1, "no trial was graded"),
        ({"exit_codes": {"3": 1}}, [], 0, "1 of 12 agents ended with exit code 3; `valk run logs"),
        ({}, ["--min-score", "1.1"], 1, "final_score 100.0 % is below 110.0 %"),
        ({"state": "IN_PROGRESS", "score": HALFWAY}, ["--timeout", "0"], 124, "did not end within 0 s"),
    ],
)
def test_wait_is_an_exit_code(
    valk: Valk, fake: FakeTracker, changed: dict[str, object], flags: list[str], code: int, says: str
) -> None:
    use(fake, make_run(**changed))
    said = valk("run", "wait", "run", *flags)
    assert said.code == code and says in said.err
    document = valk("run", "wait", "run", *flags, "--json").json
    assert document["passed"] is (code == 0) and bool(document["reasons"]) is (code != 0)


@pytest.mark.parametrize(
    ("interval", "wanted", "outcome", "says"),
    [
        ((0.757, 1.0), "0.75", "reached", ""),
        ((0.757, 1.0), "0.8", "can't tell", "reaches 80.0 %: its 95 % interval is 75.7–100.0"),
        ((0.1, 0.4), "0.5", "below", "final_score is surely below 50.0 %: its 95 % interval is 10.0–40.0"),
        (None, "0.5", "can't tell", "it has no interval"),
    ],
)
def test_wait_can_ask_the_whole_interval(
    valk: Valk,
    fake: FakeTracker,
    interval: tuple[float, float] | None,
    wanted: str,
    outcome: str,
    says: str,
) -> None:
    use(fake, make_run(score=replace(FULL, final_interval=interval)))
    words = ("run", "wait", "run", "--min-score", wanted, "--sure")
    said = valk(*words)
    assert said.code == (0 if outcome == "reached" else 1) and says in said.err
    document = valk(*words, "--json").json
    assert (document["sure"], document["passed"]) == (outcome, outcome == "reached")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["wait", "run", "--min-score", "nan"], "'nan' is not a number"),
        (["wait", "run", "--timeout", "nan"], "'nan' is not a number"),
        (["wait", "run", "--sure"], "--sure is about --min-score"),
        (["update", "run", "--concurrency", "many"], "'many' is not a valid whole number"),
    ],
)
def test_what_is_no_number_is_refused(valk: Valk, words: list[str], says: str) -> None:
    said = valk("run", *words)
    assert said.code == 2 and says in said.err


def test_resuming_a_finished_run_says_so(valk: Valk, fake: FakeTracker) -> None:
    use(fake, make_run(state="FINISHED"))
    said = valk("run", "resume", "run", "--connect")
    assert said.code == 0 and "Nothing to do" in said.out and "goes on" not in said.out


def test_force_stop_needs_a_yes(valk: Valk, fake: FakeTracker) -> None:
    said = valk("run", "stop", "run", "--force")
    assert said.code == 2 and "--yes" in said.err
    assert valk("run", "stop", "run", "--force", "--yes", "--task-ids", "a").code == 0
    assert valk("run", "stop", "run").code == 0
    assert [a for a in fake.asked if a[0] == "stop"] == [
        ("stop", "run-aaaa1111", True, ["a"]),
        ("stop", "run", False, None),
    ]


def test_resume_retry_update_delete(valk: Valk, fake: FakeTracker) -> None:
    valk("run", "resume", "run", "--concurrency", "20", "-H", "X-Team", "blue")
    valk("run", "retry", "run", "--category", "infrastructure", "--task-ids", "a,b")
    valk("run", "retry", "run", "--from-scratch", "-H", "X-Team", "red")
    assert "concurrency 40" in valk("run", "update", "run", "--concurrency", "40").out
    assert valk("run", "delete", "run").code == 2
    assert valk("run", "delete", "run-a", "-y").out == "Deleted run run-aaaa1111.\n"
    assert [asked for asked in fake.asked if asked[0] != "close"] == [
        ("resume", "run", 20, None, {"X-Team": "blue"}),
        ("retry", "run", None, ["a", "b"], "infrastructure", {}, False),
        ("retry", "run", None, None, None, {"X-Team": "red"}, True),
        ("update", "run", 40, None, None, None),
        ("delete", "run-aaaa1111"),
    ]


def test_results_never_overwrites_unasked(valk: Valk, tmp_path: Path) -> None:
    assert valk("run", "results", "run").code == 0
    target = tmp_path / "quickstart.json"
    assert json.loads(target.read_text())["final_score"] == 1.0
    target.write_text("mine")
    said = valk("run", "results", "run", "--json")
    assert said.code == 1 and said.json_error["reason"] == "target_exists"
    assert target.read_text() == "mine"
    assert valk("run", "results", "run", "--force", "--json").json["status"] == "completed"
    assert target.read_text() != "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quickstart.json"]


def test_results_to_stdout_and_to_nowhere(valk: Valk, fake: FakeTracker) -> None:
    said = valk("run", "results", "run", "--path", "-", "--task-ids", "a")
    assert json.loads(said.out)["run_id"] == "run-aaaa1111"
    assert ("results", "run-aaaa1111", ["a"]) in fake.asked
    said = valk("run", "results", "run", "--path", "no/such/folder.json")
    assert (said.code, said.err) == (
        1,
        "Error: no/such/folder.json cannot be written: No such file or directory.\n",
    )
    said = valk("run", "results", "run", "--path", ".", "--force")
    assert (said.code, said.out) == (0, "Wrote quickstart.json\n")


@pytest.mark.parametrize("noun", ["run", "agent"])
def test_outputs(valk: Valk, fake: FakeTracker, noun: str) -> None:
    assert valk(noun, "outputs", "run", "--output-dir", "out").out == "1 trial folder in out\n"
    assert valk(noun, "outputs", "run", "--json").json["folder"].endswith("quickstart_oracle_run-aaaa1111")
    assert ("outputs", "run-aaaa1111", Path("out"), None) in fake.asked


def test_errors_are_grouped_with_the_way_on(valk: Valk, fake: FakeTracker) -> None:
    fake.groups = [
        ErrorGroup("infrastructure", "sandbox_failed", "no room", 70, True, list("abcde"), tasks=7)
    ]
    said = valk("run", "errors", "run")
    assert "infrastructure/sandbox_failed" in said.out and "a, b, c, d, e and 2 more" in said.out
    assert "valk run retry run-aaaa1111" in said.out and "valk run logs run-aaaa1111 a" in said.out
    assert valk("run", "errors", "run", "--json").json["groups"][0]["count"] == 70
    fake.groups = []
    assert valk("run", "errors", "run").out == "No open errors.\n"


def test_tasks_pass_filters_on(valk: Valk, fake: FakeTracker) -> None:
    fake.trial_views = [make_trial(f"t{number}") for number in range(5)]
    words = "--status finished --status ERROR --search t --sort duration --order-by DESC --limit 2 --offset 1"
    said = valk("run", "tasks", "run", *words.split())
    assert fake.asked[0] == ("trials", TrialFilter(("FINISHED", "ERROR"), "t", "duration", True, 2, 1))
    assert "t1" in said.out and "3.2 s" in said.out and "2 trials of 5, from 1" in said.err


def test_logs(valk: Valk, fake: FakeTracker) -> None:
    assert (
        valk("run", "logs", "run", "a/b", "--attempt", "2", "-k", "1", "-f").out == "hello from the agent\n"
    )
    assert fake.asked[0] == ("logs", "run-aaaa1111", "a/b", 1, 2, True)
    assert valk("run", "logs", "run", "a", "--json").json["text"] == "hello from the agent\n"


def test_debug_under_json_prints_the_command(valk: Valk) -> None:
    assert valk("run", "debug", "run", "a", "--json").json["argv"] == ["echo", "in", "the", "sandbox"]


def test_debug_again_runs_the_task_once_more_and_opens_that_sandbox(valk: Valk, fake: FakeTracker) -> None:
    first, again = make_run("run-aaaa1111", agent="mine", model="m"), make_run("run-again222")
    said = {"agent": "mine", "benchmark": "quickstart", "model": "m", "settings": {"provider": "local"}}
    fake.runs = {again.id: again, first.id: replace(first, arguments={**said, "agent_digest": "old"})}
    opened: list[Any] = []

    def shell(*words: Any) -> list[str]:
        opened.append(words)
        return ["sh"]

    fake.shell = shell  # type: ignore[method-assign]
    ended = valk("run", "debug", "run-aaaa", "a/b", "-k", "2", "--again", "--json")
    assert (ended.code, ended.json["argv"]) == (0, ["sh"]), ended
    [request] = [asked[1] for asked in fake.asked if asked[0] == "start"]
    assert (request.agent, request.model, request.task_ids) == ("mine", "m", ["a/b"])
    assert request.keep_sandbox and request.max_attempts == 1 and request.provider == "local"
    assert opened == [("run-again222", "a/b", 0)], "the new run's only trial, not the one that was named"
    assert "The agent is not as it was" in ended.err and "its sandbox is kept" in ended.err


def test_debug_takes_headers_only_to_run_again(valk: Valk) -> None:
    ended = valk("run", "debug", "run", "a", "-H", "X-Key", "v")
    assert ended.code == 2 and "-H is for --again" in ended.err


def test_user_text_cannot_drive_the_terminal(valk: Valk, fake: FakeTracker) -> None:
    use(
        fake, make_run(agent=EVIL, model=EVIL, benchmark=EVIL, label=EVIL, note=EVIL, error=EVIL, folder=EVIL)
    )
    fake.trial_views = [make_trial(EVIL, state="ERROR", category="agent", cause=EVIL, message=EVIL)]
    fake.groups = [ErrorGroup("agent", EVIL, EVIL, 1, False, [EVIL])]
    for words in (
        ["list"],
        ["fetch", "run"],
        ["tasks", "run"],
        ["errors", "run"],
        ["fetch", "run", "--connect"],
    ):
        said = valk("run", *words)
        assert said.code == 0 and "xyz q" in said.out
        assert not any(character in said.out for character in "\x1b\x07\r\u202e")


def test_disk(valk: Valk) -> None:
    said = valk("disk")
    assert "9.0 GiB" in said.out and "1.0 MiB" in said.out and "valk run delete run-a" in said.out
    assert valk("disk", "--json").json["disk"]["free_bytes"] == 9 * 1024**3


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(valk: Valk, shell: str) -> None:
    said = valk("completion", shell)
    assert "_VALK_COMPLETE" in said.out and "_VALKYRIE_COMPLETE" in said.out


def test_the_list_shows_what_it_is_sorted_by_and_who_goes_on(valk: Valk, fake: FakeTracker) -> None:
    use(fake, make_run(created_at=1_700_000_000.0, started_at=1_700_090_000.0))
    out = valk("run", "list").out
    assert "Created" in out and "2023-11-14" in out and "2023-11-15" not in out
    use(fake, make_run(state="IN_PROGRESS", executor="away", finished_at=None))
    out = valk("run", "list").out
    assert "1 run without an executor; the tracker goes on as soon as one is back" in out
    assert "run resume" not in out
    assert "run resume" not in valk("run", "fetch", "run").out


def test_old_runs_are_deleted_together(valk: Valk, fake: FakeTracker) -> None:
    now, day = time.time(), 86_400.0
    fake.runs = {
        run.id: run
        for run in (
            make_run("new", finished_at=now - day),
            make_run("busy", state="IN_PROGRESS", finished_at=None, created_at=now - 90 * day),
            make_run("kept", finished_at=now - 40 * day),
            make_run("halted", state="STOPPED", finished_at=now - 50 * day),
            make_run("old", finished_at=now - 60 * day),
        )
    }
    rule = ("run", "delete", "--before", "30d", "--keep-last", "3")
    assert valk(*rule, "--dry-run", "--json").json["run_ids"] == ["old", "halted"]
    assert "Would delete run old (oracle on quickstart, FINISHED, 12 trials)." in valk(*rule, "--dry-run").out
    assert valk(*rule).code == 2  # nobody can be asked
    assert not [asked for asked in fake.asked if asked[0] == "delete"]
    assert valk(*rule, "--status", "stopped", "-y").out == "Deleted run halted (12 trials), 1 of 1.\n"
    said = valk("run", "delete", "--before", "2w", "--yes", "--json").json
    assert said["run_ids"] == ["old", "halted", "kept"] and said["trials"] == 36
    assert [asked[1] for asked in fake.asked if asked[0] == "delete"] == ["halted", "old", "halted", "kept"]
    assert valk("run", "delete", "--before", "99w", "--yes").out == "No ended run matches.\n"
    assert valk("run", "delete", "--status", "IN_PROGRESS", "--yes").code == 2
    assert "no age; write 30d" in valk("run", "delete", "--before", "soon", "--yes").err
    assert "Name a RUN, or choose" in valk("run", "delete", "--yes").err
    assert "choose among all" in valk("run", "delete", "old", "--before", "1d", "--yes").err
