"""What tasks ask for and a provider, this machine or the agent cannot give."""

from __future__ import annotations

from collections.abc import Sequence

from sandboxes.limits import host_memory_mb
from sandboxes.registry import PROVIDERS
from sandboxes.types import Capabilities
from valkyrie.agents import PreparedAgent
from valkyrie.agents.abilities import refuses
from valkyrie.nouns import TaskSpec
from valkyrie.tracker.problems import MOST_PROBLEMS
from valkyrie.views import RunRequest

NOT_BUILT = ": no provider can yet. Ask for 'public' or 'no-network' in its task.toml."
_ROOT = frozenset({None, "root", "0"})
"""Users every sandbox has."""
_OF_THE_HOST = frozenset({"local", "process"})
"""Providers whose sandboxes have this host's users."""


def unable(capabilities: Capabilities, provider: str) -> list[str]:
    """Why the provider can run nothing at all now."""
    if not capabilities.problem:
        return []
    if PROVIDERS[provider].settings:
        return [f"--provider {provider}: {capabilities.problem}."]
    return [
        f"Provider {provider!r} cannot work on this machine: {capabilities.problem}. "
        "--provider process runs without any isolation, if you trust the agent."
    ]


def unfit(
    tasks: Sequence[TaskSpec], agent: PreparedAgent, capabilities: Capabilities, request: RunRequest
) -> list[str]:
    """What the provider, this machine or the agent cannot give a task."""
    images = [task for task in tasks if task.image is not None and not request.host_image]
    networks: dict[str, list[TaskSpec]] = {}
    for task in tasks:
        if task.network not in capabilities.networks:
            networks.setdefault(task.network, []).append(task)
    memory = host_memory_mb()
    here = not PROVIDERS[request.provider].settings
    large = [task for task in tasks if here and (task.limits.memory_mb or 0) > memory]
    problems = unable(capabilities, request.provider)
    if images and not capabilities.images:
        problems.append(
            f"{_names(images)} a container image ({images[0].image}), which provider {request.provider!r} "
            "cannot run. --host-image runs it on this machine's own file system anyway; --provider docker "
            "runs the image itself, in a container, --provider daytona in Daytona's cloud."
        )
    problems += _unbuilt(images, capabilities, request)
    problems += [refused for task in tasks if (refused := refuses(agent, task))]
    for policy, found in networks.items():
        ways = "; ".join(f"{what}: {way}" for what, way in capabilities.missing if "network" in what.lower())
        problems.append(
            f"{_names(found)} network {policy!r}, which provider {request.provider!r} cannot give here"
            + (f" ({ways})." if ways else NOT_BUILT if policy == "allowlist" else ". `valk doctor` says why.")
        )
    if agent.egress_allowlist and "allowlist" not in capabilities.networks:
        problems.append(
            f"Agent {agent.name} restricts its network to a list (egress_allowlist), which provider "
            f"{request.provider!r} cannot enforce yet. Remove the list from its contract to run without it."
        )
    others = [task for task in tasks if not _users(task) <= _ROOT]
    if others and not capabilities.users:
        user = min(str(name) for name in _users(others[0]) - _ROOT)
        problems.append(
            f"{_names(others)} a user other than root ({user!r}), whom provider {request.provider!r} cannot "
            "give it here. Run as root, or remove `user` from task.toml."
        )
    elif request.provider in _OF_THE_HOST:
        problems += [
            f"{task.id}: {text}" for task in tasks for text in task.metadata.get("unknown_users", [])
        ]
    if request.verify == "fresh" and not capabilities.carries_work:
        problems.append(
            f"--verify fresh: provider {request.provider!r} cannot carry an agent's work into another "
            "sandbox. Leave it out, or use --provider local or docker."
        )
    gifted = [task for task in tasks if task.limits.gpus]
    if gifted and not capabilities.gpus:
        problems.append(
            f"{_names(gifted)} a GPU, which provider {request.provider!r} does not have. --provider docker "
            "passes this machine's on, where its engine can."
        )
    if large:
        problems.append(
            f"{_names(large)} {large[0].limits.memory_mb} MB of memory; this machine has {memory} MB."
        )
    return problems + _unsuited(tasks, agent, request)


