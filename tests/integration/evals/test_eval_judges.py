"""Judges in a whole eval: asked over HTTP, tried again without the agent, never taken for a wrong answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.evals.commands import Valk
from tests.integration.evals.commands import valk as valk
from tests.integration.evals.serving import serving
from tests.integration.evals.test_eval_command import fixture, records, spec, stimulus, the_folder
from valkyrie.testing.model_server import Fault, Script, ToolRequest

JUDGE = {"type": "prompt", "config": {"prompt": "Is it friendly?"}}
KEY = "judge-key-never-shown"


@pytest.fixture(autouse=True)
def key(valk: Valk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKYRIE_JUDGE_API_KEY", KEY)


def grade(score: int) -> ToolRequest:
    return ToolRequest(
        "submit_grade", {"rubric_scores": [], "overall_score": score, "overall_reasoning": "so it seems"}
    )


@pytest.mark.parametrize(("score", "code"), [(5, 0), (2, 1)])
def test_a_judge_decides(valk: Valk, tmp_path: Path, score: int, code: int) -> None:
    with serving(Script.of(grade(score))) as server:
        file = spec(tmp_path, stimulus("a", JUDGE))
        words = ("--judge-model", "openai/judge", "--judge-reasoning-effort", "low")
        ended = valk("eval", "-e", file, *words, "--judge-url", server.url)
        assert server.requests[0].body["reasoning_effort"] == "low"
    assert ended.code == code, ended.out + ended.err
    (found,) = records(the_folder(tmp_path))
    (detail,) = found["gradeResult"]["details"]
    assert detail["kind"] == "llm" and detail["usage"]
    kept = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert KEY not in kept + ended.out + ended.err


def test_a_judge_that_fails_half_the_time_changes_no_verdict(valk: Valk, tmp_path: Path) -> None:
    stimuli = [stimulus(f"s{number}", JUDGE) for number in range(6)]
    with serving(Script.of(Fault("server_error", every=2), grade(5))) as server:
        file = spec(tmp_path, *stimuli)
        ended = valk("eval", "-e", file, "--judge-model", "openai/j", "--judge-url", server.url)
    assert ended.code == 0, ended.out + ended.err
    assert all(one["gradeResult"]["passed"] for one in records(the_folder(tmp_path)))


def test_a_judge_that_refuses_is_an_error_and_later_the_agent_does_not_run_again(
    valk: Valk, tmp_path: Path
) -> None:
    with serving(Script.of(Fault("unknown_model", every=100), grade(5))) as server:
        file = spec(tmp_path, stimulus("a", JUDGE))
        fixture(tmp_path, "a", metrics={"wallTimeMs": 61_000})
        first = valk("eval", "-e", file, "--judge-model", "openai/j", "--judge-url", server.url)
        (before,) = records(the_folder(tmp_path))
        again = valk("eval", "--resume")
        (after,) = records(the_folder(tmp_path))
    assert (first.code, again.code) == (1, 0), first.out + again.out
    assert before["gradeResult"]["status"] == "error" and after["gradeResult"]["passed"] is True
    assert (before["attempts"], after["attempts"]) == (1, 2)
    assert before["trajectory"] == after["trajectory"]
    assert after["durationMs"] == 61_000  # the agent's, although it did not work again
    assert " tokens for judges" in again.out
