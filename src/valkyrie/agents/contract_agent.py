"""An agent that comes as a bundle with a contract."""

from __future__ import annotations

import asyncio
import glob
import hashlib
import json
import shutil
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from benchmark_runner.agent_bundle.bundle import (
    PLACE,
    copy_archive,
    digest_archive,
    digest_folder,
    digest_unpacked,
    pack,
    read_contract,
    unpack,
)
from benchmark_runner.agent_bundle.contract import load_contract
from benchmark_runner.agent_bundle.resolution import ResolvedContract, misspelt, resolve
from benchmark_runner.archive import file_sha256
from sandboxes.folder_contents import FolderEntry, walk_folder
from sandboxes.masker import Masker
from sandboxes.types import TIMEOUT_EXIT_CODE, Command, OutputSink, StreamName
from valkyrie.agents.command import bring_out, run_in_reach
from valkyrie.agents.protocol import (
    AgentCapabilities,
    AgentExit,
    AgentOptions,
    AgentTrial,
    LayerSpec,
    OutputArtifact,
    PreparedAgent,
    exit_of,
)
from valkyrie.domain import Json, TaskSpec
from valkyrie.errors import (
    AgentInstallError,
    BundleError,
    ContractValidationError,
    SandboxFailedError,
    UsageError,
)
from valkyrie.trajectory.transcript import TRANSCRIPT, mend_cut

HEAD_LINES, TAIL_LINES = 5, 8
OUTPUT = "output.txt"
"""What the agent printed, beside its trajectory."""
MOST_OUTPUT = 4 * 1024 * 1024
STORIES = ("trajectory.json", TRANSCRIPT)
"""Output artifacts of these names are the agent's own account of what it did: ATIF, or events."""
_MAKE_FOLDER = '[ -d "$1" ] || { mkdir -p -- "$1" && { [ -z "$2" ] || chown -- "$2" "$1"; }; }'


class BundleCache:
    """Unpacked bundles by digest, shared by all trials and all processes of a data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._seen: dict[Path, tuple[FolderEntry, ...]] = {}
        """What folders looked like whose content was that of their archive."""

    def unpacked(self, archive: Path, digest: str) -> Path:
        """The bundle's folder, with just what its archive holds: unpacked anew when it is something else."""
        folder = self.folder / digest
        with self._lock:
            if folder.is_dir() and not self._is_intact(folder, digest):
                shutil.rmtree(folder)
            if not folder.is_dir():
                try:
                    unpack(archive, folder, expect=digest)
                except BundleError:
                    # Another process may have been faster; a rename onto its folder fails.
                    if not folder.is_dir():
                        raise
        return folder

    def _is_intact(self, folder: Path, digest: str) -> bool:
        entries = tuple(walk_folder(str(folder), ".", frozenset()))
        if self._seen.get(folder) != entries:
            if digest_unpacked(folder, entries) != digest:
                return False
            self._seen[folder] = entries
        return True


