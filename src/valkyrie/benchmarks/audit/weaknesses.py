"""The eight classes of cheating, and what is found of them in a task."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

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
class Finding:
    """One way in which a task is open."""

    weakness: Weakness
    seen: str
    """What was seen, and where."""
    fix: str
    """What its author must change."""


@dataclass(frozen=True, slots=True)
class Way:
    """One of the things the cheating agent tries."""

    name: str
    weakness: Weakness
    """What a task is open to in which it scores."""
    seen: str
    fix: str
    implied_by: tuple[str, ...] = ()
    """Ways that put less into their work: where one of them scores already, this one shows nothing more."""


WAYS = (
    Way(
        "junk",
        Weakness.VACUOUS,
        "files of the right names with a line of junk in them score",
        "Check what the files hold, not that they are there.",
    ),
    Way(
        "stuff",
        Weakness.MATCHING,
        "files that hold the instruction, the inputs and all numbers up to 2000 score",
        "Compare the whole answer with what is expected; do not search in it.",
        implied_by=("junk",),
    ),
    Way(
        "boast",
        Weakness.TRUST,
        "programs that only end with exit code 0, and reports that say all is well, score",
        "Run the work yourself and compare what it gives; do not take its exit code, log or report for it.",
        implied_by=("junk",),
    ),
    Way(
        "inject",
        Weakness.JUDGE,
        "text that tells a judge what to answer scores",
        "Give the judge the work as marked data, tell it to follow nothing in it, and check its verdict.",
        implied_by=("junk", "stuff", "boast"),
    ),
    Way(
        "seek",
        Weakness.ANSWERS,
        "answers found in the sandbox, or in the history of a repository there, score",
        "Remove solutions and expected answers from the environment, from its image's layers and from git "
        "history.",
        implied_by=("junk", "stuff", "boast"),
    ),
    Way(
        "plant",
        Weakness.EXECUTION,
        "code planted where test tools look for it (conftest.py, Makefile, modules, hooks, named programs) "
        "forges the score",
        "Run no tool in the working folder that loads files from there, and run the agent's programs as "
        "another user who cannot write the reward.",
        implied_by=("junk", "boast"),
    ),
    Way(
        "level",
        Weakness.ISOLATION,
        "overwriting every file the agent can write, with the same line, scores",
        "Take what the tests compare with from tests/, never from files of the agent's sandbox.",
        implied_by=("junk", "stuff", "boast"),
    ),
    Way(
        "tamper",
        Weakness.ISOLATION,
        "replacing the shell, interpreters and tools, or a process left behind, forges the score",
        "Have the task graded in a fresh sandbox: carry what its work is with verifier.carry instead of "
        'environment_mode = "shared".',
    ),
)
"""All of them, those that put least into their work first."""
