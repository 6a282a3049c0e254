"""One exception root, grouped by who must act.

Every error carries a `cause`: a short stable code that the retry policy, the score and the reports share.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from valkyrie.nouns import Category

PREFLIGHT = "preflight"
"""The cause of a refusal for several reasons, missing secrets among them."""


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


class UnknownError(UsageError):
    """What was named is not there, or belongs to someone else."""

    default_cause = "unknown"


class AccessError(UserError):
    """Who asks is not known, or may not do this."""

    default_cause = "unauthorized"


class RoleError(AccessError):
    """Who asks is known, but their key's role is not enough for this."""

    default_cause = "role"


class ContractValidationError(UsageError):
    """An agent's contract, or a value given to it, does not fit."""

    default_cause = "contract"
    secrets: Mapping[str, str] = MappingProxyType({})
    """What the contract asks for all the same: environment variable → secret name."""


class BundleError(UserError):
    """An agent's folder or archive cannot be taken."""

    default_cause = "bundle"


class MissingSecretError(UserError):
    """A secret the agent needs has no value anywhere we look."""

    default_cause = "missing_secret"

    def __init__(
        self, message: str, *, missing: Mapping[str, str] | None = None, cause: str | None = None
    ) -> None:
        super().__init__(message, cause=cause)
        self.missing = dict(missing or {})
        """Environment variable → secret name."""


class AgentError(ValkyrieError):
    """The agent did not do its part."""

    category = Category.AGENT
    default_cause = "agent_failed"


class AgentInstallError(AgentError):
    """`install_cmd` failed."""

    default_cause = "agent_install_failed"


class AgentOutputError(AgentError):
    """A required output artifact is missing or too large."""

    default_cause = "agent_output_missing"


class BenchmarkError(ValkyrieError):
    """The benchmark's author must act: a broken task, or a grader that gave no verdict."""

    category = Category.BENCHMARK
    default_cause = "benchmark"


class GraderError(BenchmarkError):
    """Grading ran and produced no usable verdict. Never a zero."""

    default_cause = "grader_no_verdict"


class GraderTimeoutError(GraderError):
    """Grading took longer than it may."""

    default_cause = "grader_timeout"


class InfrastructureError(ValkyrieError):
    """Machine, sandbox, network or disk failed; says nothing about the agent."""

    category = Category.INFRASTRUCTURE
    default_cause = "infrastructure"


class SandboxFailedError(InfrastructureError):
    """The sandbox could not be made, or was lost."""

    default_cause = "sandbox_failed"


class DiskFullError(InfrastructureError):
    """The host's disk is full."""

    default_cause = "disk_full"


class LeaseLostError(InfrastructureError):
    """Another executor holds this trial now; what this one writes is refused."""

    default_cause = "lease_lost"


class JudgeError(InfrastructureError):
    """A judge's model could not be asked: its endpoint failed, was overloaded, or could not be reached."""

    default_cause = "judge_unreachable"


class StoreError(ValkyrieError):
    """The database is missing, corrupt, newer than this program, or cannot be written."""

    category = Category.INFRASTRUCTURE
    default_cause = "store"
