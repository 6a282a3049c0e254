"""Stimuli with folders to take their files from, and sandboxes to set them up in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.protocol import Sandbox
from sandboxes.types import StreamName
from valkyrie.benchmarks.eval_spec import workspace
from valkyrie.benchmarks.eval_spec.source import EvalOptions
from valkyrie.specs.model import (
    EnvironmentSpec,
    FileEntry,
    GraderSpec,
    SkillRef,
    Stimulus,
    WorkspaceRepository,
)

SKILL = "---\nname: {name}\ndescription: Does things.\n---\nDo things.\n"


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """A folder with these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write_skill(folder: Path, name: str) -> Path:
    return write(folder, {"SKILL.md": SKILL.format(name=name), "scripts/run.sh": "echo run\n"})


@dataclass
class StimulusAttempt:
    """One stimulus, its options, and the attempt's folder."""

    base: Path
    start: Path
    options: EvalOptions = field(default_factory=EvalOptions)
    said: list[str] = field(default_factory=list)
    stimulus: Stimulus = field(default_factory=lambda: Stimulus("one", ("do it",)))

    def log(self, _stream: StreamName, text: str) -> None:
        self.said.append(text)

    def set_up_with(
        self,
        files: Mapping[str, str] | None = None,
        *,
        skills: tuple[str, ...] | None = None,
        commands: tuple[str, ...] = (),
        git: WorkspaceRepository | None = None,
        timeout: float = 60.0,
        grading: Mapping[str, str] | None = None,
        programs: int = 1,
    ) -> Stimulus:
        """The stimulus with this environment; files and grading files are src → dest."""
        environment = EnvironmentSpec(
            files=self._entries(files),
            skills=None if skills is None else tuple(SkillRef(path, self.base) for path in skills),
            commands=commands,
            command_timeout=timeout,
            git=git,
        )
        graders = (GraderSpec("run-command", {"command": "true"}),) * programs
        self.stimulus = Stimulus(
            "one", ("do it",), graders, environment=environment, grading_files=self._entries(grading)
        )
        return self.stimulus

    def _entries(self, files: Mapping[str, str] | None) -> tuple[FileEntry, ...]:
        return tuple(FileEntry(src, dest, self.base) for src, dest in (files or {}).items())

    async def prepare(self, sandbox: Sandbox, *, needs_diff: bool = True) -> None:
        await workspace.prepare(
            self.stimulus, self.options, sandbox, self.start, self.log, needs_diff=needs_diff
        )

    async def final(self, sandbox: Sandbox) -> Path:
        return await workspace.snapshot(self.stimulus, self.options, sandbox, self.start, self.log)

    async def diff(self, sandbox: Sandbox) -> str:
        return await workspace.diff(self.start, await self.final(sandbox))

    def problems(self) -> list[str]:
        return [finding.message for finding in workspace.problems(self.stimulus, self.options)]
