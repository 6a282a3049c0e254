"""Real agents in sandboxes without a network, on a model that follows a script."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from tests.agents.public_agents import CLAUDE_CODE, CODEX, AgentCommands, Public, observed, solution
from valkyrie.testing import Fault, ModelServer, Say, Script, Shell
from valkyrie.trajectory import Trajectory

AGENTS = pytest.mark.parametrize("agent", [CLAUDE_CODE, CODEX], ids=lambda agent: agent.name)
GRADED, BROKEN = "FINISHED", "ERROR"
TROUBLES = {
    "refusal": (Fault("refusal"), GRADED, "agent", "model_refused"),
    "overflow": (Fault("context_overflow"), GRADED, "agent", "context_overflow"),
    "limited": (Fault("rate_limit", retry_after=1), BROKEN, "infrastructure", "model_rate_limited"),
    "cut": (Fault("cut"), BROKEN, "infrastructure", "model_unreachable"),
    "overloaded": (Fault("overloaded"), BROKEN, "infrastructure", "model_unreachable"),
    "unauthorized": (Fault("unauthorized"), BROKEN, "user", "model_unauthorized"),
    "unknown": (Fault("unknown_model"), BROKEN, "user", "model_unknown"),
}


@AGENTS
async def test_it_solves_a_task(commands: AgentCommands, agent: Public) -> None:
    async with ModelServer(Script.of()) as server:
        port = urlsplit(server.url).port
        look = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached || echo sealed\n"
        turns = [Shell(look + solution(), text="I write the program."), Say("The program is written.")]
        server.script = Script.of(*turns)
        run_id, trial = await commands.run(agent, server.url)
        spent = server.spent()
    assert (trial["state"], trial["score"], trial["cause"]) == ("FINISHED", 1.0, None), trial
    usage = trial["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (spent.input, spent.output)
    assert usage["steps"] == 2
    assert usage["cost"] is None, "nobody knows what a server of one's own costs"
    kept = await commands.outputs(run_id)
    trajectory = Trajectory.from_json((kept / "trajectory.json").read_bytes())
    assert trajectory.agent.name == agent.name
    assert "sealed" in observed(trajectory)
    assert trajectory.steps[-1].message == "The program is written."
    assert trajectory.final_metrics is not None
    assert trajectory.final_metrics.total_prompt_tokens == spent.input
    log = (kept / f"{agent.name}.jsonl").read_text()
    assert all(isinstance(json.loads(line), dict) for line in log.splitlines())


@AGENTS
async def test_troubles_end_in_their_category(commands: AgentCommands, agent: Public) -> None:
    script = Script({name: [fault] for name, (fault, *_) in TROUBLES.items()})
    async with ModelServer(script) as server:
        runs = await asyncio.gather(*(commands.run(agent, f"{server.url}/c/{name}") for name in TROUBLES))
    found = {
        name: (trial["state"], trial["category"], trial["cause"])
        for name, (_, trial) in zip(TROUBLES, runs, strict=True)
    }
    assert found == {name: (state, category, cause) for name, (_, state, category, cause) in TROUBLES.items()}
    assert all(trial["message"] for _, trial in runs)


@AGENTS
async def test_it_gets_over_what_passes(commands: AgentCommands, agent: Public) -> None:
    turns = [
        Fault("rate_limit", times=1, retry_after=1),
        Shell(solution()),
        Fault("cut", times=1),
        Say("Done."),
    ]
    async with ModelServer(Script.of(*turns)) as server:
        _, trial = await commands.run(agent, server.url)
    assert (trial["state"], trial["score"], trial["cause"]) == ("FINISHED", 1.0, None), trial
