"""`run show`: a trial's verdict with its evidence, and the trials of a run to look at twice."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.unit.cli.command_result import CommandResult
from tests.unit.cli.filled_store import FilledStore, failed, lost, passed
from tests.unit.cli.recorded_tracker import RecordedTracker

Valk = Callable[..., CommandResult]
EVIDENCE = {
    "mode": "shared",
    "open_to_tampering": True,
    "keep_processes": True,
    "system": {"added": 1, "changed": 1, "removed": 0, "paths": [["/usr/bin/bash", "changed"]]},
    "not_carried": {"count": 1, "paths": [["/work/pipe", "a fifo\x1b[31m"]]},
    "work": {"digest": "d", "bytes": 2048, "files": 3, "kept": True},
    "control": {"verdict": {"score": 0.0, "passed": False}, "seconds": 1.0},
    "fresh": {"score": 0.0, "passed": False},
}


def test_a_verdict_is_shown_with_its_evidence(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(
        trials=[
            passed("fix-the-bug-too"),
            passed("fix-the-bug", confirmed=False, score_confirmed=0.0, evidence=EVIDENCE),
        ]
    )
    log = filled.log("what it printed\n", "fix-the-bug")
    said = valk("run", "show", "aaaa", "fix-the-bug")
    assert said.code == 0
    for words in (
        "100.0 %, passed",
        "only in the sandbox the agent left: unconfirmed (a fresh one gave 0.0 %)",
        "its tests ran in the sandbox the agent left, beside the agent's processes: open to tampering",
        "1 added, 1 changed, 0 removed by the agent",
        "1 path of the agent's work",
        "the same tests give a verdict without the agent's work: score 0.0",
        "3 files, 2.0 KiB, kept",
        "changed  /usr/bin/bash",
        "a fifo  /work/pipe",
        str(log),
        "valk run logs aaaa1111 fix-the-bug",
    ):
        assert words in said.out, words
    assert "\x1b" not in said.out
    found = valk("run", "show", "aaaa", "fix-the-bug", "--json").json
    assert found["trial"]["evidence"] == EVIDENCE and found["attempts"][0]["log"] == str(log)


def test_a_confirmed_pass_needs_few_words(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(trials=[passed("a", evidence={"mode": "fresh"})])
    said = valk("run", "show", "aaaa", "a").out
    assert "in a fresh sandbox, in which no process of the agent ever ran: confirmed" in said
    assert "Caution" not in said and "System files" not in said


def test_an_unknown_task_or_repetition_is_refused(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(trials=[passed("a")])
    for words in (("b",), ("a", "-k", "1")):
        said = valk("run", "show", "aaaa", *words)
        assert said.code == 2 and "has no trial" in said.err


def test_a_run_lists_what_to_look_at_twice(valk: Valk, filled: FilledStore) -> None:
    killed = {"category": "agent", "cause": "sandbox_killed_by_agent", "message": "it died"}
    filled.add_run(
        trials=[
            passed("plain"),
            passed("odd", confirmed=False, score_confirmed=0.0, evidence=EVIDENCE),
            failed("dead", **killed),
        ]
    )
    said = valk("run", "show", "aaaa").out
    assert "odd" in said and "agent/sandbox_killed_by_agent (counted as 0): it died" in said
    assert "plain" not in said
    assert "† 1 of 3 tasks is graded in the sandbox the agent left: open to tampering" in said
    found = valk("run", "show", "aaaa", "--json").json
    assert [trial["task_id"] for trial in found["trials"]] == ["odd", "dead"]


def test_tasks_have_their_evidence_and_footnotes(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(trials=[passed("odd", confirmed=False, score_confirmed=0.0, evidence=EVIDENCE)])
    assert "open to tampering" in valk("run", "tasks", "aaaa").out
    (trial,) = valk("run", "tasks", "aaaa", "--json").json["trials"]
    assert (trial["confirmed"], trial["score_confirmed"], trial["evidence"]) == (False, 0.0, EVIDENCE)


def test_errors_that_count_as_zero_are_no_open_errors(valk: Valk, filled: FilledStore) -> None:
    zero = [failed(task, category="agent", cause="grader_broken_by_work", message="m") for task in "ac"]
    filled.add_run(trials=zero)
    said = valk("run", "errors", "aaaa").out
    assert "agent/grader_broken_by_work" in said and "counted as 0: graded" in said
    assert "No open errors." in said
    filled.add_run(trials=[lost("b", category="agent", cause="agent_install_failed", message="m"), *zero])
    said = valk("run", "errors", "aaaa").out
    assert "counted as 0: the agent brought this about" in said and "1 error: agent 1." in said
    assert valk("run", "errors", "aaaa", "--json").json["totals"] == {"agent": 1}


TRAJECTORY = {
    "schema_version": "ATIF-v1.8",
    "agent": {"name": "a", "version": "1"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Mend it.\n::error::no\x1b[31m"},
        {
            "step_id": 2,
            "source": "agent",
            "message": "I look.",
            "model_name": "m",
            "tool_calls": [{"tool_call_id": "1", "function_name": "bash", "arguments": {"command": "ls"}}],
            "observation": {"results": [{"source_call_id": "1", "content": "x" * 5000}]},
        },
    ],
}


def test_a_trial_is_shown_to_read(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(trials=[passed("fix"), failed("fix", k=1, evidence={"reason": "FAIL: 2\x1b[1m is not 3"})])
    filled.keep({"agent/instruction.md": "of another trial"}, "fix")
    files = {
        "agent/instruction.md": "Mend it.",
        "agent/trajectory.json": json.dumps(TRAJECTORY),
        "grading/test-stdout.txt": "1 passed\n##[error]boo\nFAIL: 2 is not 3\n",
    }
    filled.keep(files, "fix", k=1)
    said = valk("run", "show", "aaaa", "fix", "-k", "1")
    assert said.code == 0, said
    in_order = (
        *("Reason    FAIL: 2 is not 3", "Step 1 of 2 · user", "  Mend it.", "Step 2 of 2 · agent · m"),
        *("I look.", "▸ bash", "command: ls", "1000 characters more", "What its tests printed", "1 passed"),
        "valk run debug aaaa1111 fix --again",
    )
    at = 0
    for words in in_order:
        assert words in said.out[at:], words
        at = said.out.index(words, at)
    assert "another trial" not in said.out and said.out.count("Mend it.") == 1
    assert "\x1b" not in said.out and "\n::" not in said.out and "##[" not in said.out
    document = valk("run", "show", "aaaa", "fix", "-k", "1", "--json").json
    assert document["accounts"][0]["trajectory"]["steps"][1]["message"] == "I look."
    assert document["trial"]["reason"] and "1 passed" in document["tests_output"]


def test_an_account_that_cannot_be_read_is_said(valk: Valk, filled: FilledStore) -> None:
    filled.add_run(trials=[passed("fix")])
    files = {
        "agent/instruction.md": "Mend it.",
        "agent/trajectory.json": '{"schema_version": "no\\u001b[31m"}',
    }
    filled.keep(files, "fix")
    said = valk("run", "show", "aaaa", "fix")
    assert "Instruction" in said.out and "what the agent left cannot be read" in said.out
    assert "\x1b" not in said.out


def test_failed_trials_are_asked_for_and_say_why(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore
) -> None:
    filled.add_run(trials=[passed("good"), failed("fix", evidence={"reason": "FAIL: 2 is not 3"})])
    said = valk("run", "tasks", "aaaa", "--failed", "--sort", "score")
    assert said.code == 0 and "FAIL: 2 is not 3" in said.out and "Why" in said.out
    assert "good" not in said.out
    query = tracker.asked("trials")[0][1]
    assert query.failed and query.sort == "score"
