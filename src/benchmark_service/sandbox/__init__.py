"""The sandbox protocol under the names services import it by; it lives in the package `sandboxes`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "sandboxes.errors": [
        "MissingSandboxConfigError",
        "SandboxCapacityError",
        "SandboxCommandError",
        "SandboxConnectionError",
        "SandboxError",
        "SandboxFileNotFoundError",
        "SandboxNotFoundError",
        "SandboxUnsupportedError",
    ],
    "sandboxes.types": [
        "ComposeSource",
        "ExecResult",
        "ImageSource",
        "Resources",
        "SandboxCreateRequest",
        "SandboxQuery",
        "SandboxSource",
        "SnapshotSource",
        "TargetedSnapshotSource",
    ],
    "sandboxes.protocol": ["Sandbox", "SandboxProvider"],
    "sandboxes.configs": [
        "DaytonaProviderConfig",
        "DockerProviderConfig",
        "KubernetesProviderConfig",
        "ModalProviderConfig",
        "SandboxProviderConfig",
        "SandboxProviderName",
        "sandbox_provider_config_from_mapping",
    ],
    "sandboxes.daytona": ["DaytonaSandbox", "DaytonaSandboxProvider"],
    "sandboxes.compose": ["ComposeSandbox"],
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

if TYPE_CHECKING:
    from sandboxes.compose import ComposeSandbox as ComposeSandbox
    from sandboxes.configs import *  # noqa: F403
    from sandboxes.daytona import DaytonaSandbox as DaytonaSandbox
    from sandboxes.daytona import DaytonaSandboxProvider as DaytonaSandboxProvider
    from sandboxes.errors import *  # noqa: F403
    from sandboxes.protocol import Sandbox as Sandbox
    from sandboxes.protocol import SandboxProvider as SandboxProvider
    from sandboxes.types import *  # noqa: F403


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'benchmark_service.sandbox' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(_WHERE)
