"""Contracts of agents and benchmarks that third parties run, with ours and with the least of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from valkyrie.agents import open_agent, open_frozen
from valkyrie.agents.catalog import CATALOG
from valkyrie.agents.library import AgentLibrary
from valkyrie.agents.protocol import AgentCapabilities, AgentExit, AgentTrial
from valkyrie.benchmarks import open_benchmark
from valkyrie.domain import FinalScore, Grade, TaskSpec
from valkyrie.plugins import load_target
from valkyrie.testing.null import NapAgent, NullBenchmark, check_agent, check_benchmark


class LeastAgent:
    """All that an agent of other people needs."""

    name = "least"
    digest = "least:1"

    def __init__(self, options: Any) -> None:
        self.secrets = options.secrets

    async def install(self, trial: AgentTrial) -> None:
        return

    async def run(self, trial: AgentTrial) -> AgentExit:
        return AgentExit(0)


class TalkingAgent(LeastAgent):
    """Declares what it can do by attributes."""

    converses = True
    skills_at = ".talk/skills"


class DeclaringAgent(LeastAgent):
    """Declares what it can do as the protocol has it."""

    capabilities = AgentCapabilities(takes_mcp=True, takes_mcp_headers=False)


class LeastBenchmark:
    """A benchmark that knows nothing of capabilities."""

    name = "least"
    fraction = True
    source = {"kind": "plugin", "target": f"{__name__}:LeastBenchmark"}  # noqa: RUF012

    async def datasets(self) -> list[str]:
        return ["default"]

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        return ["one", "two"]

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        return TaskSpec(task_id, f"digest-{task_id}", "do it")

    async def setup(self, *given: object) -> None:
        return

    def solution(self, task: TaskSpec) -> None:
        return None

    async def evaluate(self, grading: object) -> Grade:
        return Grade(1.0, True)

    async def final_score(
        self, grades: Mapping[str, Sequence[Grade | None]], dataset: str = "default"
    ) -> FinalScore:
        return FinalScore(1.0 if grades else None)

    async def close(self) -> None:
        return


class WatchingBenchmark(LeastBenchmark):
    """Looks after each turn."""

    async def turn_ended(self, *given: object) -> None:
        return


@pytest.mark.parametrize("name", [*CATALOG])
def test_the_catalogues_agents_keep_the_contract(name: str) -> None:
    agent = check_agent(load_target(CATALOG[name].target))
    assert agent.name == name


@pytest.mark.parametrize("kind", [NapAgent, LeastAgent, TalkingAgent, DeclaringAgent])
def test_agents_of_other_people_keep_the_contract(kind: Any) -> None:
    check_agent(kind)


def test_what_an_agent_does_not_declare_is_the_least() -> None:
    assert check_agent(LeastAgent).capabilities == AgentCapabilities()
    assert check_agent(LeastAgent).layer is None
    assert not check_agent(LeastAgent).needs_solution


def test_an_agent_declares_by_attributes_or_as_the_protocol_has_it() -> None:
    talking = AgentCapabilities(converses=True, skills_at=".talk/skills")
    assert check_agent(TalkingAgent).capabilities == talking
    assert check_agent(DeclaringAgent).capabilities == DeclaringAgent.capabilities


def test_the_least_agent_is_opened_frozen_and_made_again(tmp_path: Path) -> None:
    spec = f"{__name__}:LeastAgent"
    prepared = open_agent(spec, library=AgentLibrary(tmp_path), secrets={"KEY": "key-name"})
    assert (prepared.name, prepared.final_output, prepared.output_artifacts) == ("least", None, ())
    assert prepared.capabilities == AgentCapabilities()
    again = open_frozen(prepared.frozen, tmp_path, tmp_path)
    assert (again.digest, again.secrets) == ("least:1", {"KEY": "key-name"})


def test_what_keeps_no_contract_is_told() -> None:
    class Forgetful(LeastAgent):
        @property
        def digest(self) -> str:  # type: ignore[override]
            return str(id(self))

    with pytest.raises(AssertionError, match="the same digest"):
        check_agent(Forgetful)


@pytest.mark.parametrize("kind", [NullBenchmark, LeastBenchmark, WatchingBenchmark])
async def test_benchmarks_of_other_people_keep_the_contract(kind: Any) -> None:
    await check_benchmark(kind())


async def test_shipped_benchmarks_keep_the_contract() -> None:
    assert (await check_benchmark(open_benchmark("quickstart"))).name == "quickstart"


async def test_a_benchmark_that_watches_turns_is_told_of_them() -> None:
    assert (await check_benchmark(LeastBenchmark())).capabilities.turn_ended is None
    assert (await check_benchmark(WatchingBenchmark())).capabilities.turn_ended is not None
    assert open_benchmark(f"{__name__}:LeastBenchmark").capabilities.headers is None
