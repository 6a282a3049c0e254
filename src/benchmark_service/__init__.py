"""For authors of benchmark services: base class, app, wire schemas and client, independent of the platform.

Names load on first use: importing this package costs next to nothing and pulls in no vendor's SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

__version__ = "0.1.0"

_HOME = {
    "benchmark_service.base": ("BenchmarkService",),
    "benchmark_service.app": (
        "BenchmarkServiceApp",
        "InflightMiddleware",
    ),
    "benchmark_service.client": (
        "BenchmarkServiceClient",
        "SandboxRecoveryAttempt",
    ),
    "benchmark_service.errors": (
        "BenchmarkServiceConnectionError",
        "BenchmarkServiceError",
        "BenchmarkServiceProtocolError",
        "BenchmarkServiceStreamClosedError",
        "BenchmarkServiceUnauthenticatedError",
        "StreamIdleError",
    ),
    "benchmark_service.schemas": (
        "EvalMode",
        "SandboxRecoveryPolicy",
    ),
    "benchmark_service.submissions": (
        "ArtifactGradingSubmission",
        "GradingSubmission",
        "TextGradingSubmission",
    ),
    "benchmark_service.versions": ("DatasetVersion",),
    "benchmark_service.sandbox": (
        "ComposeSandbox",
        "ComposeSource",
        "DaytonaProviderConfig",
        "DaytonaSandbox",
        "DaytonaSandboxProvider",
        "DockerProviderConfig",
        "ExecResult",
        "ImageSource",
        "KubernetesProviderConfig",
        "MissingSandboxConfigError",
        "ModalProviderConfig",
        "Resources",
        "Sandbox",
        "SandboxCapacityDomain",
        "SandboxCommandError",
        "SandboxConnectionError",
        "SandboxCreateRequest",
        "SandboxError",
        "SandboxNotFoundError",
        "SandboxProvider",
        "SandboxProviderConfig",
        "SandboxProviderName",
        "SandboxQuery",
        "SandboxSource",
        "SnapshotSource",
        "TargetedSnapshotSource",
    ),
}
__getattr__, __dir__ = lazy_names(__name__, _HOME)

if TYPE_CHECKING:
    from benchmark_service.app import BenchmarkServiceApp as BenchmarkServiceApp
    from benchmark_service.app import InflightMiddleware as InflightMiddleware
    from benchmark_service.base import BenchmarkService as BenchmarkService
    from benchmark_service.client import BenchmarkServiceClient as BenchmarkServiceClient
    from benchmark_service.client import SandboxRecoveryAttempt as SandboxRecoveryAttempt
    from benchmark_service.errors import *  # noqa: F403
    from benchmark_service.sandbox import *  # noqa: F403
    from benchmark_service.schemas import EvalMode as EvalMode
    from benchmark_service.schemas import SandboxRecoveryPolicy as SandboxRecoveryPolicy
    from benchmark_service.submissions import ArtifactGradingSubmission as ArtifactGradingSubmission
    from benchmark_service.submissions import GradingSubmission as GradingSubmission
    from benchmark_service.submissions import TextGradingSubmission as TextGradingSubmission
    from benchmark_service.versions import DatasetVersion as DatasetVersion