def _unsuited(tasks: Sequence[TaskSpec], agent: PreparedAgent, request: RunRequest) -> list[str]:
    """What the agent needs of a task, wherever it runs, and does not find."""
    problems = []
    if agent.keys and not (request.model_url or "").startswith("http:"):
        silent = [task for task in tasks if task.network == "none"]
        if silent:
            problems.append(
                f"{_names(silent, 'has', 'have')} no network, so {agent.name} could not reach its model. "
                'Open it (network_mode = "public" in task.toml; `benchmark add --network public` for public '
                "benchmarks), or give --model-url http://…: a door of the sandbox leads there."
            )
    if agent.needs_solution:
        without = [task for task in tasks if not task.has_solution]
        if without:
            problems.append(f"{_names(without, 'has', 'have')} no solution/solve.sh for {agent.name} to run.")
    return problems


def _users(task: TaskSpec) -> set[str | None]:
    """Everyone its commands run as."""
    parts = (task, *task.steps)
    gathering = (command.user for one in parts for command in one.gathering)
    return {*gathering, *(user for one in parts for user in (one.user, one.grading_user))}


def _unbuilt(images: Sequence[TaskSpec], capabilities: Capabilities, request: RunRequest) -> list[str]:
    """Recipes of images that the provider, although it runs images, cannot follow."""
    if not capabilities.images:
        return []
    problems = []
    composed = [task for task in images if task.metadata.get("compose_file")]
    if composed:
        problems.append(
            f"{_names(composed, 'is', 'are')} made of several containers "
            f"({composed[0].metadata['compose_file']}), which no provider can run yet. --host-image runs it "
            "in one sandbox, on the provider's own file system and without the other containers."
        )
    recipes = [task for task in images if task.source is not None and task.source.type == "build"]
    modern = [task for task in recipes if task.metadata.get("buildkit")]
    if modern and capabilities.builds and not capabilities.builds_buildkit:
        lines = "; ".join(modern[0].metadata["buildkit"][:3])
        problems.append(
            f"{_names(modern, 'has', 'have')} a Dockerfile that only BuildKit can build ({lines}), which "
            f"provider {request.provider!r} cannot use yet. Write these lines without it, or build the image "
            "yourself and name it in task.toml (environment.docker_image)."
        )
    if recipes and not capabilities.builds:
        problems.append(
            f"{_names(recipes, 'brings', 'bring')} a Dockerfile to build, which provider "
            f"{request.provider!r} cannot. Name a ready image in task.toml (environment.docker_image), or "
            "use --provider docker."
        )
    return problems


def doubtful(tasks: Sequence[TaskSpec], capabilities: Capabilities) -> list[str]:
    """What may well fail, and cannot be known before."""
    repeating = [task for task in tasks if task.metadata.get("repeated_runs")]
    if not repeating or capabilities.writable_system:
        return []
    return [
        f"{_names(repeating, 'repeats', 'repeat')} RUN lines of a Dockerfile where system folders are "
        "read-only: what they install (apt-get) fails and is passed over. Run as root for a writable system."
    ]


def untooled(tasks: Sequence[TaskSpec], agent: PreparedAgent) -> list[str]:
    """What tasks offer and this agent does without; the oracle needs nothing."""
    if agent.needs_solution:
        return []
    offers = {
        "MCP servers": [task for task in tasks if task.mcp_servers and not agent.takes_mcp],
        "skills": [task for task in tasks if task.skills_dir and not agent.takes_skills],
    }
    return [
        f"{_names(found, 'offers', 'offer')} {what}, which {agent.name} does not take: it is tried without."
        for what, found in offers.items()
        if found
    ]


def remarks(tasks: Sequence[TaskSpec]) -> list[str]:
    """What the tasks' files ask for and do not get, each said once."""
    found: dict[str, list[TaskSpec]] = {}
    for task in tasks:
        for text in task.metadata.get("warnings", []):
            found.setdefault(text, []).append(task)
    said = [f"{_names(concerned, '', '').strip()}: {text}" for text, concerned in found.items()]
    return said[:MOST_PROBLEMS]


def _names(tasks: Sequence[TaskSpec], one: str = "asks for", many: str = "ask for") -> str:
    shown = ", ".join(repr(task.id) for task in tasks[:3])
    if len(tasks) == 1:
        return f"Task {shown} {one}"
    more = f" and {len(tasks) - 3} more" if len(tasks) > 3 else ""
    return f"Tasks {shown}{more} {many}"
