"""Where code runs: one small async protocol and the providers that speak it.

Names load on first use, so importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

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
        "BuildSource",
        "Capabilities",
        "Command",
        "ComposeSource",
        "CopyLimits",
        "CopyReport",
        "ExecResult",
        "HostSource",
        "ImageSource",
        "SandboxLimits",
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
__getattr__, __dir__ = lazy_names(__name__, _HOME)

if TYPE_CHECKING:
    from sandboxes.errors import *  # noqa: F403
    from sandboxes.protocol import *  # noqa: F403
    from sandboxes.registry import *  # noqa: F403
    from sandboxes.types import *  # noqa: F403
