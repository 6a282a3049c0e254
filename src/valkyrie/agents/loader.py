"""Open the agent that `--agent` or a spec's `executor:` names, freeze it, and open a frozen copy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark_runner.agent_bundle import CONTRACT_FILES
from valkyrie import plugins
from valkyrie.agents.catalog import CATALOG, KeyGroup
from valkyrie.agents.protocol import (
    Agent,
    AgentCapabilities,
    AgentOptions,
    LayerSpec,
    OutputArtifact,
    PreparedAgent,
)
from valkyrie.domain import Json
from valkyrie.errors import UsageError, UserError, ValkyrieError, paths_shown_as
from valkyrie.plugins import is_target
from valkyrie.text import did_you_mean

if TYPE_CHECKING:
    from valkyrie.agents.library import Library


PLUGIN_GROUP = "valkyrie.agents"
ARCHIVE_NAME = "agent.zip"
_FILE = re.compile(r"file:(/.+\.py):([A-Za-z_]\w*)", re.DOTALL)
"""A class in a file of this machine, as `agents.executors` writes it."""
_UPLOAD = re.compile("upload:([0-9a-f]{64})")


def open_agent(
    spec: str,
    *,
    model: str | None = None,
    kwargs: Mapping[str, str] | None = None,
    library: Library,
    secrets: Mapping[str, str] | None = None,
    trusted: bool = True,
    uploads: Callable[[str], Path] | None = None,
    model_url: str | None = None,
) -> PreparedAgent:
    """Find the agent `spec` names: catalogue, pushed, a folder or zip by path, a plugin, or an upload.

    `secrets` are those of the command line (environment variable → secret name); they win over the
    contract's. Who is not `trusted` is not on this machine: paths and `module:Class` are refused before
    anything is touched. `uploads` gives the archive of `upload:<digest>`, or raises UnknownError.
    """
    options = AgentOptions(model, dict(kwargs or {}), dict(secrets or {}), model_url)
    if uploads and (match := _UPLOAD.fullmatch(spec)):
        archive = uploads(match[1])
        with paths_shown_as({archive: "the uploaded agent"}):
            return _prepare_bundle(archive, None, options)
    if not trusted:
        _refuse_this_machines(spec)
    elif match := _FILE.fullmatch(spec):
        return _prepare_file(Path(match[1]), match[2], options)
    elif "/" in spec or spec in (".", "..") or spec.startswith("~"):
        return _prepare_bundle(Path(spec).expanduser(), None, options)
    if spec in CATALOG:
        return _prepare("catalog", spec, CATALOG[spec].target, options)
    if plugins.is_target(spec):
        return _prepare("plugin", spec, spec, options)
    pushed = library.names()
    if spec in pushed:
        return _prepare_bundle(library.path(spec), spec, options)
    if trusted and any((Path(spec) / name).is_file() for name in CONTRACT_FILES):
        return _prepare_bundle(Path(spec), None, options)
    if spec in plugins.names(PLUGIN_GROUP):
        return _prepare("plugin", spec, spec, options)
    known = [*CATALOG, *pushed]
    hint = did_you_mean(spec, known) or f" Known: {', '.join(known)}."
    folder = f" For a folder, give its path: ./{spec or 'my-agent'}" if trusted else ""
    raise UsageError(f"no agent is called {spec!r}.{hint}{folder}")


def _refuse_this_machines(spec: str) -> None:
    """Refuse what lies on this machine to those who ask from elsewhere; names known here are taken."""
    if "/" in spec or spec.startswith((".", "~")) or spec.endswith(".zip") or plugins.is_target(spec):
        raise UsageError(
            f"--agent {spec[:200]!r}: paths and module:Class are not taken from elsewhere. Push the agent "
            "(`valk agent push FOLDER`) and give its name."
        )


def freeze(prepared: PreparedAgent, folder: Path) -> Json:
    """Copy the agent's archive into a run's own folder; returns what `open_frozen` needs."""
    if prepared.source is None:
        return prepared.frozen
    from valkyrie.agents.contract_agent import freeze_bundle

    return freeze_bundle(prepared.frozen, prepared.source, folder / ARCHIVE_NAME)


def open_frozen(frozen: Json, folder: Path, cache: Path) -> Agent:
    """The same agent in another process; `folder` is the one it was frozen into."""
    kind = frozen["kind"]
    if kind == "bundle":
        from valkyrie.agents.contract_agent import open_bundle

        return open_bundle(frozen, folder / str(frozen["archive"]), cache)
    options = AgentOptions(
        frozen.get("model"), frozen.get("kwargs", {}), frozen.get("secrets", {}), frozen.get("model_url")
    )
    if kind == "plugin":
        return _make(str(frozen["target"]), options)
    if kind == "file":
        module = plugins.load_file(Path(str(frozen["file"])), digest=str(frozen["sha256"]))
        return _made(getattr(module, str(frozen["target"]), None), f"{frozen['file']}", options)
    if frozen["name"] not in CATALOG:
        raise UsageError(f"this version's catalogue has no agent {frozen['name']!r}.")
    return _make(CATALOG[frozen["name"]].target, options)


def _prepare_bundle(source: Path, name: str | None, options: AgentOptions) -> PreparedAgent:
    # Reading a contract takes yaml, which other agents do without.
    from valkyrie.agents.contract_agent import prepare_bundle

    return prepare_bundle(source, name, options)


def _prepare(kind: str, name: str, target: str, options: AgentOptions) -> PreparedAgent:
    keys = CATALOG[name].keys if kind == "catalog" else ()
    own = {"kind": kind, "name": name, "target": target}
    return _prepared(_make(target, options), own, options, keys)


def _prepare_file(path: Path, target: str, options: AgentOptions) -> PreparedAgent:
    """A class of a `.py` file: found again by its path, if the file is still the same."""
    module = plugins.load_file(path)
    agent = _made(getattr(module, target, None), f"{path}", options)
    own = {"kind": "file", "name": agent.name, "target": target, "file": str(path)}
    return _prepared(agent, own | {"sha256": plugins.file_digest(path)}, options)


def _prepared(agent: Agent, own: Json, options: AgentOptions, keys: Sequence[KeyGroup] = ()) -> PreparedAgent:
    frozen = {
        **own,
        "model": options.model,
        "kwargs": dict(options.kwargs),
        "secrets": dict(options.secrets),
        "model_url": options.model_url,
    }
    return PreparedAgent(
        name=agent.name,
        digest=agent.digest,
        frozen=frozen,
        secrets=agent.secrets,
        model=options.model,
        kwargs=options.kwargs,
        final_output=agent.final_output,
        output_artifacts=agent.output_artifacts,
        needs_solution=agent.needs_solution,
        keys=keys,
        capabilities=agent.capabilities,
    )


def _make(target: str, options: AgentOptions) -> Agent:
    return _made(plugins.load(target, group=PLUGIN_GROUP), target, options)


def _made(maker: Any, target: str, options: AgentOptions) -> Agent:
    if not callable(maker):
        raise UsageError(f"{target} is no class; an agent is made by calling it with AgentOptions.")
    try:
        made = maker(options)
    except ValkyrieError:
        raise
    except Exception as error:
        # Other people's code runs here, and may raise anything.
        raise UserError(f"{target}: making the agent failed: {type(error).__name__}: {error}") from error
    return adapted(made, target)


class AdaptedAgent:
    """An agent of other people that declares less than the protocol: the rest has the protocol's defaults.

    What it can do it declares in `capabilities`, or by attributes of the same names.
    """

    def __init__(self, made: Any) -> None:
        self._made = made
        own: AgentCapabilities | None = getattr(made, "capabilities", None)
        self.capabilities = own or AgentCapabilities.from_attributes(made)
        self.layer: LayerSpec | None = getattr(made, "layer", None)
        self.needs_solution: bool = getattr(made, "needs_solution", False)
        self.final_output: str | None = getattr(made, "final_output", None)
        self.output_artifacts: Sequence[OutputArtifact] = getattr(made, "output_artifacts", ())
        self.install = made.install
        self.run = made.run

    @property
    def name(self) -> str:
        return str(self._made.name)

    @property
    def digest(self) -> str:
        return str(self._made.digest)

    @property
    def secrets(self) -> Mapping[str, str]:
        secrets: Mapping[str, str] = self._made.secrets
        return secrets


NEEDED = ("name", "digest", "secrets", "install", "run")
DECLARED = ("capabilities", "layer", "needs_solution", "final_output", "output_artifacts")


def adapted(made: Any, target: str) -> Agent:
    """Return what `target` made as an agent that declares all of the protocol, or raise UsageError."""
    if missing := [part for part in NEEDED if not hasattr(made, part)]:
        raise UsageError(
            f"{target} is no agent: it lacks {', '.join(missing)} (see valkyrie.agents.protocol.Agent)."
        )
    agent: Agent = made if all(hasattr(made, part) for part in DECLARED) else AdaptedAgent(made)
    return agent


# What a spec's `executor:` names: in our words an agent, of the catalogue, with a contract, or a plugin.
DEFAULT = "copilot-sdk"
"""What a spec means that names none."""
ALIASES: Mapping[str, str] = {"copilot-sdk": "copilot-cli", "claude-cli": "claude-code"}
"""Other people's names for agents of the catalogue."""
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
    """Return whether the catalogue, an installed package or these plugins have it, or it says itself where it
    is."""
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
