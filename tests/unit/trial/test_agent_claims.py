"""What agents say of their own trials: tokens, money, excuses. They may say anything."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.masker import Masker
from tests.unit.trial.test_lifecycle import SECRET, Writes, attempt, make_context
from valkyrie.agents.protocol import AgentExit, AgentTrial, AgentUsage, OutputArtifact, Trouble
from valkyrie.trial.outputs import MOST_DOLLARS, MOST_TOKENS, believed

ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())


class Says(Writes):
    """Ends as it is told, and leaves nothing."""

    def __init__(self, ended: AgentExit, *artifacts: OutputArtifact) -> None:
        super().__init__({}, *artifacts)
        self.ended = ended

    async def run(self, trial: AgentTrial) -> AgentExit:
        return self.ended


@given(st.dictionaries(st.sampled_from(list(AgentUsage.__slots__)), ANYTHING), ANYTHING)
def test_whatever_is_said_can_be_added_up(said: dict[str, Any], wait: Any) -> None:
    ended = believed(AgentExit(0, None, AgentUsage(**said), Trouble("x", "y", wait)), Masker([SECRET]))
    usage, trouble = ended.usage, ended.trouble
    assert usage is not None and trouble is not None
    for count in (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.steps):
        assert type(count) is int and 0 <= count <= MOST_TOKENS
    assert usage.cost is None or 0 <= usage.cost <= MOST_DOLLARS
    assert trouble.retry_after is None or 0 <= trouble.retry_after < math.inf
    for word in (usage.model, usage.cost_source):
        assert "\0" not in (word or "").encode().decode()


def test_what_is_sensible_is_taken_as_it_is() -> None:
    usage = AgentUsage(1200, 1000, 30, 0.25, "agent", "m-1", 3)
    ended = AgentExit(1, None, usage, Trouble("model_rate_limited", "slow down", 7.5))
    assert believed(ended, None) == ended


@pytest.mark.parametrize(
    ("said", "cost"), [(1e300, MOST_DOLLARS), (-5.0, None), (math.nan, None), (math.inf, None)]
)
def test_absurd_costs(said: float, cost: float | None) -> None:
    found = believed(AgentExit(0, usage=AgentUsage(cost=said)), None).usage
    assert found is not None and found.cost == cost


async def test_an_excuse_holds_no_secret(tmp_path: Path) -> None:
    trouble = Trouble("agent_gave_up", f"key {SECRET} was refused")
    ended = AgentExit(1, usage=AgentUsage(1, 0, 1, model=f"model-{SECRET}"), trouble=trouble)
    ending = await attempt(make_context(tmp_path, Says(ended)))
    assert ending.grade is not None and ending.exit is not None and ending.usage is not None
    assert ending.exit.trouble == replace(trouble, message="key *** was refused")
    assert ending.usage.model == "model-***"


async def test_what_an_attempt_used_counts_however_it_ends(tmp_path: Path) -> None:
    usage = AgentUsage(10, 0, 5, cost=2.5)
    forged = Trouble("model_rate_limited", "try again", 1.0)
    ending = await attempt(make_context(tmp_path / "a", Says(AgentExit(1, usage=usage, trouble=forged))))
    assert ending.failure is not None and ending.failure.cause == "model_rate_limited"
    assert (ending.cost, ending.usage) == (2.5, usage)
    missing = OutputArtifact("out", "/tmp/never")
    ending = await attempt(make_context(tmp_path / "b", Says(AgentExit(0, usage=usage), missing)))
    assert ending.failure is not None and ending.failure.cause == "agent_output_missing"
    assert (ending.cost, ending.usage) == (2.5, usage)
