"""What must hold before a run on a benchmark service begins."""

from __future__ import annotations

from valkyrie import config
from valkyrie.agents import PreparedAgent
from valkyrie.agents.catalog import CATALOG
from valkyrie.nouns import Json


def service_problems(source: Json, agent: PreparedAgent, *, remote: bool) -> list[str]:
    """Why the service could not do its part; `remote`: the sandboxes are not of this machine."""
    if source.get("kind") != "service":
        return []
    return [*_unreachable(source, remote), *_answerless(source, agent)]


def _unreachable(source: Json, remote: bool) -> list[str]:
    """A service elsewhere must find its way to the sandboxes."""
    if remote or source["reaches_sandboxes"] == "loopback" or config.effective("sandbox_public_url").value:
        return []
    return [
        f"Benchmark service {source['name']} ({source['url']}) is not on this machine and cannot reach "
        "sandboxes here. Two ways: a tunnel to us (`valk config set sandbox_port 8090`, let a tunnel lead to "
        "that port, `valk config set sandbox_public_url https://…`), or sandboxes both can reach: "
        "--provider daytona."
    ]


def _answerless(source: Json, agent: PreparedAgent) -> list[str]:
    """Text grading takes the answer from the agent's final_output."""
    if source["grading"] != "text" or agent.final_output or agent.name in CATALOG:
        return []
    return [
        f"Benchmark service {source['name']} grades text answers, and the contract of agent {agent.name} "
        "names no final_output to take one from."
    ]
