"""Everything about sandboxes in one module, under the path services import it by."""

from sandboxes.configs import (
    DaytonaProviderConfig,
    DockerProviderConfig,
    KubernetesProviderConfig,
    ModalProviderConfig,
    SandboxProviderConfig,
    SandboxProviderName,
    sandbox_provider_config_from_mapping,
)
from sandboxes.errors import (
    MissingSandboxConfigError,
    SandboxCommandError,
    SandboxConnectionError,
    SandboxError,
    SandboxNotFoundError,
)
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.types import (
    ComposeSource,
    ExecResult,
    ImageSource,
    Resources,
    SandboxCapacityDomain,
    SandboxCreateRequest,
    SandboxQuery,
    SandboxSource,
    SnapshotSource,
    TargetedSnapshotSource,
)

__all__ = [
    "ComposeSource",
    "DaytonaProviderConfig",
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
    "sandbox_provider_config_from_mapping",
]
