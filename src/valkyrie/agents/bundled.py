"""An agent that comes as a bundle with a contract."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandboxes.types import TIMEOUT_EXIT_CODE, Command, OutputSink, StreamName
from valkyrie.agents.catalog import exit_of
from valkyrie.agents.protocol import AgentExit, AgentTrial, OutputArtifact
from valkyrie.agents.resolve import ResolvedContract
from valkyrie.agents.unpack import unpack
from valkyrie.errors import AgentInstallError, BundleError, SandboxFailedError
from valkyrie.nouns import Json, TaskSpec
from valkyrie.secrets.mask import Masker

TAIL_LINES = 10
_MAKE_FOLDER = '[ -d "$1" ] || { mkdir -p -- "$1" && { [ -z "$2" ] || chown -- "$2" "$1"; }; }'


class BundleCache:
    """Unpacked bundles by digest, shared by all trials and all processes of a data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()

    def unpacked(self, archive: Path, digest: str) -> Path:
        """The bundle's folder, unpacked and checked the first time it is asked for."""
        folder = self.folder / digest
        with self._lock:
            if not folder.is_dir():
                try:
                    unpack(archive, folder, expect=digest)
                except BundleError:
                    # Another process may have been faster; a rename onto its folder fails.
                    if not folder.is_dir():
                        raise
        return folder


class ContractAgent:
    """Installs its bundle as `/bundle/<name>` and runs the contract's commands."""

    needs_solution = False

    def __init__(self, frozen: Json, archive: Path, cache: BundleCache) -> None:
        self._frozen = frozen
        self._archive = archive
        self._cache = cache
        self.contract = ResolvedContract.from_json(frozen["contract"])

    @property
    def name(self) -> str:
        return str(self._frozen["name"])

    @property
    def frozen(self) -> Json:
        return self._frozen

    @property
    def digest(self) -> str:
        return str(self._frozen["digest"])

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
        return f"/bundle/{self.contract.name}"

    async def install(self, trial: AgentTrial) -> None:
        """Upload the bundle and run `install_cmd` in it, as root."""
        folder = await asyncio.to_thread(
            self._cache.unpacked, self._archive, str(self._frozen["bundle_digest"])
        )
        await trial.sandbox.upload_folder(folder, self.bundle_folder)
        timeout = trial.task.timeouts.install
        tail = Tail(TAIL_LINES)
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
        with Masker(trial.secrets.values()).sink(trial.log) as log:
            make = Command(argv=("/bin/sh", "-c", _MAKE_FOLDER, "sh", task.cwd, task.user or ""))
            if (code := await sandbox.run(make, log)) != 0:
                raise SandboxFailedError(
                    f"the task's folder {task.cwd} could not be made (exit code {code})."
                )
            command = Command.bash(
                script, cwd=task.cwd, env=_environment(trial), user=task.user, timeout=task.timeouts.agent
            )
            rules = self._egress_rules(task)
            if rules is None:
                return exit_of(await sandbox.run(command, log))
            await sandbox.modify_egress_rules(rules)
            try:
                return exit_of(await sandbox.run(command, log))
            finally:
                await sandbox.clear_egress_rules()

    def _egress_rules(self, task: TaskSpec) -> list[str] | None:
        """What may be reached while the agent runs: what contract and task both allow; None is everything."""
        ours = list(self.contract.egress_allowlist)
        theirs = list(task.metadata.get("allowed_hosts", [])) if task.network == "allowlist" else []
        if ours and theirs:
            return [rule for rule in ours if rule in theirs]
        return ours or theirs or None


def _environment(trial: AgentTrial) -> dict[str, str]:
    """PYTHONSAFEPATH keeps files of the task from being imported by the agent's own Python."""
    common = {"TERM": "dumb", "LANG": "C.UTF-8"}
    return {**common, **trial.task.env, **trial.secrets, "PYTHONSAFEPATH": "1"}


class Tail:
    """The last lines of what passes through."""

    def __init__(self, lines: int) -> None:
        self._lines: deque[str] = deque(maxlen=lines)
        self._open: dict[StreamName, str] = {}

    def after(self, sink: OutputSink) -> OutputSink:
        """A sink that hands on to `sink` and remembers."""

        def keep(stream: StreamName, text: str) -> None:
            sink(stream, text)
            *whole, rest = (self._open.get(stream, "") + text).split("\n")
            self._lines.extend(whole)
            # A line without end must not grow in memory; its last part is what matters.
            self._open[stream] = rest[-2000:]

        return keep

    def __str__(self) -> str:
        """A colon's worth of context for an error message, or nothing."""
        lines = [line.rstrip()[-500:] for line in (*self._lines, *self._open.values()) if line.strip()]
        return "".join(f"\n  {line}" for line in lines[-TAIL_LINES:])


def contract_digest(bundle_digest: str, contract: ResolvedContract) -> str:
    """What is tested: bundle and filled-in contract. Which key pays for it (secrets) is no part of it."""
    plain = {key: value for key, value in contract.to_json().items() if key not in ("secrets", "run_cmd")}
    text = json.dumps([bundle_digest, plain], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
