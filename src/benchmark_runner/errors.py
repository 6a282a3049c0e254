"""Errors about agents and archives that the runner and the platform both raise, and their root.

Every error carries a `cause`: a short stable code that the platform's retry policy, score and reports share.
The errors about what someone wrote are also ValueErrors: that is what a runner's commands report.
"""

from __future__ import annotations

from collections.abc import Mapping
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
