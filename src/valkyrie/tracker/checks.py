"""Checks before a run, each problem told in one list: of the request, of tasks against provider and agent."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from sandboxes.protocol import host_memory_mb
from sandboxes.registry import PROVIDERS
from sandboxes.types import Capabilities
from valkyrie.agents import PreparedAgent
from valkyrie.agents.catalog import CATALOG
from valkyrie.agents.protocol import refuses
from valkyrie.config import values
from valkyrie.domain import DEFAULT_ORG, Json, TaskSpec, VerifyMode
from valkyrie.errors import (
    PREFLIGHT,
    BenchmarkError,
    InfrastructureError,
    MissingSecretError,
    UsageError,
    UserError,
    ValkyrieError,
)
from valkyrie.plan import family_of
from valkyrie.text import did_you_mean
from valkyrie.tracker.secrets import check_model_url
from valkyrie.views import RunRequest, UpdateRequest

if TYPE_CHECKING:
    from valkyrie.tenants import Organisation


# How much one request may ask for: what is stored of it is read again with every list of runs.

MOST_TRIALS = 100_000
"""Trials of one run: all of them are planned, in memory, before the first begins."""
LONGEST_TEXT = 1000
MOST_VALUES = 256 * 1024
"""Characters of all parameters, of all names of secrets, of all headers."""
_TEXTS = (
    *("agent", "benchmark", "model", "dataset", "slice", "label", "provider"),
    *("lambda_function", "webhook", "webhook_key", "provider_secret", "model_url"),
)
PRIORITIES = range(5)
_YES = ("1", "true", "yes", "on")


def check_texts(request: RunRequest) -> None:
    for name in _TEXTS:
        check_text(name.replace("_", " "), getattr(request, name))
    for name in ("kwargs", "secrets", "headers", "env_vars"):
        if sum(len(key) + len(value) for key, value in getattr(request, name).items()) > MOST_VALUES:
            raise UsageError(f"The {name} have more than {MOST_VALUES:,} characters together.")


def check_text(what: str, text: str | None) -> None:
    if text is not None and len(text) > LONGEST_TEXT:
        raise UsageError(f"The {what} has {len(text):,} characters; {LONGEST_TEXT:,} are taken.")


def check_trials(tasks: int, trials: int) -> None:
    if tasks * trials > MOST_TRIALS:
        raise UsageError(
            f"{tasks:,} tasks with {trials:,} trials each are more than the {MOST_TRIALS:,} trials a run can "
            "have; choose fewer tasks (--slice), or fewer --trials."
        )


def switched_on(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in _YES


def check_priority(priority: int) -> int:
    if priority not in PRIORITIES:
        raise UsageError(f"--priority must be 0 (first) to 4 (last), not {priority}.")
    return priority


def check_max_cost(max_cost: float) -> float:
    if not (math.isfinite(max_cost) and max_cost > 0):
        raise UsageError(f"--max-cost must be above 0 US dollars, not {max_cost:g}.")
    return max_cost


def check_update(request: UpdateRequest) -> None:
    if request.concurrency is not None and request.concurrency < 1:
        raise UsageError(f"--concurrency must be at least 1, not {request.concurrency}.")
    check_text("label", request.label)
    if request.max_cost is not None:
        check_max_cost(request.max_cost)
    if request.priority is not None:
        check_priority(request.priority)
    if request.abort_after is not None and request.abort_after < 0:
        raise UsageError(f"--abort-after must be at least 0, not {request.abort_after}.")


# All that stands in the way of a run, told in one list.

MOST_PROBLEMS = 20

T = TypeVar("T")


class Problem(str):
    """A problem that remembers its error, so that a lone one is raised as itself."""

    def __new__(cls, error: ValkyrieError) -> Problem:
        made = super().__new__(cls, str(error))
        made.error = error
        return made

    error: ValkyrieError


@dataclass(slots=True)
class ProblemList:
    """The problems found so far, and the secrets without a value: environment variable → name."""

    texts: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, error: ValkyrieError) -> None:
        """Add an error, and the secrets it says are missing."""
        self.texts.append(Problem(error))
        if isinstance(error, MissingSecretError):
            self.missing.update(error.missing)

    def collect(self, find: Callable[[], T]) -> T | None:
        """Return what was found, or None and one more problem: not there, refused, broken or out of reach."""
        try:
            return find()
        except (UserError, BenchmarkError, InfrastructureError) as error:
            self.texts.append(Problem(error))
            return None


def refuse(problems: Sequence[str], missing: Mapping[str, str] | None = None) -> ValkyrieError:
    """Return the refusal that lists everything at once, and nothing twice; lists in it become part of it."""
    problems = list(dict.fromkeys(part for one in problems for part in _parts(one)))
    if len(problems) == 1 and isinstance(problems[0], Problem):
        return problems[0].error
    indented = [text.replace("\n", "\n     ") for text in problems[:MOST_PROBLEMS]]
    shown = [f"  {number}. {text}" for number, text in enumerate(indented, 1)]
    more = [f"  … and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
    text = "\n".join([f"{len(problems)} things stand in the way:", *shown, *more])
    if len(problems) == 1:
        text = problems[0]
    refused = (
        MissingSecretError(text, missing=missing, cause=None if _only_secrets(problems) else PREFLIGHT)
        if missing
        else UserError(text)
    )
    refused.problems = tuple(problems)
    return refused


def _parts(problem: str) -> Sequence[str]:
    """Return what a problem lists that is itself such a refusal; else just that problem."""
    return (problem.error.problems or (problem,)) if isinstance(problem, Problem) else (problem,)


def _only_secrets(problems: Sequence[str]) -> bool:
    return all(isinstance(one, Problem) and isinstance(one.error, MissingSecretError) for one in problems)


MOST_STRETCH = 1000.0
"""How far time limits may be stretched: ten minutes become a week."""
UNISOLATED = "VALKYRIE_ALLOW_UNISOLATED"
LONGEST_S = 366 * 86_400.0
"""Seconds; a year."""
NOT_BUILT = ": no provider can yet. Ask for 'public' or 'no-network' in its task.toml."
_ROOT = frozenset({None, "root", "0"})
"""Users every sandbox has."""
_OF_THE_HOST = frozenset({"local", "process"})
"""Providers whose sandboxes have this host's users."""
_OWN_KEYS = ("tags", "warnings", "host_variables", "allowed_hosts", "keywords", "description", "name")
"""Keys of metadata that no author wrote as such."""


