"""The sandbox protocol under the names services import it by; it lives in the package `sandboxes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

_HOME = {
    "sandboxes.errors": (
        "MissingSandboxConfigError",
        "SandboxCapacityError",
        "SandboxCommandError",
        "SandboxConnectionError",
        "SandboxError",
        "SandboxFileNotFoundError",
        "SandboxNotFoundError",
        "SandboxUnsupportedError",
    ),
    "sandboxes.types": (
        "ComposeSource",
        "ExecResult",
        "ImageSource",
        "Resources",
        "SandboxCapacityDomain",
        "SandboxCreateRequest",
        "SandboxQuery",
        "SandboxSource",
        "SnapshotSource",
        "TargetedSnapshotSource",
        "DaytonaProviderConfig",
        "DockerProviderConfig",
        "KubernetesProviderConfig",
        "ModalProviderConfig",
        "SandboxProviderConfig",
        "SandboxProviderName",
        "sandbox_provider_config_from_mapping",
    ),
    "sandboxes.protocol": (
        "Sandbox",
        "SandboxProvider",
    ),
    "sandboxes.daytona": (
        "DaytonaSandbox",
        "DaytonaSandboxProvider",
    ),
    "sandboxes.compose": ("ComposeSandbox",),
}
__getattr__, __dir__ = lazy_names(__name__, _HOME)

if TYPE_CHECKING:
    from sandboxes.compose import ComposeSandbox as ComposeSandbox
    from sandboxes.daytona import DaytonaSandbox as DaytonaSandbox
    from sandboxes.daytona import DaytonaSandboxProvider as DaytonaSandboxProvider
    from sandboxes.errors import *  # noqa: F403
    from sandboxes.protocol import Sandbox as Sandbox
    from sandboxes.protocol import SandboxProvider as SandboxProvider
    from sandboxes.types import *  # noqa: F403  # noqa: F403
