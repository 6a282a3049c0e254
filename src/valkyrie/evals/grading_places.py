"""Where the workspace and the diff of a trial are that is graded again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import SandboxError
from valkyrie.benchmarks.eval_spec.final_state import folder_name
from valkyrie.benchmarks.eval_spec.options import WORKSPACE
from valkyrie.benchmarks.eval_spec.turn_patches import read_turn_patches
from valkyrie.benchmarks.eval_spec.workbench import ROOM, SandboxWorkbench
from valkyrie.errors import UsageError
from valkyrie.evals.ingested_trials import beside
from valkyrie.evals.results import TrialResult
from valkyrie.grade.protocol import Program, Ran, Workbench
from valkyrie.specs.model import Stimulus

MOST_DIFF = 64 * 1024 * 1024
PATCH = "workspace.patch"


@dataclass(frozen=True, slots=True)
class Places:
    """What the command line says about where things are."""

    workspace: Path | None = None
    """A workspace, or a folder of `eval --workspace` with one for each stimulus."""
    diff_file: Path | None = None
    artifact_dir: Path | None = None
    """A folder of results: what records call `artifactDir` and `patch` is in it; or one trial's own."""

    def check(self) -> None:
        """Raises UsageError for what is not there."""
        for flag, path in (("--workspace", self.workspace), ("--artifact-dir", self.artifact_dir)):
            if path is not None and not path.is_dir():
                raise UsageError(f"{flag} {path} is not a folder.")
        if self.diff_file is not None and not self.diff_file.is_file():
            raise UsageError(f"--diff-file {self.diff_file} is not a file.")

    def workspace_of(self, trial: TrialResult, variants: Collection[str]) -> Path | None:
        """The final state of this trial's workspace."""
        if self.workspace is not None:
            return _kept_below(self.workspace, trial, variants) or self.workspace
        if self.artifact_dir is None:
            return None
        named = beside(trial.artifacts, self.artifact_dir / "results.jsonl")
        return named if named and named.is_dir() else self.artifact_dir

    def diff_of(self, trial: TrialResult) -> str | None:
        """What the agent changed, where that was kept."""
        found = self.diff_file or self._patch_of(trial)
        if found is None or not found.is_file():
            return None
        with found.open("rb") as file:
            return file.read(MOST_DIFF).decode("utf-8", "replace")

    def turn_diffs_of(self, trial: TrialResult) -> Mapping[int, str]:
        """What the agent had changed after turns but the last, where that was kept."""
        found = self._patch_of(trial)
        return {} if found is None else read_turn_patches(found.parent)

    def _patch_of(self, trial: TrialResult) -> Path | None:
        if self.artifact_dir is None:
            return None
        return beside(trial.patch, self.artifact_dir / "results.jsonl") or self.artifact_dir / PATCH


def _kept_below(root: Path, trial: TrialResult, variants: Collection[str]) -> Path | None:
    """Where `eval --workspace` put this trial; only in a folder that holds nothing but its variants."""
    if not {entry.name for entry in root.iterdir()} <= set(variants):
        return None
    own = root / trial.variant / folder_name(trial.stimulus)
    return next((place for place in (own / f"trial-{trial.index}", own) if place.is_dir()), None)


@asynccontextmanager
async def opened_bench(workspace: Path, stimulus: Stimulus, scratch: Path) -> AsyncIterator[Workbench]:
    """A sandbox of this machine with a copy of the workspace in it, made when the first program runs."""
    bench = _LateBench(workspace, stimulus, scratch)
    try:
        yield bench
    finally:
        await bench.close()


class _LateBench:
    def __init__(self, workspace: Path, stimulus: Stimulus, scratch: Path) -> None:
        from sandboxes.registry import open_provider

        self._provider = open_provider("local", scratch / "sandboxes")
        self._workspace = workspace
        self._stimulus = stimulus
        self._scratch = scratch
        self._bench: SandboxWorkbench | None = None

    async def run(self, program: Program) -> Ran:
        from valkyrie.errors import GraderError

        try:
            if self._bench is None:
                self._bench = await self._made()
            return await self._bench.run(program)
        except SandboxError as error:
            raise GraderError(f"no sandbox could be made for it: {error}") from error

    async def _made(self) -> SandboxWorkbench:
        from sandboxes.types import SandboxCreateRequest

        sandbox = await self._provider.create_sandbox(SandboxCreateRequest(separate_folders=(ROOM,)))
        await sandbox.upload_folder(self._workspace, WORKSPACE)
        return SandboxWorkbench(sandbox, self._stimulus, self._scratch / "start")

    async def close(self) -> None:
        """End the sandbox and everything in it."""
        await self._provider.close()
