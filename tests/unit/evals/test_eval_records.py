"""Trial-result records: what is written is read back, ours and other people's."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.evals.made import BROKEN, UNSURE, broken, grader, trial
from valkyrie.evals import records
from valkyrie.evals.records import RecordError, dump_line, invocation_of, read_lines, to_line
from valkyrie.evals.results import TrialFault, TrialResult
from valkyrie.grade.protocol import GraderResult

NAMES = st.text(min_size=1, max_size=20)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=8), PLAIN, max_size=3)
GRADERS = st.builds(
    GraderResult,
    name=NAMES,
    type=NAMES,
    passed=st.booleans(),
    score=st.floats(0, 1),
    evidence=st.text(max_size=50),
    kind=st.sampled_from(["code", "llm"]),
    status=st.sampled_from(["ok", "error", "skipped"]),
    weight=st.floats(0, 10),
    details=st.lists(OBJECTS, min_size=1, max_size=2) | st.just(()),
    usage=st.none() | OBJECTS.filter(bool),
)
FAULTS = st.builds(TrialFault, st.sampled_from(["execution", "grader"]), NAMES, category=NAMES, cause=NAMES)
SHARED: dict[str, Any] = {
    "eval_name": NAMES,
    "stimulus": NAMES,
    "index": st.integers(0, 500),
    "model": st.none() | NAMES,
    "executor": st.none() | NAMES,
    "variant": NAMES,
    "duration_ms": st.floats(0, 1e9),
    "graders": st.lists(GRADERS, max_size=3).map(tuple),
    "transcript": st.none() | OBJECTS.filter(lambda found: "metadata" not in found),
    "attempts": st.integers(1, 9),
    "run_id": st.none() | NAMES,
    "eval_file": st.none() | NAMES,
    "session_log": st.none() | st.just(Path("executor-session-logs/e/m/s/trial-0/events.jsonl")),
    "artifacts": st.none() | st.just(Path("artifacts")),
    "patch": st.none() | st.just(Path("workspace.patch")),
    "experiment": st.none() | OBJECTS.filter(lambda found: not {"name", "evalFile"} & set(found)),
}
GRADED = st.builds(
    TrialResult,
    **SHARED,
    score=st.floats(0, 1),
    passed=st.booleans(),
    graded_at=st.none() | NAMES,
    threshold=st.none() | st.floats(0, 1),
)
FAULTY = st.builds(TrialResult, **SHARED, fault=FAULTS)
UNGRADED = st.builds(TrialResult, **{**SHARED, "graders": st.just(())})


@given(st.lists(GRADED | FAULTY | UNGRADED, max_size=4))
def test_what_is_written_is_read_back(trials: list[TrialResult]) -> None:
    text = "".join(dump_line(to_line(one)) + "\n" for one in trials)
    assert read_lines(text) == trials
    assert text.count("\n") == len(text.splitlines()) == len(trials)


def test_a_record_has_the_published_shape() -> None:
    made = trial(
        False, 2, transcript={"id": "t-1", "output": "bar"}, graded_at="2025-01-15T10:30:00Z", run_id="r"
    )
    record = to_line(made)
    details = record["gradeResult"].pop("details")
    assert record == {
        "type": "trial-result",
        "itemId": "my-eval::main::default::greet::trial-2",
        "variant": "main",
        "stimulus": "greet",
        "status": "success",
        "durationMs": 8300.0,
        "trialIndex": 2,
        "runId": "r",
        "eval": "my-eval",
        "evalName": "my-eval",
        "executor": "mock",
        "attempts": 1,
        "gradeResult": {
            "name": "aggregate",
            "kind": "code",
            "passed": False,
            "score": 0.0,
            "evidence": "0 of 1 graders passed; failed: says-foo",
            "stimulusName": "greet",
            "trajectoryId": "t-1",
            "timestamp": "2025-01-15T10:30:00Z",
        },
        "trajectory": {"id": "t-1", "output": "bar"},
    }
    assert details == [made.graders[0].to_json()]


def test_the_three_ends_are_told_apart() -> None:
    ungraded, executed, unsure = (to_line(one) for one in (trial(None), broken(), broken(fault=UNSURE)))
    assert (ungraded["status"], ungraded["trajectory"]) == ("success", None)
    assert "gradeResult" not in ungraded and "error" not in ungraded
    assert (executed["status"], executed["error"]) == ("error", BROKEN.message)
    assert "gradeResult" not in executed
    assert unsure["status"] == "success" and "error" not in unsure
    assert unsure["gradeResult"]["status"] == "error"
    assert unsure["gradeResult"]["passed"] is False


@pytest.mark.parametrize(
    "hostile",
    [
        float("nan"),
        float("inf"),
        "\ud800",
        "a\u2028b\u2029c\nd\re\x85f",
        {1: {"nested": float("-inf")}},
        {"a": {"set"}},
    ],
    ids=repr,
)
def test_whatever_an_agent_left_a_line_is_json(hostile: Any) -> None:
    line = dump_line(to_line(trial(True, transcript={"output": hostile})))
    assert len(line.splitlines()) == 1
    line.encode()
    read = read_lines(line)[0]
    json.loads(line, parse_constant=pytest.fail)
    assert read.passed and read.transcript


def test_no_line_is_a_command_to_the_ci_system_whose_log_it_is_in() -> None:
    said = "##[error]a ##vso[b] \\##[c] ## [d]"
    line = dump_line(to_line(trial(True, transcript={"output": said})))
    assert "##[" not in line and "##vso[" not in line
    assert (read_lines(line)[0].transcript or {})["output"] == said


def test_deep_nesting_is_cut() -> None:
    deep: Any = "end"
    for _ in range(5000):
        deep = [deep]
    assert read_lines(dump_line(to_line(trial(True, transcript={"events": deep}))))[0].passed


def test_foreign_records_are_taken_as_they_are() -> None:
    lines = [
        {"type": "run-summary", "runId": "x"},
        {
            "type": "trial-result",
            "variant": "treatment",
            "stimulus": "s",
            "status": "success",
            "durationMs": 12,
            "shardKey": "0",
            "gradeResult": {
                "name": "file-exists",
                "kind": "code",
                "passed": True,
                "score": 1,
                "evidence": "there",
            },
            "trajectory": {
                "stimulus": {"name": "s", "prompt": "Do it."},
                "metadata": {"model": "m", "executor": "x"},
            },
            "experiment": {"name": "exp", "variant": "treatment", "evalFile": "e.yaml"},
        },
        {
            "type": "trial-result",
            "stimulus": "s",
            "status": "error",
            "error": {"message": "boom"},
            "trajectory": None,
        },
        {
            "type": "trial-result",
            "stimulus": "s",
            "gradeResult": {"status": "error", "evidence": "judge gone"},
        },
        {
            "stimulus": {"name": "t"},
            "gradeResult": {"passed": False, "score": None, "details": [{"passed": False}]},
        },
    ]
    found = read_lines("\ufeff" + "\n\n".join(json.dumps(line) for line in lines))
    first, second, third, fourth = found
    assert (first.eval_name, first.eval_file, first.model, first.executor) == ("exp", "e.yaml", "m", "x")
    assert first.graders[0].evidence == "there" and first.graders[0].type == "file-exists"
    assert second.fault == TrialFault("execution", "boom")
    assert third.fault == TrialFault("grader", "judge gone") and third.passed is None
    assert (fourth.stimulus, fourth.passed, fourth.score) == ("t", False, 0.0)
    assert fourth.graders[0].name == "grader"
    assert invocation_of(found).evals[0].stimuli[0].prompt == "Do it."


def test_trials_without_an_index_are_counted() -> None:
    line = json.dumps({"type": "trial-result", "stimulus": "s", "gradeResult": {"passed": True, "score": 1}})
    assert [one.index for one in read_lines([line, line, line])] == [0, 1, 2]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Line 2 is not JSON"),
        ("[1]", "Line 2 is not a JSON object"),
        ('{"type": "trial-result"}', "Line 2 is no trial result: it names no stimulus"),
        ('{"stimulus": "s", "durationMs": "soon"}', "Line 2 is no trial result"),
        ('{"stimulus": "s", "trialIndex": []}', "Line 2 is no trial result"),
        ("[" * 100_000, "Line 2 is n"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: str, said: str) -> None:
    with pytest.raises(RecordError, match=said):
        read_lines(f"{dump_line(to_line(trial(True)))}\n{line}\n")


def test_files_are_read_line_by_line_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text(dump_line(to_line(trial(True, transcript={"output": "x"}))) + "\n")
    assert read_lines(file)[0].transcript == {"output": "x"}
    assert read_lines(file, trajectories=False)[0].transcript is None
    monkeypatch.setattr(records, "LONGEST_LINE", 100)
    with pytest.raises(RecordError, match="Line 1 is longer"):
        read_lines(file)
    with pytest.raises(RecordError, match="is not UTF-8"):
        read_lines(io.BytesIO(b"\xff\n"))
    with pytest.raises(RecordError, match="cannot be read"):
        read_lines(tmp_path / "missing.jsonl")


def test_records_make_the_invocation_again() -> None:
    trials = [
        trial(True, 0, model="a", run_id="1"),
        trial(False, 0, model="b", run_id="2", threshold=0.5),
        trial(False, 1, model="a", run_id="1"),
        trial(True, 1, model="a", run_id="1"),
        trial(True, 3, model="a", run_id="1"),
        broken(0, model="a", run_id="1", stimulus="other"),
    ]
    first, second = invocation_of(read_lines([dump_line(to_line(one)) for one in trials])).evals
    greet, other = first.stimuli
    assert (first.model, greet.passes, len(greet.trials), greet.planned) == ("a", 3, 3, 4)
    assert first.missing == 1 and len(other.faults) == 1 and not first.ok
    assert second.threshold == 0.5 and not second.passed
    assert invocation_of(trials, threshold=0.0).evals[1].passed
    ungraded = invocation_of([trial(None)]).evals[0]
    assert not ungraded.graded and ungraded.ok


def test_graders_that_did_not_speak_are_not_counted() -> None:
    made = trial(True, graders=(grader(True), grader(False, status="skipped")))
    assert to_line(made)["gradeResult"]["evidence"] == "1 of 1 graders passed"