class ContractAgent:
    """Installs its bundle as `/bundle/<name>` and runs the contract's commands."""

    capabilities = AgentCapabilities()
    layer: LayerSpec | None = None
    needs_solution = False

    def __init__(self, frozen: Json, archive: Path, cache: BundleCache) -> None:
        self.frozen = frozen
        self._archive = archive
        self._cache = cache
        self.contract = ResolvedContract.from_json(frozen["contract"])

    @property
    def name(self) -> str:
        return str(self.frozen["name"])

    @property
    def digest(self) -> str:
        return str(self.frozen["digest"])

    @property
    def secrets(self) -> Mapping[str, str]:
        return self.contract.secrets

    @property
    def final_output(self) -> str | None:
        return self.contract.final_output

    @property
    def output_artifacts(self) -> Sequence[OutputArtifact]:
        return self.contract.output_artifacts

    @property
    def bundle_folder(self) -> str:
        """Where the bundle stands in the sandbox."""
        return f"{PLACE}/{self.contract.name}"

    async def install(self, trial: AgentTrial) -> None:
        """Upload the bundle and run `install_cmd` in it, if there is one, as root."""
        folder = await asyncio.to_thread(
            self._cache.unpacked, self._archive, str(self.frozen["bundle_digest"])
        )
        await trial.sandbox.upload_folder(folder, self.bundle_folder)
        if self.contract.install_cmd is None:
            return
        timeout = trial.task.timeouts.install
        tail = OutputEnds(TAIL_LINES)
        with Masker(trial.secrets.values()).sink(tail.after(trial.log)) as log:
            command = Command.bash(
                self.contract.install_cmd, cwd=self.bundle_folder, env=_environment(trial), timeout=timeout
            )
            code = await trial.sandbox.run(command, log)
        if code == TIMEOUT_EXIT_CODE and timeout is not None:
            raise AgentInstallError(f"install_cmd took longer than {timeout:g} s.{tail}")
        if code != 0:
            raise AgentInstallError(f"install_cmd failed with exit code {code}.{tail}")

    async def run(self, trial: AgentTrial) -> AgentExit:
        """Run `run_cmd` in the task's folder as the task's user."""
        task, sandbox = trial.task, trial.sandbox
        script = self.contract.command(task.problem_path, task.id)
        with PrintedOutput(trial.kept) as printed:
            with Masker(trial.secrets.values()).sink(printed.after(trial.log)) as log:
                make = Command(argv=("/bin/sh", "-c", _MAKE_FOLDER, "sh", task.cwd, task.user or ""))
                if (code := await sandbox.run(make, log)) != 0:
                    raise SandboxFailedError(
                        f"the task's folder {task.cwd} could not be made (exit code {code})."
                    )
                command = Command.bash(
                    script, cwd=task.cwd, env=_environment(trial), user=task.user, timeout=task.timeouts.agent
                )
                ended = exit_of(await run_in_reach(sandbox, command, log, self._egress_rules(task)))
        await self._bring_story(trial)
        return ended

    async def _bring_story(self, trial: AgentTrial) -> None:
        """An output artifact of a name that tells what the agent did is kept as just that."""
        if trial.kept is None:
            return
        for artifact in self.output_artifacts:
            if artifact.path in STORIES:
                # The id stands for itself, also where it looks like a pattern.
                pattern = artifact.source.replace("{task_id}", glob.escape(trial.task.id))
                for source in (await trial.sandbox.list_files(pattern))[:1]:
                    target, most = trial.kept / artifact.path, trial.trajectory_limit
                    brought = await bring_out(trial.sandbox, source, target, most)
                    if brought and target.stat().st_size >= most:
                        await asyncio.to_thread(mend_cut, target, most)

    def _egress_rules(self, task: TaskSpec) -> list[str] | None:
        """Return what may be reached while the agent runs: what contract and task both allow; None is
        everything."""
        ours = list(self.contract.egress_allowlist)
        theirs = list(task.metadata.get("allowed_hosts", [])) if task.network == "allowlist" else []
        if ours and theirs:
            return [rule for rule in ours if rule in theirs]
        return ours or theirs or None


def _environment(trial: AgentTrial) -> dict[str, str]:
    """PYTHONSAFEPATH keeps files of the task from being imported by the agent's own Python."""
    common = {"TERM": "dumb", "LANG": "C.UTF-8"}
    return {**common, **trial.task.env, **trial.secrets, "PYTHONSAFEPATH": "1"}


class PrintedOutput:
    """Stdout of `run_cmd` in a file, up to a limit: what the agent said, where nothing else tells it."""

    def __init__(self, kept: Path | None) -> None:
        self._path = kept / OUTPUT if kept else None
        self._room = MOST_OUTPUT
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file:
            self._file.close()

    def after(self, sink: OutputSink) -> OutputSink:
        """A sink that hands on to `sink` and keeps stdout; an agent that prints nothing leaves no file."""

        def keep(stream: StreamName, text: str) -> None:
            sink(stream, text)
            if stream == "stdout" and self._path and self._room > 0:
                if self._file is None:
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    self._file = self._path.open("wb")
                data = text.encode("utf-8", "replace")[: self._room]
                self._room -= len(data)
                self._file.write(data)

        return keep


