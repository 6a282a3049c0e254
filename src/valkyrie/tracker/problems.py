"""All that stands in the way of a run, told in one list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from valkyrie.errors import (
    PREFLIGHT,
    BenchmarkError,
    InfrastructureError,
    MissingSecretError,
    UserError,
    ValkyrieError,
)

MOST_PROBLEMS = 20

T = TypeVar("T")


class Problem(str):
    """A problem that remembers its error, so that a lone one is raised as itself."""

    def __new__(cls, error: ValkyrieError) -> Problem:
        made = super().__new__(cls, str(error))
        made.error = error
        return made

    error: ValkyrieError


@dataclass(slots=True)
class ProblemList:
    """The problems found so far, and the secrets without a value: environment variable → name."""

    texts: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, error: ValkyrieError) -> None:
        """Add an error, and the secrets it says are missing."""
        self.texts.append(Problem(error))
        self.missing.update(getattr(error, "missing", {}))

    def collect(self, find: Callable[[], T]) -> T | None:
        """Return what was found, or None and one more problem: not there, refused, broken or out of reach."""
        try:
            return find()
        except (UserError, BenchmarkError, InfrastructureError) as error:
            self.texts.append(Problem(error))
            return None


def refuse(problems: Sequence[str], missing: Mapping[str, str] | None = None) -> ValkyrieError:
    """Return the refusal that lists everything at once, and nothing twice; lists in it become part of it."""
    problems = list(dict.fromkeys(part for one in problems for part in _parts(one)))
    if len(problems) == 1 and isinstance(problems[0], Problem):
        return problems[0].error
    indented = [text.replace("\n", "\n     ") for text in problems[:MOST_PROBLEMS]]
    shown = [f"  {number}. {text}" for number, text in enumerate(indented, 1)]
    more = [f"  … and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
    text = "\n".join([f"{len(problems)} things stand in the way:", *shown, *more])
    if len(problems) == 1:
        text = problems[0]
    refused = (
        MissingSecretError(text, missing=missing, cause=None if _only_secrets(problems) else PREFLIGHT)
        if missing
        else UserError(text)
    )
    refused.problems = tuple(problems)
    return refused


def _parts(problem: str) -> Sequence[str]:
    """Return what a problem lists that is itself such a refusal; else just that problem."""
    return (problem.error.problems or (problem,)) if isinstance(problem, Problem) else (problem,)


def _only_secrets(problems: Sequence[str]) -> bool:
    return all(isinstance(getattr(problem, "error", None), MissingSecretError) for problem in problems)