# What no run can be, whatever its agent and tasks are, and what only some may ask for


def check_request(request: RunRequest, organisation: Organisation, *, allow_local: bool) -> None:
    """Raise UsageError for what is refused before anything is looked at."""
    check_texts(request)
    _check_numbers(request)
    _check_place(request, organisation)
    if request.verify is not None and request.verify not in list(VerifyMode):
        raise UsageError(f"--verify is {' or '.join(VerifyMode)}, not {request.verify!r}.")
    if request.family is not None and not request.family.strip():
        raise UsageError("--family is empty; name a key of the tasks' metadata.")
    check_model_url(request.model_url, trusted=organisation.trusted, allow_local=allow_local)


def _check_numbers(request: RunRequest) -> None:
    for flag, value, least in (
        ("--concurrency", request.concurrency, 1),
        ("--trials", request.trials, 1),
        ("--max-attempts", request.max_attempts or 1, 1),
        ("--abort-after", request.abort_after, 0),
    ):
        if value < least:
            raise UsageError(f"{flag} must be at least {least}, not {value}.")
    if not 0 < request.timeout_multiplier <= MOST_STRETCH:
        raise UsageError(
            f"--timeout-multiplier must be above 0 and at most {MOST_STRETCH:g}, "
            f"not {request.timeout_multiplier:g}."
        )
    if request.agent_timeout is not None and not 0 < request.agent_timeout <= LONGEST_S:
        raise UsageError(
            f"--timeout must be above 0 and at most {LONGEST_S:.0f} seconds, not {request.agent_timeout:g}."
        )
    check_priority(request.priority)
    if request.max_cost is not None:
        check_max_cost(request.max_cost)


def _check_place(request: RunRequest, organisation: Organisation) -> None:
    """Refuse code on a server's bare machine, and sandboxes left on it, to those who ask from elsewhere."""
    if organisation.trusted:
        return
    if request.provider == "process" and not switched_on(UNISOLATED):
        raise UsageError(
            "--provider process isolates nothing, so this tracker does not offer it; its operator can with "
            f"{UNISOLATED}=1. --provider local isolates."
        )
    of_the_machine = not (found := PROVIDERS.get(request.provider)) or not found.settings
    if request.keep_sandbox and of_the_machine and organisation.identity.org_id != DEFAULT_ORG:
        raise UsageError(
            "--keep-sandbox leaves sandboxes on the tracker's machine, where only its own people could look "
            "into them; leave it out. `valk run outputs` has what the agent left."
        )


# What tasks ask for and a provider, this machine or the agent cannot give


def unable(capabilities: Capabilities, provider: str) -> list[str]:
    """Return why the provider can run nothing at all now."""
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
    """Return what the provider, this machine or the agent cannot give a task."""
    images = [task for task in tasks if task.image is not None and not request.host_image]
    problems = unable(capabilities, request.provider)
    if images and not capabilities.images:
        problems.append(
            f"{_names(images)} a container image ({images[0].image}), which provider {request.provider!r} "
            "cannot run. --host-image runs it on this machine's own file system anyway; --provider docker "
            "runs the image itself, in a container, --provider daytona in Daytona's cloud."
        )
    problems += _unbuilt(images, capabilities, request)
    problems += [refused for task in tasks if (refused := refuses(agent.name, agent.capabilities, task))]
    problems += _unconnected(tasks, agent, capabilities, request)
    problems += _unknown_users(tasks, capabilities, request)
    if request.verify == "fresh" and not capabilities.carries_work:
        problems.append(
            f"--verify fresh: provider {request.provider!r} cannot carry an agent's work into another "
            "sandbox. Leave it out, or use --provider local or docker."
        )
    return problems + _oversized(tasks, capabilities, request) + _unsuited(tasks, agent, request)


