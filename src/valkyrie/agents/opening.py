"""From the word after `--agent` to an agent, and from a run's frozen copy back to the same agent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark_runner.agent_bundle import CONTRACT_FILES
from valkyrie import plugins
from valkyrie.agents.abilities import SKILLS_AT, converses, skills_at, takes_mcp, takes_skills
from valkyrie.agents.catalog import CATALOG, AgentOptions, KeyGroup
from valkyrie.agents.protocol import Agent, OutputArtifact
from valkyrie.errors import (
    BundleError,
    ContractValidationError,
    UsageError,
    UserError,
    ValkyrieError,
    paths_shown_as,
)
from valkyrie.nouns import Json
from valkyrie.suggest import did_you_mean

if TYPE_CHECKING:
    # Reading contracts takes YAML and pydantic; the catalogue's agents need neither.
    from benchmark_runner.agent_bundle.contract import AgentContract
    from valkyrie.agents.library import Library

PLUGIN_GROUP = "valkyrie.agents"
ARCHIVE_NAME = "agent.zip"
_FILE = re.compile(r"file:(/.+\.py):([A-Za-z_]\w*)", re.DOTALL)
"""A class in a file of this machine, as `agents.executors` writes it."""
_UPLOAD = re.compile("upload:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class PreparedAgent:
    """An agent found and checked, not yet frozen into a run."""

    name: str
    digest: str
    """What trials are identified by; the frozen agent has the same."""
    frozen: Json
    """Plain data; `freeze` adds where the archive is."""
    secrets: Mapping[str, str]
    """Environment variable → secret name."""
    model: str | None = None
    kwargs: Mapping[str, Any] | None = None
    final_output: str | None = None
    output_artifacts: Sequence[OutputArtifact] = ()
    egress_allowlist: Sequence[str] = ()
    needs_solution: bool = False
    keys: Sequence[KeyGroup] = ()
    """API keys of which some are needed; planning looks which there are."""
    notices: Sequence[str] = ()
    """What its author should know, and what keeps nothing from running."""
    converses: bool = False
    skills_at: str = SKILLS_AT
    takes_mcp: bool = False
    takes_mcp_headers: bool = True
    takes_skills: bool = False
    """What `agents.abilities` asks; the agent says the same."""
    source: Path | None = None
    """The folder or archive a bundle comes from."""


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
            return _open_archive(archive, None, options)
    if not trusted:
        _refuse_this_machines(spec)
    elif match := _FILE.fullmatch(spec):
        return _prepare_file(Path(match[1]), match[2], options)
    elif "/" in spec or spec in (".", "..") or spec.startswith("~"):
        return _open_path(Path(spec).expanduser(), options)
    if spec in CATALOG:
        return _prepare("catalog", spec, CATALOG[spec].target, options)
    if plugins.is_target(spec):
        return _prepare("plugin", spec, spec, options)
    pushed = library.names()
    if spec in pushed:
        return _open_archive(library.path(spec), spec, options)
    if trusted and any((Path(spec) / name).is_file() for name in CONTRACT_FILES):
        return _open_path(Path(spec), options)
    if spec in plugins.names(PLUGIN_GROUP):
        return _prepare("plugin", spec, spec, options)
    known = [*CATALOG, *pushed]
    hint = did_you_mean(spec, known) or f" Known: {', '.join(known)}."
    folder = f" For a folder, give its path: ./{spec or 'my-agent'}" if trusted else ""
    raise UsageError(f"no agent is called {spec!r}.{hint}{folder}")


def _refuse_this_machines(spec: str) -> None:
    """Who asks from elsewhere may name what is known here by name, not what lies on this machine."""
    if "/" in spec or spec.startswith((".", "~")) or spec.endswith(".zip") or plugins.is_target(spec):
        raise UsageError(
            f"--agent {spec[:200]!r}: paths and module:Class are not taken from elsewhere. Push the agent "
            "(`valk agent push FOLDER`) and give its name."
        )


def freeze(prepared: PreparedAgent, folder: Path) -> Json:
    """Copy the agent's archive into a run's own folder; returns what `open_frozen` needs."""
    if prepared.source is None:
        return prepared.frozen
    from benchmark_runner.agent_bundle.bundle import copy_archive, digest_archive, pack
    from benchmark_runner.archive import file_sha256

    archive = folder / ARCHIVE_NAME
    if prepared.source.is_dir():
        digest = pack(prepared.source, prepared.frozen["contract"]["name"], archive)
    else:
        copy_archive(prepared.source, archive)
        digest = digest_archive(archive)
    if digest != prepared.frozen["bundle_digest"]:
        archive.unlink()
        raise BundleError(f"{prepared.source} changed while it was being read; start again.")
    return prepared.frozen | {"archive": ARCHIVE_NAME, "archive_sha256": file_sha256(archive)}


def open_frozen(frozen: Json, folder: Path, cache: Path) -> Agent:
    """The same agent in another process; `folder` is the one it was frozen into."""
    kind = frozen["kind"]
    if kind == "bundle":
        from benchmark_runner.archive import file_sha256
        from valkyrie.agents.bundled import BundleCache, ContractAgent

        archive = folder / str(frozen["archive"])
        if not archive.is_file():
            raise BundleError(f"the run's copy of its agent is missing: {archive}.")
        if file_sha256(archive) != frozen["archive_sha256"]:
            raise BundleError(
                f"{archive} is not the agent that was frozen into the run; it was changed since."
            )
        return ContractAgent(frozen, archive, BundleCache(cache))
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
        converses=converses(agent),
        skills_at=skills_at(agent),
        takes_mcp=takes_mcp(agent),
        takes_mcp_headers=getattr(agent, "takes_mcp_headers", True),
        takes_skills=takes_skills(agent),
    )


def _make(target: str, options: AgentOptions) -> Agent:
    return _made(plugins.load(target, group=PLUGIN_GROUP), target, options)


def _made(maker: Any, target: str, options: AgentOptions) -> Agent:
    if not callable(maker):
        raise UsageError(f"{target} is no class; an agent is made by calling it with AgentOptions.")
    try:
        agent: Agent = maker(options)
    except ValkyrieError:
        raise
    except Exception as error:
        # Other people's code runs here, and may raise anything.
        raise UserError(f"{target}: making the agent failed: {type(error).__name__}: {error}") from error
    missing = [part for part in ("name", "digest", "secrets", "install", "run") if not hasattr(agent, part)]
    if missing:
        raise UsageError(
            f"{target} is no agent: it lacks {', '.join(missing)} (see valkyrie.agents.protocol.Agent)."
        )
    return agent


def _open_path(path: Path, options: AgentOptions) -> PreparedAgent:
    if path.suffix == ".zip" and path.is_file():
        return _open_archive(path, None, options)
    if not path.is_dir():
        raise UsageError(
            f"{path} is no folder. An agent is a folder with a contract.yaml (`valk agent init NAME`)."
        )
    from benchmark_runner.agent_bundle.bundle import digest_folder
    from benchmark_runner.agent_bundle.contract import load_contract

    contract = load_contract(path)
    return _bundle(contract, contract.name, digest_folder(path), path.resolve(), options)


def _open_archive(archive: Path, name: str | None, options: AgentOptions) -> PreparedAgent:
    from benchmark_runner.agent_bundle.bundle import digest_archive, read_contract
    from benchmark_runner.agent_bundle.contract import load_contract

    file, text = read_contract(archive)
    contract = load_contract(text, where=f"{archive}/{file}")
    return _bundle(contract, name or contract.name, digest_archive(archive), archive.resolve(), options)


def _bundle(
    contract: AgentContract, name: str, bundle_digest: str, source: Path, options: AgentOptions
) -> PreparedAgent:
    from dataclasses import replace

    from benchmark_runner.agent_bundle.resolution import misspelt, resolve
    from valkyrie.agents.bundled import contract_digest

    secrets = {**contract.environment, **options.secrets}
    try:
        resolved = replace(resolve(contract, options.model, options.kwargs), secrets=secrets)
    except ContractValidationError as error:
        error.secrets = secrets
        raise
    digest = contract_digest(bundle_digest, resolved)
    frozen = {
        "kind": "bundle",
        "name": name,
        "digest": digest,
        "bundle_digest": bundle_digest,
        "contract": resolved.to_json(),
    }
    return PreparedAgent(
        name=name,
        digest=digest,
        frozen=frozen,
        secrets=resolved.secrets,
        model=resolved.model,
        kwargs=resolved.kwargs,
        final_output=resolved.final_output,
        output_artifacts=resolved.output_artifacts,
        egress_allowlist=resolved.egress_allowlist,
        notices=misspelt(contract),
        source=source,
    )
