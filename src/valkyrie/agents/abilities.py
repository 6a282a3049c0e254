"""What an agent can do, asked before anything is started: converse, take up skills, use tool servers.

An agent says so by attributes; one that knows nothing of them can do the least.
"""

from __future__ import annotations

from valkyrie.agents.mcp import mcp_servers
from valkyrie.errors import UsageError
from valkyrie.nouns import TaskSpec

SKILLS = "skills"
"""In a task's metadata: the names of the skills its workspace has."""
SKILLS_AT = ".agents/skills"
"""Where most agents look for skills, below the folder they work in."""


def converses(agent: object) -> bool:
    """Whether it can be told something more after it has answered."""
    return bool(getattr(agent, "converses", False))


def takes_mcp(agent: object) -> bool:
    """Whether it uses the MCP servers of a task."""
    return bool(getattr(agent, "takes_mcp", False))


def takes_skills(agent: object) -> bool:
    """Whether it is shown the skills of a task's `skills_dir`."""
    return bool(getattr(agent, "takes_skills", False))


def skills_at(agent: object) -> str:
    """The folder below the workspace where it looks for skills."""
    return str(getattr(agent, "skills_at", SKILLS_AT))


def skills_of(task: TaskSpec) -> tuple[str, ...]:
    """The skills an agent finds in the task's workspace."""
    return tuple(task.metadata.get(SKILLS, ()))


def refuses(agent: object, task: TaskSpec) -> str | None:
    """Why this agent (or prepared agent) cannot be run on this task, naming both; None when it can."""
    name = getattr(agent, "name", "the agent")
    if len(task.turns) > 1 and not converses(agent):
        return (
            f"{task.id} has {len(task.turns)} turns, and the agent {name} cannot hold a conversation. "
            "Use one that can (valk agent catalog), or write a single prompt."
        )
    if not task.mcp_servers:
        return None
    if not takes_mcp(agent) and task.tools_optional:
        return None
    if not takes_mcp(agent):
        servers = ", ".join(task.mcp_servers)
        return f"{task.id} has MCP servers ({servers}), and the agent {name} takes none."
    try:
        servers_found = mcp_servers(task)
    except UsageError as error:
        return f"{task.id}: {error}"
    no_headers = [server.name for server in servers_found if server.headers]
    if no_headers and not getattr(agent, "takes_mcp_headers", True):
        return f"{task.id}: the agent {name} sends no headers to an MCP server ({', '.join(no_headers)})."
    return None
