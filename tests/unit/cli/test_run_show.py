"""`run show`: a trial's verdict with its evidence, and the trials of a run to look at twice."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.unit.cli.fake_tracker import FakeTracker, make_trial
from tests.unit.cli.said import Said
from valkyrie.views import AttemptView, ErrorGroup

Valk = Callable[..., Said]
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


def test_a_verdict_is_shown_with_its_evidence(valk: Valk, fake: FakeTracker) -> None:
    fake.trial_views = [
        make_trial("fix-the-bug-too"),
        make_trial("fix-the-bug", confirmed=False, score_confirmed=0.0, evidence=EVIDENCE),
    ]
    attempt = AttemptView(
        1, "graded", "EVALUATING", None, None, None, 0, None, 1.0, 0.0, 1.0, {}, "/logs/1.log", None
    )
    fake.attempts = lambda *_: [attempt]  # type: ignore[method-assign]
    said = valk("run", "show", "run", "fix-the-bug")
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
        "/logs/1.log",
        "valk run logs run-aaaa1111 fix-the-bug",
    ):
        assert words in said.out, words
    assert "\x1b" not in said.out
    found = valk("run", "show", "run", "fix-the-bug", "--json").json
    assert found["trial"]["evidence"] == EVIDENCE and found["attempts"][0]["log"] == "/logs/1.log"


def test_a_confirmed_pass_needs_few_words(valk: Valk, fake: FakeTracker) -> None:
    fake.trial_views = [make_trial("a", confirmed=True, score_confirmed=1.0, evidence={"mode": "fresh"})]
    said = valk("run", "show", "run", "a").out
    assert "in a fresh sandbox, in which no process of the agent ever ran: confirmed" in said
    assert "Caution" not in said and "System files" not in said


def test_an_unknown_task_or_repetition_is_refused(valk: Valk, fake: FakeTracker) -> None:
    fake.trial_views = [make_trial("a")]
    for words in (("b",), ("a", "-k", "1")):
        said = valk("run", "show", "run", *words)
        assert said.code == 2 and "has no trial" in said.err


def test_a_run_lists_what_to_look_at_twice(valk: Valk, fake: FakeTracker) -> None:
    killed = {"category": "agent", "cause": "sandbox_killed_by_agent", "message": "it died"}
    fake.trial_views = [
        make_trial("plain", confirmed=True, score_confirmed=1.0),
        make_trial("odd", confirmed=False, score_confirmed=0.0, evidence=EVIDENCE),
        make_trial("dead", score=0.0, passed=False, **killed),
    ]
    said = valk("run", "show", "run").out
    assert "odd" in said and "agent/sandbox_killed_by_agent (counted as 0): it died" in said
    assert "plain" not in said
    assert "† 1 of 3 tasks is graded in the sandbox the agent left: open to tampering" in said
    found = valk("run", "show", "run", "--json").json
    assert [trial["task_id"] for trial in found["trials"]] == ["odd", "dead"]


def test_tasks_have_their_evidence_and_footnotes(valk: Valk, fake: FakeTracker) -> None:
    fake.trial_views = [make_trial("odd", confirmed=False, score_confirmed=0.0, evidence=EVIDENCE)]
    assert "open to tampering" in valk("run", "tasks", "run").out
    (trial,) = valk("run", "tasks", "run", "--json").json["trials"]
    assert (trial["confirmed"], trial["score_confirmed"], trial["evidence"]) == (False, 0.0, EVIDENCE)


def test_errors_that_count_as_zero_are_no_open_errors(valk: Valk, fake: FakeTracker) -> None:
    zero = ErrorGroup("agent", "grader_broken_by_work", "m", 2, False, ["a"], disposition="counted as 0")
    own = ErrorGroup("agent", "agent_install_failed", "m", 1, True, ["b"])
    fake.groups = [zero]
    said = valk("run", "errors", "run").out
    assert "agent/grader_broken_by_work" in said and "counted as 0: graded" in said
    assert "No open errors." in said
    fake.groups = [own, zero]
    said = valk("run", "errors", "run").out
    assert "counted as 0: the agent brought this about" in said and "1 error: agent 1." in said
    assert valk("run", "errors", "run", "--json").json["totals"] == {"agent": 1}


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


def test_a_trial_is_shown_to_read(valk: Valk, fake: FakeTracker) -> None:
    fake.trial_views = [
        make_trial("fix", k=1, score=0.0, passed=False, confirmed=True, reason="FAIL: 2\x1b[1m is not 3")
    ]
    fake.kept = {
        "fix/agent/instruction.md": "of another trial",
        "fix/1/agent/instruction.md": "Mend it.",
        "fix/1/agent/trajectory.json": json.dumps(TRAJECTORY),
        "fix/1/grading/test-stdout.txt": "1 passed\n##[error]boo\nFAIL: 2 is not 3\n",
    }
    said = valk("run", "show", "run", "fix", "-k", "1")
    assert said.code == 0, said
    in_order = (
        *("Reason    FAIL: 2 is not 3", "Step 1 of 2 · user", "  Mend it.", "Step 2 of 2 · agent · m"),
        *("I look.", "▸ bash", "command: ls", "1000 characters more", "What its tests printed", "1 passed"),
        "valk run debug run-aaaa1111 fix --again",
    )
    at = 0
    for words in in_order:
        assert words in said.out[at:], words
        at = said.out.index(words, at)
    assert "another trial" not in said.out and said.out.count("Mend it.") == 1
    assert "\x1b" not in said.out and "\n::" not in said.out and "##[" not in said.out
    document = valk("run", "show", "run", "fix", "-k", "1", "--json").json
    assert document["accounts"][0]["trajectory"]["steps"][1]["message"] == "I look."
    assert document["trial"]["reason"] and "1 passed" in document["tests_output"]


def test_an_account_that_cannot_be_read_is_said(valk: Valk, fake: FakeTracker) -> None:
    fake.trial_views = [make_trial("fix")]
    fake.kept = {
        "fix/agent/instruction.md": "Mend it.",
        "fix/agent/trajectory.json": '{"schema_version": "no\\u001b[31m"}',
    }
    said = valk("run", "show", "run", "fix")
    assert "Instruction" in said.out and "what the agent left cannot be read" in said.out
    assert "\x1b" not in said.out


def test_failed_trials_are_asked_for_and_say_why(valk: Valk, fake: FakeTracker) -> None:
    fake.trial_views = [make_trial("fix", score=0.0, passed=False, reason="FAIL: 2 is not 3")]
    said = valk("run", "tasks", "run", "--failed", "--sort", "score")
    assert said.code == 0 and "FAIL: 2 is not 3" in said.out and "Why" in said.out
    query = next(asked[-1] for asked in fake.asked if asked[0] == "trials")
    assert query.failed and query.sort == "score"
