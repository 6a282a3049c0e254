"""An agent for sandboxes: its contract, its bundle and its environment, checked before anything starts."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark_runner.agent_bundle.bundle import PLACE, list_folder, pack, unpack
from benchmark_runner.agent_bundle.contract import AgentContract as AgentContract
from benchmark_runner.agent_bundle.contract import load_contract as load_contract
from benchmark_runner.agent_bundle.placeholders import placeholder_names, strangers, substitute
from benchmark_runner.agent_bundle.resolution import RUNTIME_PLACEHOLDERS, ResolvedContract, as_text, resolve
from benchmark_runner.archive import open_archive
from benchmark_runner.console import redactor
from benchmark_runner.errors import BundleError, ContractValidationError
from benchmark_runner.sandbox.backend import SandboxAgent, SandboxTaskSpec
from sandboxes.masker import Masker
from sandboxes.types import host_folder_of

if TYPE_CHECKING:
    from sandboxes.protocol import SandboxProvider
    from sandboxes.types import SandboxSource


@dataclass(frozen=True, slots=True)
class Bundle:
    """An agent's files, checked."""

    root: str
    content: bytes = field(repr=False)
    """The zip."""
    sha256: str

    @property
    def place(self) -> str:
        """Return where it stands in a sandbox."""
        return f"{PLACE}/{self.root}"

    def unpack(self, folder: Path) -> Path:
        """Write the files below `folder`; returns the bundle's own folder in it."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".bundle-") as archive:
            archive.write(self.content)
            archive.flush()
            unpack(Path(archive.name), folder / self.root)
        return folder / self.root


def pack_bundle(folder: Path, root: str) -> Bundle:
    """Pack a folder; the same files give the same digest. BundleError, a ValueError, if it cannot be."""
    if not any(True for _ in list_folder(folder)):
        raise BundleError(f"{folder} has no files to send.")
    with tempfile.TemporaryDirectory(prefix="agent-bundle-") as room:
        archive = Path(room) / "bundle.zip"
        pack(folder, root, archive, compressed=False)
        content = archive.read_bytes()
    return Bundle(root, content, hashlib.sha256(content).hexdigest())


def load_bundle(path: Path, sha256: str | None = None) -> Bundle:
    """Read a bundle from a zip, and check it. BundleError if it is not the one whose digest is given."""
    with open_archive(path) as opened:
        opened.extract(None, lambda _name, _executable, _sha256: None)
        root = opened.top
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise BundleError(
            f"{path} is not the bundle that was pinned: sha256 {found[:12]}…, not {sha256[:12]}…. "
            "Get the right file, or make the manifest anew."
        )
    return Bundle(root, content, found)


# An agent's contract as the runner uses it: every placeholder of its command must be filled.


def format_run_cmd(run_cmd: str, values: Mapping[str, Any]) -> str:
    """Fill the command's placeholders, but for those each task fills.

    ContractValidationError, a ValueError, when another one is left outside comments: the agent would be given
    a word in braces.
    """
    unknown = strangers(run_cmd, {*values, *RUNTIME_PLACEHOLDERS})
    if left := placeholder_names(run_cmd, unknown):
        words = ", ".join(f"{{{name}}}" for name in unknown if name in left)
        raise ContractValidationError(
            f"run_cmd: nothing fills {words}; declare it under `defaults` or `kwargs`. "
            "A brace that is the shell's has a space after it."
        )
    filled = {name: as_text(value) for name, value in values.items() if name not in RUNTIME_PLACEHOLDERS}
    return substitute(run_cmd, filled)


def resolve_all(contract: AgentContract, model: str, parameters: Mapping[str, str]) -> ResolvedContract:
    """Fill in the run's values as the platform does, and refuse a command with a word in braces left."""
    resolved = resolve(contract, model, parameters)
    format_run_cmd(resolved.run_template, resolved.values)
    return resolved


# Who answers, and where: checked before anything starts.

PASSED_ON = ("CUSTOM_ENDPOINT", "CUSTOM_API_KEY")
"""Variables every agent is given: where the model is."""
DEFAULT_TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class Setup:
    """Who answers, and where."""

    contract: AgentContract
    bundle: Bundle | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Values of the contract's own placeholders."""
    provider: SandboxProvider | str = "local"
    network: str = "public"
    source_override: SandboxSource | None = None
    """In place of what the tasks say."""
    specs: Mapping[str, SandboxTaskSpec] = field(default_factory=dict)
    """Of tasks; the service is asked for the others."""
    timeout: float = DEFAULT_TIMEOUT_S
    """Seconds of an agent, where its task says nothing; zero or less: no limit."""
    benchmark: str = "sandbox"
    payload_schema: str | None = None
    fingerprint: str | None = None
    """Of the dataset, where it is pinned."""

    def settings(self) -> dict[str, Any]:
        """Return what must not be mixed in one run."""
        contract = self.contract
        said = [contract.install_cmd, contract.run_cmd, contract.final_output]
        return {
            "agent": contract.name,
            "agent_commands": hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16],
            "agent_bundle": self.bundle.sha256 if self.bundle else None,
            "dataset_fingerprint": self.fingerprint,
            "network": self.network,
            "options": dict(self.parameters),
            "provider": self.provider if isinstance(self.provider, str) else type(self.provider).__name__,
            "source": self.source_override.model_dump() if self.source_override else None,
            "timeout": self.timeout,
        }


