"""Where code runs: one small async protocol and the providers that speak it.

Names load on first use, so importing this package costs nothing.
"""

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
        "SandboxFullError",
        "SandboxNotFoundError",
        "SandboxUnsupportedError",
    ],
    "sandboxes.types": [
        "Capabilities",
        "Command",
        "ComposeSource",
        "CopyLimits",
        "CopyReport",
        "ExecResult",
        "HostSource",
        "ImageSource",
        "Limits",
        "NetworkPolicy",
        "OutputSink",
        "Resources",
        "SandboxCreateRequest",
        "SandboxQuery",
        "SandboxSource",
        "SnapshotSource",
        "TargetedSnapshotSource",
    ],
    "sandboxes.protocol": ["RunnableSandbox", "Sandbox", "SandboxProvider"],
    "sandboxes.registry": ["PROVIDERS", "open_provider"],
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

if TYPE_CHECKING:
    from sandboxes.errors import *  # noqa: F403
    from sandboxes.protocol import *  # noqa: F403
    from sandboxes.registry import *  # noqa: F403
    from sandboxes.types import *  # noqa: F403


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'sandboxes' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(_WHERE)
