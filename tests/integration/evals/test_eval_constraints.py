"""Constraints: reported beside the graders, in no score, and limits where the agent can be held to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.evals.commands import Valk
from tests.integration.evals.commands import valk as valk
from tests.integration.evals.test_eval_command import SAYS_HELLO, fixture, records, spec, stimulus, the_folder
from valkyrie.benchmarks.eval_spec.benchmark import EvalBenchmark
from valkyrie.benchmarks.eval_spec.source import EvalOptions
from valkyrie.benchmarks.protocol import Grading
from valkyrie.domain import ExitReason, Grade
from valkyrie.errors import GraderError
from valkyrie.trajectory.transcript import Event, Measures, Transcript

BOUNDS = {"max_turns": 5, "expect_tools": ["bash"], "max_tokens": 10}
TOKENS = {"type": "token-budget", "config": {"max": 10}}
SAID = Transcript("hello", [Event("assistant_message", {"content": "hello"})], Measures(turn_count=1))


def test_they_are_reported_and_score_nothing(valk: Valk, tmp_path: Path) -> None:
    file = spec(tmp_path, stimulus("a", SAYS_HELLO, constraints=BOUNDS))
    fixture(tmp_path, "a", output="hello")
    said = valk("eval", "-e", file)
    assert said.code == 0, said.out + said.err
    assert "constraints: 1 of 3 held; broken: max_tokens (the agent reported no" in " ".join(said.out.split())
    (record,) = records(the_folder(tmp_path))
    grade = record["gradeResult"]
    assert (grade["score"], grade["passed"], len(grade["details"])) == (1.0, True, 1)
    assert [(one["name"], one["held"]) for one in grade["constraints"]] == [
        ("max_turns", True),
        ("max_tokens", False),
        ("expect_tools", False),
    ]
    said = valk("eval", "-e", file, "--enforce-constraints", "--output-dir", "enforced")
    assert said.code == 1 and "constraint(s) broken" in said.out
    (record,) = records(the_folder(tmp_path, "enforced"))
    assert (record["gradeResult"]["score"], record["gradeResult"]["passed"]) == (1.0, False)


def test_a_stimulus_with_constraints_alone_is_not_graded(valk: Valk, tmp_path: Path) -> None:
    file = spec(tmp_path, {"name": "a", "prompt": "hello", "constraints": {"max_turns": 5}})
    assert "1 not graded" in valk("eval", "-e", file).out
    said = valk("eval", "-e", file, "--enforce-constraints")
    assert said.code == 0 and "1 passed" in said.out


def test_an_agent_stopped_by_max_duration_is_graded_by_what_it_did(valk: Valk, tmp_path: Path) -> None:
    file = spec(tmp_path, stimulus("slow", SAYS_HELLO, constraints={"max_duration": "300ms"}))
    fixture(tmp_path, "slow", output="hello", delay=60)
    said = valk("eval", "-e", file, "--max-retries", "0")
    (record,) = records(the_folder(tmp_path))
    assert said.code == 0, said.out + said.err
    assert "fault" not in record and record["gradeResult"]["passed"]
    assert [one["held"] for one in record["gradeResult"]["constraints"]] == [False]
    assert record["trajectory"]["endReason"] == "timeout"


async def graded(tmp_path: Path, executor: str, **more: Any) -> Grade:
    file = spec(tmp_path, stimulus("a", SAYS_HELLO, TOKENS, constraints=more.pop("constraints", {})))
    benchmark = EvalBenchmark(file, EvalOptions(executor=executor))
    task = await benchmark.describe("a")
    given = {"exit_code": 0, "evidence": tmp_path / "evidence", **more}
    return await benchmark.evaluate(Grading(task, None, lambda stream, text: None, **given))


async def test_tokens_an_agent_does_not_report_count_against_it(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "output.txt").write_text("hello")
    grade = await graded(tmp_path, "my-agent", agent=agent)
    assert (grade.score, grade.passed, grade.cause) == (0.0, False, "grader_tokens_unreported")
    assert [one["passed"] for one in grade.result["graders"]] == [True, False]
    assert "reported no tokens" in str(grade.message)


async def test_tokens_reported_beside_the_transcript_are_taken(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "output.txt").write_text("hello")
    grade = await graded(tmp_path, "my-agent", agent=agent, tokens=(6, 3))
    assert (grade.score, grade.passed, grade.cause) == (1.0, True, None)


@pytest.mark.parametrize(("executor", "told"), [("mock", None), ("plugin", SAID)])
async def test_tokens_a_harness_does_not_report_are_the_graders_error(
    tmp_path: Path, executor: str, told: Transcript | None
) -> None:
    with pytest.raises(GraderError, match="reported no tokens"):
        await graded(tmp_path, executor, told=told)
    with pytest.raises(GraderError, match="reported no tokens"):
        await graded(tmp_path, executor, told=told, control=True)  # so nobody is to blame


async def test_the_time_limit_of_the_spec_is_no_constraint(tmp_path: Path) -> None:
    late = {"exit_reason": ExitReason.TIMEOUT, "told": SAID, "constraints": {"max_duration": "10m"}}
    grade = await graded(tmp_path, "my-agent", **late)
    assert (grade.score, grade.cause) == (0.0, "agent_timeout")


async def test_the_agent_is_given_the_shorter_time(tmp_path: Path) -> None:
    limits = {"max_duration": "20s", "max_agent_duration": "10s"}
    file = spec(tmp_path, stimulus("a", SAYS_HELLO, constraints={**limits, "max_turns": 7}))
    task = await EvalBenchmark(file).describe("a")
    assert (task.timeouts.agent, task.metadata["max_turns"]) == (10.0, 7)
    task = await EvalBenchmark(file, EvalOptions(timeout=5.0)).describe("a")
    assert task.timeouts.agent == 5.0


def test_stimuli_for_other_agents_are_left_out_and_ignored_keys_told(valk: Valk, tmp_path: Path) -> None:
    other = stimulus("other", SAYS_HELLO, supported_executors=["claude-cli"])
    file = spec(tmp_path, stimulus("a", SAYS_HELLO, promt="x"), other)
    fixture(tmp_path, "a", output="hello")
    said = valk("eval", "-e", file)
    assert said.code == 0, said.out + said.err
    told = said.out + said.err
    assert "'other' is left out: it is for claude-cli, not for mock" in told
    assert "unknown key `promt` is ignored" in told
    assert [one["stimulus"] for one in records(the_folder(tmp_path))] == ["a"]
