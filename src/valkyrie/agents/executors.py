"""What a spec's `executor:` names: in our words an agent, of the catalogue, with a contract, or a plugin."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from valkyrie import plugins
from valkyrie.agents.catalogue.entries import CATALOG
from valkyrie.errors import UsageError
from valkyrie.plugins import is_target
from valkyrie.suggest import did_you_mean

PLUGIN_GROUP = "valkyrie.agents"
DEFAULT = "copilot-sdk"
"""What a spec means that names none."""
ALIASES: Mapping[str, str] = {"copilot-sdk": "copilot-cli", "claude-cli": "claude-code"}
"""Other people's names for agents of the catalogue."""
EFFORT: Mapping[str, str] = {
    "claude-code": "effort",
    "codex": "effort",
    "opencode": "variant",
    "copilot-cli": "reasoning_effort",
}
"""The parameter in which each is told how hard to think; the others cannot be told."""
_CONTRACT = "agent:"
_HIDDEN = ("oracle",)
"""No executor of a spec: `valk oracle` runs it, on stimuli that have golden inputs."""


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """The agent a spec is run with."""

    spec_for_open_agent: str
    """What `agents.open_agent` takes."""
    name: str
    """What people read: the executor's name."""
    implied: bool = False
    """Nobody named it: neither the spec nor `--agent`. Worth saying when it cannot be run."""


def agent_for(
    executor: str | None, *, override: str | None = None, plugins: Sequence[str] = (), base: Path
) -> AgentChoice:
    """The agent for a spec's `executor`; `override` (`--agent`) wins.

    Relative paths of the spec and of `plugins` start at `base`, the spec's folder; those of the command
    line at the working directory. Raises UsageError that lists the executors there are.
    """
    offered = _offered(plugins, base)
    if override is not None:
        return _choose(override, offered, Path.cwd(), "--agent")
    if executor is None:
        chosen = _choose(DEFAULT, offered, base, "executor")
        return AgentChoice(chosen.spec_for_open_agent, chosen.name, implied=True)
    if is_target(executor.removeprefix(_CONTRACT)) and executor not in (*plugins, *offered):
        raise UsageError(
            f"executor: {executor} is Python code that would run on this machine, and only a spec names it. "
            f"Name it yourself if you want it: --agent {executor.removeprefix(_CONTRACT)}."
        )
    return _choose(executor, offered, base, "executor")


def is_known_executor(name: str, plugins: Sequence[str], base: Path) -> bool:
    """Whether the catalogue, an installed package or these plugins have it, or it says itself where it is."""
    return (
        name.startswith(_CONTRACT)
        or ALIASES.get(name, name) in CATALOG
        or is_target(name)
        or name in _installed()
        or name in _offered(plugins, base)
    )


def known_executors(plugins: Sequence[str] = (), base: Path | None = None) -> list[str]:
    """Every name `executor:` may have here, for errors and lists."""
    offered = _offered(plugins, base or Path.cwd())
    own = [name for name in CATALOG if name not in _HIDDEN]
    return list(dict.fromkeys([*own, *ALIASES, *offered, *_installed()]))


def _choose(name: str, offered: Mapping[str, str], base: Path, said: str) -> AgentChoice:
    if name in offered:
        return AgentChoice(offered[name], name)
    if name.startswith(_CONTRACT):
        return _contract(name.removeprefix(_CONTRACT), base, said)
    found = ALIASES.get(name, name)
    if found in CATALOG or found in _installed():
        return AgentChoice(found, found)
    if is_target(name):
        return AgentChoice(name, name.rpartition(":")[2])
    known = list(dict.fromkeys([*(one for one in CATALOG if one not in _HIDDEN), *ALIASES, *offered]))
    hint = did_you_mean(name, known)
    raise UsageError(
        f"{said}: nothing is called {name[:100]!r}.{hint} There are {', '.join([*known, *_installed()])}; "
        "agent:NAME or agent:./FOLDER for an agent with a contract; others come with --executor-plugin, or "
        "as module:Class of a package that is installed or on PYTHONPATH."
    )


def _contract(where: str, base: Path, said: str) -> AgentChoice:
    """`./folder` and `/folder` are paths; a bare word is a pushed agent, or one of the catalogue."""
    if not where:
        raise UsageError(f"{said}: agent: is followed by a name or a path, like agent:./my-agent.")
    if "/" not in where and where not in (".", ".."):
        return AgentChoice(ALIASES.get(where, where), where)
    try:
        path = (base / Path(where).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{said}: agent:{where[:200]!r} is no path: {error}.") from None
    if not path.exists():
        raise UsageError(f"{said}: agent:{where} is {path}, and nothing is there.")
    return AgentChoice(str(path), path.name.removesuffix(".zip"))


def _installed() -> list[str]:
    return plugins.names(PLUGIN_GROUP)


def _offered(given: Sequence[str], base: Path) -> dict[str, str]:
    """Names of `--executor-plugin`s, and what `open_agent` takes for each."""
    found: dict[str, str] = {}
    for plugin in given:
        for name, spec in _agents_in(plugin, base):
            if name in CATALOG:
                raise UsageError(
                    f"--executor-plugin {plugin}: {name!r} is an agent of the catalogue; rename yours."
                )
            if found.get(name, spec) != spec:
                raise UsageError(f"--executor-plugin {plugin}: {name!r} is offered twice.")
            found[name] = spec
    return found


def _agents_in(plugin: str, base: Path) -> Iterator[tuple[str, str]]:
    file, _, wanted = plugin.partition(".py:")
    if not plugin.endswith(".py") and not wanted:
        yield _name_of(plugins.load(plugin, group=PLUGIN_GROUP), plugin.rpartition(":")[2]), plugin
        return
    path = (base / Path(f"{file}.py" if wanted else file).expanduser()).resolve()
    if not path.is_file():
        raise UsageError(f"--executor-plugin {plugin}: there is no file {path}.")
    module = plugins.load_file(path)
    classes = {name: one for name, one in vars(module).items() if _is_agent(one, module.__name__)}
    if wanted:
        classes = {name: one for name, one in classes.items() if name == wanted}
    if not classes:
        what = f"class {wanted}" if wanted else "class with a name and an execute() or run()"
        raise UsageError(f"--executor-plugin {plugin}: {path} has no {what} (see docs/concepts/eval-agents).")
    for name, one in classes.items():
        yield _name_of(one, name), f"file:{path}:{name}"


def _is_agent(value: Any, module: str) -> bool:
    if not inspect.isclass(value) or value.__module__ != module:
        return False
    return isinstance(getattr(value, "name", None), str) and hasattr(value, "run")


def _name_of(maker: Any, otherwise: str) -> str:
    name = getattr(maker, "name", None)
    return name if isinstance(name, str) and name else otherwise
