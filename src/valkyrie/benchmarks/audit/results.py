"""What `benchmark check` found: of each task, and of the benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from valkyrie.benchmarks.audit.weaknesses import Finding, Weakness
from valkyrie.nouns import Json, VerifyMode

OWN_CHEAT = "cheat/solve.sh"
"""What the task's own cheat is called beside the ways of the cheating agent."""


@dataclass(frozen=True, slots=True)
class TaskAudit:
    """What was found of one task."""

    task_id: str
    digest: str = ""
    oracle: Sequence[float | None] = ()
    """The score of each run of its own solution; None is a run without a verdict."""
    nop: float | None = None
    mode: VerifyMode | None = None
    """Where its tests must run for its own solution to pass; None where that was not found."""
    keep_processes: bool = False
    declared: bool = False
    """The task itself says where its tests run."""
    cheats: Mapping[str, float | None] = field(default_factory=dict)
    """The score of each way to cheat that was tried."""
    findings: Sequence[Finding] = ()
    blocked: Sequence[str] = ()
    """What the cheating agents tried and the platform stopped by itself."""
    problems: Sequence[str] = ()
    """Why it cannot be relied on: it is broken, or its own solution does not pass each time."""
    notes: Sequence[str] = ()

    @property
    def open_to(self) -> list[Weakness]:
        """The classes of cheating it is open to, in their order."""
        found = {finding.weakness for finding in self.findings}
        return [weakness for weakness in Weakness if weakness in found]

    @property
    def clean(self) -> bool:
        return not self.findings and not self.problems

    @property
    def mode_label(self) -> str:
        """Where its tests run, in a word or two."""
        if self.mode is None:
            return "not found"
        label = f"{self.mode} + processes" if self.keep_processes else str(self.mode)
        return f"{label} (declared)" if self.declared else label

    def to_json(self) -> Json:
        """Everything, for machines."""
        return {
            "task_id": self.task_id,
            "digest": self.digest,
            "clean": self.clean,
            "oracle": list(self.oracle),
            "nop": self.nop,
            "mode": None if self.mode is None else str(self.mode),
            "keep_processes": self.keep_processes,
            "declared": self.declared,
            "cheats": dict(self.cheats),
            "open_to": [str(weakness) for weakness in self.open_to],
            "findings": [
                {"class": str(one.weakness), "seen": one.seen, "fix": one.fix} for one in self.findings
            ],
            "blocked": list(self.blocked),
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class BenchmarkAudit:
    """What was found of all tasks that were looked at."""

    benchmark: str
    provider: str
    tasks: Sequence[TaskAudit]
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return not self.interrupted and all(task.clean for task in self.tasks)

    @property
    def n_clean(self) -> int:
        return sum(1 for task in self.tasks if task.clean)

    def to_json(self) -> Json:
        """Everything, for machines."""
        open_to = {weakness for task in self.tasks for weakness in task.open_to}
        return {
            "benchmark": self.benchmark,
            "provider": self.provider,
            "clean": self.clean,
            "n_tasks": len(self.tasks),
            "n_clean": self.n_clean,
            "open_to": [str(weakness) for weakness in Weakness if weakness in open_to],
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 1),
            "tasks": [task.to_json() for task in self.tasks],
        }
