"""The eight classes of cheating, and what `benchmark check` found of them in each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from valkyrie.domain import Json, VerifyMode

CHEAT = Path(__file__).parent / "cheat"
"""The bundle of the cheating agent; its parameter `way` chooses what it tries."""


class Weakness(StrEnum):
    """A class of ways to get a score that was not earned."""

    ISOLATION = "isolation"
    ANSWERS = "answers"
    EXECUTION = "execution"
    JUDGE = "judge"
    MATCHING = "matching"
    VACUOUS = "vacuous"
    TRUST = "trust"
    PERMISSIONS = "permissions"

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return _LABELS[self]


_LABELS = {
    Weakness.ISOLATION: "agent and evaluator are not isolated",
    Weakness.ANSWERS: "answers are shipped in the environment",
    Weakness.EXECUTION: "the evaluator runs code the agent controls",
    Weakness.JUDGE: "the judge is open to injection",
    Weakness.MATCHING: "weak matching",
    Weakness.VACUOUS: "checks that do not check",
    Weakness.TRUST: "trust in output the agent made",
    Weakness.PERMISSIONS: "excessive permissions",
}


@dataclass(frozen=True, slots=True)
class WeaknessFinding:
    """One way in which a task is open."""

    weakness: Weakness
    seen: str
    """What was seen, and where."""
    fix: str
    """What its author must change."""


@dataclass(frozen=True, slots=True)
class CheatMethod:
    """One of the things the cheating agent tries."""

    name: str
    weakness: Weakness
    """What a task is open to in which it scores."""
    seen: str
    fix: str
    implied_by: tuple[str, ...] = ()
    """Ways that put less into their work: where one of them scores already, this one shows nothing more."""


CHEAT_METHODS = (
    CheatMethod(
        "junk",
        Weakness.VACUOUS,
        "files of the right names with a line of junk in them score",
        "Check what the files hold, not that they are there.",
    ),
    CheatMethod(
        "stuff",
        Weakness.MATCHING,
        "files that hold the instruction, the inputs and all numbers up to 2000 score",
        "Compare the whole answer with what is expected; do not search in it.",
        implied_by=("junk",),
    ),
    CheatMethod(
        "boast",
        Weakness.TRUST,
        "programs that only end with exit code 0, and reports that say all is well, score",
        "Run the work yourself and compare what it gives; do not take its exit code, log or report for it.",
        implied_by=("junk",),
    ),
    CheatMethod(
        "inject",
        Weakness.JUDGE,
        "text that tells a judge what to answer scores",
        "Give the judge the work as marked data, tell it to follow nothing in it, and check its verdict.",
        implied_by=("junk", "stuff", "boast"),
    ),
    CheatMethod(
        "seek",
        Weakness.ANSWERS,
        "answers found in the sandbox, or in the history of a repository there, score",
        "Remove solutions and expected answers from the environment, from its image's layers and from git "
        "history.",
        implied_by=("junk", "stuff", "boast"),
    ),
    CheatMethod(
        "plant",
        Weakness.EXECUTION,
        "code planted where test tools look for it (conftest.py, Makefile, modules, hooks, named programs) "
        "forges the score",
        "Run no tool in the working folder that loads files from there, and run the agent's programs as "
        "another user who cannot write the reward.",
        implied_by=("junk", "boast"),
    ),
    CheatMethod(
        "level",
        Weakness.ISOLATION,
        "overwriting every file the agent can write, with the same line, scores",
        "Take what the tests compare with from tests/, never from files of the agent's sandbox.",
        implied_by=("junk", "stuff", "boast"),
    ),
    CheatMethod(
        "tamper",
        Weakness.ISOLATION,
        "replacing the shell, interpreters and tools, or a process left behind, forges the score",
        "Have the task graded in a fresh sandbox: carry what its work is with verifier.carry instead of "
        'environment_mode = "shared".',
    ),
)
"""All of them, those that put least into their work first."""


# What `benchmark check` found: of each task, and of the benchmark.

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
    findings: Sequence[WeaknessFinding] = ()
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
