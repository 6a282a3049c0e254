"""Judges in a whole eval: verdicts, refusals, silence, and keys that stay on this side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.evals.commands import Valk, valk
from tests.integration.evals.judge_thread import served
from valkyrie.testing import Fault, Say, Script, ToolRequest

__all__ = ["valk"]
KEY = "sk-judge-key-nobody-may-see"


@pytest.fixture(autouse=True)
def no_judge_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VALKYRIE_JUDGE_URL", "VALKYRIE_JUDGE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def write_spec(folder: Path, *graders: dict[str, Any], stimuli: int = 1) -> None:
    document = {
        "name": "judged",
        "defaults": {"executor": "mock", "judge_model": "some-judge"},
        "stimuli": [
            {
                "name": f"s{number}",
                "prompt": f"Say number {number}.",
                "rubric": ["It is said."],
                "graders": list(graders) or [{"type": "prompt"}],
            }
            for number in range(stimuli)
        ],
    }
    (folder / "eval.yaml").write_text(json.dumps(document))


def grade(score: int) -> ToolRequest:
    scored = [{"criterion": "It is said.", "score": score, "reasoning": "So it is."}]
    return ToolRequest(
        "submit_grade", {"rubric_scores": scored, "overall_score": score, "overall_reasoning": "Yes."}
    )


def records(tmp_path: Path) -> dict[str, dict[str, Any]]:
    (file,) = tmp_path.glob("vally-results/*/results.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {line["stimulus"]: line for line in lines}


def test_judges_decide_and_what_they_used_is_kept(valk: Valk, tmp_path: Path) -> None:
    write_spec(tmp_path, stimuli=2)
    script = Script(
        {"default": [grade(5)], "poor": [grade(2)]},
        {"Say number 1.": "poor"},
    )
    with served(script) as server:
        said = valk("eval", "-e", "eval.yaml", "--judge-url", server.url)
    assert said.code == 1
    found = records(tmp_path)
    assert [found[name]["gradeResult"]["passed"] for name in ("s0", "s1")] == [True, False]
    (judged,) = found["s1"]["gradeResult"]["details"]
    assert (judged["graderType"], judged["kind"], judged["score"]) == ("prompt", "llm", 0.25)
    assert judged["usage"]["inputTokens"] > 100


@pytest.mark.slow
def test_an_endpoint_that_fails_half_the_time_changes_no_verdict(valk: Valk, tmp_path: Path) -> None:
    write_spec(tmp_path, stimuli=5)
    poor = {"Say number 3.": "poor"}
    sound = Script({"default": [grade(4)], "poor": [grade(1)]}, poor)
    fault = Fault("overloaded", every=2)
    flaky = Script({"default": [fault, grade(4)], "poor": [fault, grade(1)]}, poor)
    verdicts = []
    for name, script in (("sound", sound), ("flaky", flaky)):
        with served(script) as server:
            said = valk("eval", "-e", "eval.yaml", "--judge-url", server.url, "--output-dir", name)
            assert said.code == 1
            assert len(server.requests) == (5 if name == "sound" else 10)
        (file,) = (tmp_path / name).glob("*/results.jsonl")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        verdicts.append({line["stimulus"]: line["gradeResult"]["passed"] for line in lines})
    assert verdicts[0] == verdicts[1] == {f"s{number}": number != 3 for number in range(5)}


@pytest.mark.parametrize(
    ("turns", "cause"),
    [([Fault("unauthorized")], "refused (401)"), ([Say("Never.")] * 20, "no verdict after 2 reminders")],
)
def test_no_verdict_is_no_fail(valk: Valk, tmp_path: Path, turns: list[Any], cause: str) -> None:
    write_spec(tmp_path)
    with served(Script.of(*turns)) as server:
        said = valk("eval", "-e", "eval.yaml", "--judge-url", server.url, "--max-retries", "0")
    assert said.code == 1
    found = records(tmp_path)["s0"]
    assert found["fault"]["kind"] == "grader"
    assert cause in found["fault"]["message"]
    assert "0 failed" in said.out


def test_the_judges_key_reaches_nobody_but_the_judge(
    valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = {
        "type": "run-command",
        "config": {"command": "env | grep -c nobody-may-see", "expected_exit_code": 1},
    }
    write_spec(tmp_path, command, {"type": "prompt"})
    monkeypatch.setenv("VALKYRIE_JUDGE_API_KEY", KEY)
    with served(Script.of(grade(5))) as server:
        said = valk("eval", "-e", "eval.yaml", "--judge-url", server.url, "--verbose")
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert said.code == 0, said
    assert KEY not in said.out + said.err
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert not holding
