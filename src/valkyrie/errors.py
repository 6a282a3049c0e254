"""One exception root, grouped by who must act.

Every error carries a `cause`: a short stable code that the retry policy, the score and the reports share.
The root, and the errors that a runner raises too, are in `benchmark_runner.errors`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmark_runner.errors import BundleError as BundleError
from benchmark_runner.errors import Category
from benchmark_runner.errors import ContractValidationError as ContractValidationError
from benchmark_runner.errors import DiskFullError as DiskFullError
from benchmark_runner.errors import InfrastructureError as InfrastructureError
from benchmark_runner.errors import UsageError as UsageError
from benchmark_runner.errors import UserError as UserError
from benchmark_runner.errors import ValkyrieError as ValkyrieError

PREFLIGHT = "preflight"
"""The cause of a refusal for several reasons, missing secrets among them."""


class UnknownError(UsageError):
    """What was named is not there, or belongs to someone else."""

    default_cause = "unknown"


class AccessError(UserError):
    """Who asks is not known, or may not do this."""

    default_cause = "unauthorized"


class RoleError(AccessError):
    """Who asks is known, but their key's role is not enough for this."""

    default_cause = "role"


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


class SandboxFailedError(InfrastructureError):
    """The sandbox could not be made, or was lost."""

    default_cause = "sandbox_failed"


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


@contextmanager
def paths_shown_as(names: Mapping[Path, str]) -> Iterator[None]:
    """Have errors name these paths as people know them, not as this machine does."""
    try:
        yield
    except ValkyrieError as error:
        text = str(error)
        for path, name in names.items():
            text = text.replace(str(path), name)
        error.args = (text,)
        raise
