"""The errors that runners and the platform share, and "Did you mean …?" in their words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar


class Category(StrEnum):
    """Who must act when an attempt did not end in a grade."""

    AGENT = "agent"
    BENCHMARK = "benchmark"
    INFRASTRUCTURE = "infrastructure"
    USER = "user"
    INTERNAL = "internal"


class ValkyrieError(Exception):
    """Anything this product says went wrong."""

    category: ClassVar[Category] = Category.INTERNAL
    default_cause: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, cause: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.cause = cause or self.default_cause
        self.retry_after = retry_after
        self.problems: tuple[str, ...] = ()
        """What a refusal lists, one by one."""


class UserError(ValkyrieError):
    """What was asked cannot be done as asked; the message names the thing, the place and the way out."""

    category = Category.USER
    default_cause = "user"


class UsageError(UserError):
    """The words of the command are wrong (unknown name, flag, id, value)."""

    default_cause = "usage"
    exit_code = 2


class ContractValidationError(UsageError, ValueError):
    """An agent's contract, or a value given to it, does not fit."""

    default_cause = "contract"
    secrets: Mapping[str, str] = MappingProxyType({})
    """What the contract asks for all the same: environment variable → secret name."""


class ArchiveLimitError(UsageError, ValueError):
    """An environment variable that limits archives holds no number."""


class BundleError(UserError, ValueError):
    """An agent's folder or archive cannot be taken."""

    default_cause = "bundle"


class InfrastructureError(ValkyrieError):
    """Machine, sandbox, network or disk failed; says nothing about the agent."""

    category = Category.INFRASTRUCTURE
    default_cause = "infrastructure"


class DiskFullError(InfrastructureError):
    """The host's disk is full."""

    default_cause = "disk_full"


# Did you mean …?


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing when no known word is the same but for a slip of the fingers."""
    typed = word.lower()
    near = [(steps, name) for name in known if (steps := _slips(typed, name.lower())) is not None]
    return f" Did you mean {min(near, key=lambda one: one[0])[1]!r}?" if near else ""


def _slips(typed: str, name: str) -> int | None:
    """Return how many letters were slipped on, None when it is another word; beginnings and plurals count as
    one."""
    most = 1 + (min(len(typed), len(name)) - 1) // 4
    if len(typed) >= 4 and (name.startswith(typed) or (typed.startswith(name) and len(name) >= 4)):
        return 1
    if _singular(typed) == _singular(name):
        return 1
    if abs(len(typed) - len(name)) > most:
        return None
    steps = _distance(typed, name)
    return steps if steps <= most else None


def _singular(word: str) -> str:
    return f"{word[:-3]}y" if word.endswith("ies") else word.removesuffix("s")


def _distance(one: str, other: str) -> int:
    """Letters added, left out, exchanged, or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for place, letter in enumerate(one, 1):
        last, row, before = before, [place], row
        for column, wanted in enumerate(other, 1):
            steps = min(before[column] + 1, row[-1] + 1, before[column - 1] + (letter != wanted))
            if last and column > 1 and letter == other[column - 2] and one[place - 2] == wanted:
                steps = min(steps, last[column - 2] + 1)
            row.append(steps)
    return row[-1]