def load_agent(contract: Path, agent_bundle: Path | None = None) -> tuple[AgentContract, Bundle | None]:
    """Read a contract from its file or its agent's folder; a folder is also the bundle, if none is named."""
    loaded = load_contract(contract)
    source = agent_bundle or (contract if contract.is_dir() else None)
    if source is None:
        return loaded, None
    return loaded, pack_bundle(source, loaded.name) if source.is_dir() else load_bundle(source)


def checked_agent(setup: Setup, model: str) -> SandboxAgent:
    """Return the agent with its command and its environment; ValueError for all that is known to fail."""
    contract = setup.contract
    if contract.final_output is None:
        raise ValueError(f"contract {contract.name} has no final_output, so there is no answer to take.")
    for task_id, spec in setup.specs.items():
        refuse_source(setup, spec, task_id)
    resolved = resolve_all(contract, model, setup.parameters)
    return SandboxAgent(resolved, setup.bundle, env=agent_env(contract))


def agent_env(contract: AgentContract) -> dict[str, str]:
    """Return what an agent is given of this environment: what its contract declares, and where the model
    is."""
    found, missing = {}, []
    for name, reference in contract.environment.items():
        value = os.environ.get(name) or os.environ.get(reference)
        if value:
            found[name] = value
        else:
            missing.append(name)
    if missing:
        raise ValueError(f"contract {contract.name} needs {', '.join(missing)}: set it in the environment.")
    return {**{name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}, **found}


def refuse_source(setup: Setup, spec: SandboxTaskSpec, task_id: str) -> None:
    """ValueError for a root that a task may not ask for; what the user gave in its place is the user's."""
    refuse_snapshot(setup.source_override or spec.source, task_id)
    if setup.source_override is None:
        refuse_host_folder(spec.source, task_id)


def refuse_snapshot(source: SandboxSource | None, task_id: str) -> None:
    """ValueError for a provider's own snapshot: nobody else has it."""
    kind = source.type if source is not None else None
    if kind in ("snapshot", "targeted_snapshot") or str(getattr(source, "image", "")).startswith("snapshot:"):
        raise ValueError(
            f"task {task_id} runs in a snapshot of a provider, which only its owner can use; have the "
            "service name an image, or give one with --image."
        )


def refuse_host_folder(source: SandboxSource | None, task_id: str) -> None:
    """ValueError for a task that has a folder of this machine as its root, or built into its image."""
    if (folder := host_folder_of(source)) is not None:
        raise ValueError(
            f"task {task_id} asks for a sandbox made from the folder {folder[:200]!r} of this machine, which "
            "is not a service's to choose; have the service name an image, or give one with --image."
        )


def redacting(env: Mapping[str, str]) -> Callable[[str], str]:
    """Takes out what an agent was given, and every secret the environment holds besides."""
    given = {f"secret {name}": value for name, value in env.items() if name != "CUSTOM_ENDPOINT"}
    declared, others = Masker.from_settings(given), redactor()
    return lambda text: others(declared.text(text))


def refuse_unable(provider: SandboxProvider, setup: Setup) -> None:
    """ValueError for what a provider cannot give on this machine; the first look may take a moment."""
    able = provider.capabilities()
    if able.problem:
        raise ValueError(f"provider {able.provider} cannot make sandboxes here: {able.problem}")
    if not isinstance(setup.provider, str):
        return  # a provider from elsewhere may say nothing of itself
    if setup.network not in able.networks:
        ways = "; ".join(way for what, way in able.missing if "network" in what)
        raise ValueError(f"provider {able.provider} has no network {setup.network!r} here. {ways}".strip())
    if setup.contract.egress_allowlist and "allowlist" not in able.networks:
        raise ValueError(
            f"provider {able.provider} cannot keep an agent to its egress_allowlist; use daytona."
        )
    sources = [setup.source_override or spec.source for spec in setup.specs.values()]
    if not able.images and any(source is not None and source.type == "image" for source in sources):
        raise ValueError(
            f"provider {able.provider} cannot run images, which these tasks need: use --provider docker, or "
            "--host-image to run on this machine's own system files."
        )
