"""Adds up what an agent's log says of each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from valkyrie.agents.catalogue.reading import Reading
from valkyrie.agents.protocol import Usage
from valkyrie.trajectory import AgentInfo, FinalMetrics, Metrics, TrajectoryBuilder

if TYPE_CHECKING:
    from valkyrie.agents.catalogue.base import InstalledAgent


class Counted:
    """Tokens and costs so far."""

    def __init__(self) -> None:
        self.input = self.output = self.cached = self.steps = 0
        self.cost: float | None = None
        self.model: str | None = None

    def step(self, prompt: int, completion: int, cached: int, cost: float | None = None) -> Metrics | None:
        """One answer of the model; `prompt` has the cached ones in it. None when it used nothing."""
        self.steps += 1
        self.input += prompt
        self.output += completion
        self.cached += cached
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost
        if not (prompt or completion):
            return None
        return Metrics(prompt, completion, cached_tokens=cached, cost_usd=cost)

    def reading(self, built: TrajectoryBuilder, agent: InstalledAgent, session: str | None = None) -> Reading:
        """Trajectory and usage; a log that names no tokens says nothing of what was used."""
        if not (self.input or self.output):
            return Reading(built.build(self._info(agent), session_id=session))
        usage = Usage(
            input_tokens=self.input,
            cached_tokens=min(self.cached, self.input),
            output_tokens=self.output,
            cost=self.cost,
            cost_source=None if self.cost is None else "agent",
            model=self.model or agent.model,
            steps=self.steps,
        )
        final = FinalMetrics(
            total_prompt_tokens=self.input,
            total_completion_tokens=self.output,
            total_cached_tokens=usage.cached_tokens,
            total_cost_usd=self.cost,
        )
        return Reading(built.build(self._info(agent), session_id=session, final=final), usage)

    def _info(self, agent: InstalledAgent) -> AgentInfo:
        return AgentInfo(name=agent.name, version=agent.version, model_name=self.model or agent.model)
