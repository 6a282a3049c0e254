"""What the rewards of several steps make together, by hand-worked cases."""

from __future__ import annotations

import pytest

from valkyrie.benchmarks.task_dir.execution import graded
from valkyrie.benchmarks.task_dir.task_toml import ParsedToml, TaskToml
from valkyrie.domain import Grade


def config(*least: str, strategy: str = "mean") -> TaskToml:
    steps = "".join(f'[[steps]]\nname = "s{number}"\n{text}\n' for number, text in enumerate(least))
    return ParsedToml.parse(f'multi_step_reward_strategy = "{strategy}"\n{steps}', "task.toml").config


def grade_of(toml: TaskToml, *rewards: dict[str, float]) -> Grade:
    """The grade after the last of these steps."""
    earlier: list[Grade] = []
    for step, one in zip(toml.steps, rewards, strict=False):
        earlier.append(graded(toml, step, Grade(one.get("reward"), result={"rewards": one}), earlier))
    return earlier[-1]


def test_a_reward_that_a_step_lacks_counts_nothing_there() -> None:
    grade = grade_of(config("", ""), {"reward": 1.0}, {"reward": 1.0, "style": 1.0})
    assert (grade.score, grade.passed, grade.goes_on) == (1.0, True, False)
    assert grade.result["rewards"] == {"reward": 1.0, "style": 0.5}


@pytest.mark.parametrize(
    ("least", "rewards", "goes_on"),
    [
        ("", {"reward": 0.0}, True),
        ("min_reward = 0.5", {"reward": 0.5}, True),
        ("min_reward = 0.5", {"reward": 0.4}, False),
        ("min_reward = 0.5", {"style": 1.0}, False),
        ("min_reward = {safe = 1, style = 0.2}", {"reward": 0.0, "safe": 1.0, "style": 0.2}, True),
        ("min_reward = {safe = 1}", {"reward": 1.0}, False),
    ],
)
def test_what_it_takes_to_go_on(least: str, rewards: dict[str, float], goes_on: bool) -> None:
    assert grade_of(config(least, ""), rewards).goes_on is goes_on


def test_who_stopped_early_did_not_pass() -> None:
    grade = grade_of(config("min_reward = {safe = 1}", ""), {"reward": 1.0, "safe": 0.0})
    assert (grade.score, grade.passed, grade.result["stopped_after"]) == (1.0, False, "s0")


def test_the_last_step_alone_may_count() -> None:
    grade = grade_of(config("", "", strategy="final"), {"reward": 1.0}, {"reward": 0.25})
    assert (grade.score, grade.passed) == (0.25, False)
