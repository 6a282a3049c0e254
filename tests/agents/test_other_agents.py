"""The catalogue's other agents for real, in sandboxes without a network, on a model that follows a script."""

from __future__ import annotations

import asyncio
import base64
import shutil
from dataclasses import dataclass
from importlib.resources import as_file, files

import pytest

from tests.agents.public_agents import TASK, VALK, AgentCommands, Public, observed, solution
from valkyrie.testing import Fault, ModelServer, Say, Script, Shell
from valkyrie.testing.model_server.script import FaultKind
from valkyrie.trajectory import Trajectory

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
GRADED = ("model_refused", "context_overflow", "agent_gave_up")


@dataclass(frozen=True)
class Other(Public):
    """An agent with the API its model is asked through, and the faults after which it gives up soon."""

    impatient: tuple[str, ...] = ()
    api: str = ""
    faults: tuple[tuple[FaultKind, str], ...] = ()


OTHERS = (
    Other(
        "opencode",
        "anthropic/claude-sonnet-4-5",
        api="messages",
        faults=(
            ("refusal", "model_refused"),
            ("unauthorized", "model_unauthorized"),
            ("unknown_model", "model_unknown"),
        ),
    ),
    Other("opencode", "openai/gpt-5", api="responses"),
    Other("opencode", "google/gemini-2.5-pro", api="gemini"),
    Other("opencode", "a-model-of-my-own", api="chat"),
    Other("goose", "claude-sonnet-4-5", api="messages"),
    Other(
        "goose",
        "gpt-5",
        api="responses",
        faults=(
            ("rate_limit", "model_rate_limited"),
            ("context_overflow", "context_overflow"),
            ("unauthorized", "model_unauthorized"),
            ("unknown_model", "model_unknown"),
            ("server_error", "model_unreachable"),
            ("cut", "model_unreachable"),
        ),
    ),
    Other(
        "gemini-cli",
        "gemini-2.5-pro",
        api="gemini",
        faults=(
            ("context_overflow", "context_overflow"),
            ("unauthorized", "model_unauthorized"),
            ("unknown_model", "model_unknown"),
            ("cut", "model_unreachable"),
        ),
    ),
    Other("mini-swe-agent", "openai/gpt-5", api="chat"),
    Other(
        "mini-swe-agent",
        "anthropic/claude-sonnet-4-5",
        api="messages",
        faults=(
            ("refusal", "model_refused"),
            ("context_overflow", "context_overflow"),
            ("unauthorized", "model_unauthorized"),
        ),
    ),
    Other("copilot-cli", "claude-sonnet-4.5", api="messages"),
    Other("copilot-cli", "gpt-5", api="responses"),
    Other(
        "copilot-cli",
        "gpt-4.1",
        api="chat",
        faults=(
            ("context_overflow", "context_overflow"),
            ("unauthorized", "model_unauthorized"),
            ("unknown_model", "model_unknown"),
            ("server_error", "model_unreachable"),
            ("cut", "model_unreachable"),
        ),
    ),
)


@pytest.fixture(scope="session")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The task with more memory than quickstart gives: some of these programs do not fit into that."""
    folder = tmp_path_factory.mktemp("roomy")
    with as_file(files("valkyrie.benchmarks") / "quickstart" / TASK) as task:
        shutil.copytree(task, folder / TASK)
    settings = folder / TASK / "task.toml"
    settings.write_text(settings.read_text().replace("memory_mb = 512", "memory_mb = 2048"))
    return "--benchmark", str(folder)


def solved() -> str:
    """What solves the task, in one line for any shell: not all of them are bash, and some dislike `$(…)`."""
    script = base64.b64encode(solution().encode()).decode()
    return f"echo {script} | base64 -d | bash && echo it-is-there"


def shown(agent: Other) -> str:
    return f"{agent.name}-{agent.api}"


async def need_package(commands: AgentCommands, agent: Other) -> None:
    """Skip where the agent cannot be fetched; anything else that keeps it from being installed fails."""
    process = await asyncio.create_subprocess_exec(
        VALK,
        "agent",
        "fetch",
        agent.name,
        env=commands.env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    if process.returncode and b"reached no package registry" in said:
        pytest.skip(f"{agent.name} cannot be fetched here: no package registry is reached")
    assert process.returncode == 0, said.decode()


@pytest.mark.parametrize("agent", OTHERS, ids=shown)
async def test_it_solves_a_task(commands: AgentCommands, roomy: tuple[str, str], agent: Other) -> None:
    await need_package(commands, agent)
    last = Shell(SUBMIT) if agent.name == "mini-swe-agent" else Say("The program is written.")
    turns = [Shell(solved(), text="I write the program."), last]
    async with ModelServer(Script.of(*turns)) as server:
        run_id, trial = await commands.run(agent, server.url, *roomy)
        spent = server.spent()
        assert {request.api for request in server.requests} == {agent.api}
    assert (trial["state"], trial["score"], trial["cause"]) == ("FINISHED", 1.0, None), trial
    usage = trial["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (spent.input, spent.output)
    assert usage["steps"] == 2
    assert (usage["cost"], usage["cost_source"]) == (None, None), "a server of one's own has no known price"
    trajectory = Trajectory.from_json((await commands.outputs(run_id) / "trajectory.json").read_bytes())
    assert trajectory.agent.name == agent.name
    assert "it-is-there" in observed(trajectory)
    assert trajectory.final_metrics is not None
    assert trajectory.final_metrics.total_completion_tokens == spent.output


@pytest.mark.parametrize("agent", [agent for agent in OTHERS if agent.faults], ids=shown)
async def test_troubles_end_in_their_cause(
    commands: AgentCommands, roomy: tuple[str, str], agent: Other
) -> None:
    await need_package(commands, agent)
    script = Script({kind: [Fault(kind)] for kind, _ in agent.faults})
    async with ModelServer(script) as server:
        runs = [await commands.run(agent, f"{server.url}/c/{kind}", *roomy) for kind, _ in agent.faults]
    found = {
        kind: (trial["state"], trial["cause"])
        for (kind, _), (_, trial) in zip(agent.faults, runs, strict=True)
    }
    expected = {kind: ("FINISHED" if cause in GRADED else "ERROR", cause) for kind, cause in agent.faults}
    assert found == expected
