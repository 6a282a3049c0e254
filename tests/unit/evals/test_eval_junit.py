"""JUnit XML that CI systems take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.evals.junit_schema import checked
from tests.unit.evals.made import BROKEN, UNSURE, an_eval, grader, invoked, stimulus, trial
from valkyrie.evals.junit import LONGEST_CASE, LONGEST_OUTPUT, junit_xml
from valkyrie.evals.results import SpecResult, StimulusResult, TrialFault


def test_a_suite_per_eval_and_model_a_case_per_stimulus() -> None:
    flaky = stimulus([True, True, False, True, True], "basic-test-generation")
    first, second = checked(
        junit_xml(
            invoked(
                an_eval(
                    flaky,
                    stimulus([BROKEN], "down"),
                    stimulus([UNSURE, True], "unsure"),
                    stimulus([True], "good"),
                ),
                an_eval(stimulus([True]), model=None, threshold=0.8),
            )
        )
    )
    assert first.get("name") == "my-eval [gpt-5.5]" and second.get("name") == "my-eval"
    assert first.get("timestamp") == "2025-01-15T10:30:00"
    properties = {one.get("name"): one.get("value") for one in first[0]}
    assert properties["model"] == "gpt-5.5" and properties["executor"] == "mock"
    assert properties["basic-test-generation pass@5"] == "100.0%"
    assert properties["basic-test-generation pass^5"] == "0.0%"
    assert {one.get("name"): one.get("value") for one in second[0]}["threshold"] == "0.8"
    cases = {
        case.get("name"): [(one.tag, one.get("type")) for one in case] for case in first.iter("testcase")
    }
    assert cases == {
        "basic-test-generation": [("failure", "failed")],
        "down": [("error", "execution-error")],
        "unsure": [("error", "grader-error")],
        "good": [],
    }
    output = first.findtext("system-out") or ""
    assert "basic-test-generation: trial 3 failed in 8.3s, score 0.0%" in output
    assert "flaky (two trials disagree: 40.0%)" in output


def test_a_failure_tells_every_failing_grader_and_its_evidence() -> None:
    said = (grader(False, "one", 'a <b> & "c"'), grader(True, "two"), grader(False, "three", "line\nline"))
    failed = StimulusResult("s", "", [trial(False, graders=said, stimulus="s")], 1)
    failure = checked(junit_xml(invoked(an_eval(failed)))).find(".//failure")
    assert failure is not None and failure.get("message") == "grader(s) failed: one, three"
    assert failure.text == (
        'one (output-contains) scored 0.00: a <b> & "c"\nthree (output-contains) scored 0.00: line\nline'
    )
    below = replace(failed, threshold=0.8)
    failure = checked(junit_xml(invoked(an_eval(below, threshold=0.8)))).find(".//failure")
    assert failure is not None and "the stimulus' score 0.00 is below the threshold 0.8" in failure.get(
        "message", ""
    )


@pytest.mark.parametrize(
    ("result", "tag", "message"),
    [
        (an_eval(stimulus([None]), graded=False), "skipped", "not graded"),
        (an_eval(stimulus([]), skipped="runs: 0"), "skipped", "runs: 0"),
        (an_eval(stimulus([True], planned=3)), "error", "2 of 3 trials did not run"),
        (an_eval(stimulus([False, BROKEN])), "failure", "grader(s) failed: says-foo"),
    ],
)
def test_what_has_no_verdict_is_no_pass(result: SpecResult, tag: str, message: str) -> None:
    case = checked(junit_xml(invoked(result))).find(".//testcase")
    assert case is not None
    assert [(one.tag, one.get("message")) for one in case] == [(tag, message)]


def test_the_time_is_the_folders_so_that_a_resumed_eval_says_the_same() -> None:
    folder = Path("out", "2024-12-31T23-59-58-007Z")
    suite = checked(junit_xml(invoked(an_eval(stimulus([True])), folder=folder))).find("testsuite")
    assert suite is not None and suite.get("timestamp") == "2024-12-31T23:59:58"


TEXT = st.text(st.characters(codec=None), max_size=60)


@given(name=TEXT, evidence=TEXT, model=TEXT, started=TEXT)
def test_whatever_is_said_the_document_is_valid(name: str, evidence: str, model: str, started: str) -> None:
    failed = StimulusResult(name, "", [trial(False, graders=(grader(False, name, evidence),))], 2)
    down = stimulus([TrialFault("execution", evidence, cause=name)], f"{name}!")
    document = junit_xml(invoked(an_eval(failed, down, name=name, model=model), started_at=started))
    checked(document)
    document.encode()


def test_output_is_bounded() -> None:
    loud = [grader(False, f"g{number}", "x" * 10_000) for number in range(100)]
    many = [trial(False, index, graders=loud) for index in range(5000)]
    root = checked(junit_xml(invoked(an_eval(StimulusResult("s", "", many, 5000)))))
    failure = root.find(".//failure")
    assert failure is not None and len(failure.text or "") < LONGEST_CASE + 100
    assert len(root.findtext(".//system-out") or "") < LONGEST_OUTPUT + 100