class OutputEnds:
    """The first and the last lines of what passes through: what went wrong is often said first."""

    def __init__(self, lines: int) -> None:
        self._first: list[str] = []
        self._lines: deque[str] = deque(maxlen=lines)
        self._left_out = 0
        self._open: dict[StreamName, str] = {}

    def after(self, sink: OutputSink) -> OutputSink:
        """A sink that hands on to `sink` and remembers."""

        def keep(stream: StreamName, text: str) -> None:
            sink(stream, text)
            *whole, rest = (self._open.get(stream, "") + text).split("\n")
            for line in whole:
                self._keep(line)
            # A line without end must not grow in memory; its last part is what matters.
            self._open[stream] = rest[-2000:]

        return keep

    def __str__(self) -> str:
        """A colon's worth of context for an error message, or nothing."""
        last = [line.rstrip()[-500:] for line in (*self._lines, *self._open.values()) if line.strip()]
        left_out = self._left_out + max(0, len(last) - TAIL_LINES)
        between = [f"… {left_out} lines more …"] if left_out else []
        lines = [*self._first, *between, *last[-TAIL_LINES:]]
        return "".join(f"\n  {line}" for line in lines)

    def _keep(self, line: str) -> None:
        if not line.strip():
            return
        if len(self._first) < HEAD_LINES:
            self._first.append(line.rstrip()[:500])
            return
        self._left_out += len(self._lines) == self._lines.maxlen
        self._lines.append(line)


def prepare_bundle(source: Path, name: str | None, options: AgentOptions) -> PreparedAgent:
    """Return the agent in a folder or an archive, its contract filled; `name` is what it was pushed as."""
    if source.suffix == ".zip" and source.is_file():
        file, text = read_contract(source)
        contract = load_contract(text, where=f"{source}/{file}")
        bundle_digest = digest_archive(source)
    elif source.is_dir():
        contract, bundle_digest = load_contract(source), digest_folder(source)
    else:
        raise UsageError(
            f"{source} is no folder. An agent is a folder with a contract.yaml (`valk agent init NAME`)."
        )
    secrets = {**contract.environment, **options.secrets}
    try:
        resolved = replace(resolve(contract, options.model, options.kwargs), secrets=secrets)
    except ContractValidationError as error:
        error.secrets = secrets
        raise
    digest = contract_digest(bundle_digest, resolved)
    frozen = {
        "kind": "bundle",
        "name": name or contract.name,
        "digest": digest,
        "bundle_digest": bundle_digest,
        "contract": resolved.to_json(),
    }
    return PreparedAgent(
        name=name or contract.name,
        digest=digest,
        frozen=frozen,
        secrets=resolved.secrets,
        model=resolved.model,
        kwargs=resolved.kwargs,
        final_output=resolved.final_output,
        output_artifacts=resolved.output_artifacts,
        egress_allowlist=resolved.egress_allowlist,
        notices=misspelt(contract),
        source=source.resolve(),
    )


def freeze_bundle(frozen: Json, source: Path, archive: Path) -> Json:
    """Copy a bundle to `archive`; return what `open_bundle` needs."""
    if source.is_dir():
        digest = pack(source, frozen["contract"]["name"], archive)
    else:
        copy_archive(source, archive)
        digest = digest_archive(archive)
    if digest != frozen["bundle_digest"]:
        archive.unlink()
        raise BundleError(f"{source} changed while it was being read; start again.")
    return frozen | {"archive": archive.name, "archive_sha256": file_sha256(archive)}


def open_bundle(frozen: Json, archive: Path, cache: Path) -> ContractAgent:
    """Return the agent that was frozen into `archive`."""
    if not archive.is_file():
        raise BundleError(f"the run's copy of its agent is missing: {archive}.")
    if file_sha256(archive) != frozen["archive_sha256"]:
        raise BundleError(f"{archive} is not the agent that was frozen into the run; it was changed since.")
    return ContractAgent(frozen, archive, BundleCache(cache))


def contract_digest(bundle_digest: str, contract: ResolvedContract) -> str:
    """Return what is tested: bundle and filled-in contract. Which key pays for it (secrets) is no part of
    it."""
    plain = {key: value for key, value in contract.to_json().items() if key not in ("secrets", "run_cmd")}
    text = json.dumps([bundle_digest, plain], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