def _unconnected(
    tasks: Sequence[TaskSpec], agent: PreparedAgent, capabilities: Capabilities, request: RunRequest
) -> list[str]:
    networks: dict[str, list[TaskSpec]] = {}
    for task in tasks:
        if task.network not in capabilities.networks:
            networks.setdefault(task.network, []).append(task)
    problems = []
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
    return problems


def _unknown_users(tasks: Sequence[TaskSpec], capabilities: Capabilities, request: RunRequest) -> list[str]:
    others = [task for task in tasks if not _users(task) <= _ROOT]
    if others and not capabilities.users:
        user = min(str(name) for name in _users(others[0]) - _ROOT)
        return [
            f"{_names(others)} a user other than root ({user!r}), whom provider {request.provider!r} cannot "
            "give it here. Run as root, or remove `user` from task.toml."
        ]
    if request.provider not in _OF_THE_HOST:
        return []
    return [f"{task.id}: {text}" for task in tasks for text in task.metadata.get("unknown_users", [])]


def _oversized(tasks: Sequence[TaskSpec], capabilities: Capabilities, request: RunRequest) -> list[str]:
    problems = []
    gifted = [task for task in tasks if task.limits.gpus]
    if gifted and not capabilities.gpus:
        problems.append(
            f"{_names(gifted)} a GPU, which provider {request.provider!r} does not have. --provider docker "
            "passes this machine's on, where its engine can."
        )
    memory = host_memory_mb()
    here = not PROVIDERS[request.provider].settings
    large = [task for task in tasks if here and (task.limits.memory_mb or 0) > memory]
    if large:
        problems.append(
            f"{_names(large)} {large[0].limits.memory_mb} MB of memory; this machine has {memory} MB."
        )
    return problems


def _unsuited(tasks: Sequence[TaskSpec], agent: PreparedAgent, request: RunRequest) -> list[str]:
    """Return what the agent needs of a task, wherever it runs, and does not find."""
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
    """Return what may well fail, and cannot be known before."""
    repeating = [task for task in tasks if task.metadata.get("repeated_runs")]
    if not repeating or capabilities.writable_system:
        return []
    return [
        f"{_names(repeating, 'repeats', 'repeat')} RUN lines of a Dockerfile where system folders are "
        "read-only: what they install (apt-get) fails and is passed over. Run as root for a writable system."
    ]


def untooled(tasks: Sequence[TaskSpec], agent: PreparedAgent) -> list[str]:
    """Return what tasks offer and this agent does without; the oracle needs nothing."""
    if agent.needs_solution:
        return []
    offers = {
        "MCP servers": [task for task in tasks if task.mcp_servers and not agent.capabilities.takes_mcp],
        "skills": [task for task in tasks if task.skills_dir and not agent.capabilities.takes_skills],
    }
    return [
        f"{_names(found, 'offers', 'offer')} {what}, which {agent.name} does not take: it is tried without."
        for what, found in offers.items()
        if found
    ]


def remarks(tasks: Sequence[TaskSpec]) -> list[str]:
    """Return what the tasks' files ask for and do not get, each said once."""
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


# What must hold before a run on a benchmark service begins


def service_problems(source: Json, agent: PreparedAgent, *, remote: bool) -> list[str]:
    """Return why the service could not do its part; `remote`: the sandboxes are not of this machine."""
    if source.get("kind") != "service":
        return []
    return [*_unreachable(source, remote), *_answerless(source, agent)]


def _unreachable(source: Json, remote: bool) -> list[str]:
    """A service elsewhere must find its way to the sandboxes."""
    if remote or source["reaches_sandboxes"] == "loopback" or values.effective("sandbox_public_url").value:
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


# What is said of the families of a run's tasks


def without_family(tasks: Sequence[TaskSpec], key: str | None) -> list[str]:
    """Return the problem that no task says what `--family` asks for."""
    if key is None or not tasks or any(family_of(task, key) is not None for task in tasks):
        return []
    known = {name for task in tasks for name in (*task.metadata, *(task.metadata.get("tags") or {}))}
    known -= set(_OWN_KEYS)
    hint = did_you_mean(key, known) or (f" There is: {', '.join(sorted(known)[:10])}." if known else "")
    return [f"--family {key}: no task has that key in its metadata.{hint}"]


def family_remarks(tasks: Sequence[TaskSpec], key: str | None) -> list[str]:
    """Say what families there are, and of how many tasks none is known where others have one."""
    found = [family_of(task, key) for task in tasks]
    known = [one for one in found if one is not None]
    if not known:
        return []
    lacking = len(found) - len(known)
    alone = f"; {lacking} of {len(found)} tasks name none, each is its own" if lacking else ""
    count = len(set(known)) + lacking
    few = ": fewer than five say little about others" if count < 5 else ""
    return [f"{count} families of tasks: intervals and tests go over families, not tasks{few}{alone}"]
