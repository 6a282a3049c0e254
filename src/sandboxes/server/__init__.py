"""Our sandboxes over the part of Daytona's REST that programs use: the real SDK works on any provider.

Differences from Daytona: the settings about idle time are kept but nothing acts on them; stopping kills
the processes and keeps the files in place; a command's input cannot be sent to; snapshots, volumes,
previews and ssh are not offered.
"""

from __future__ import annotations

from sandboxes.server.server import Grant, SandboxServer

__all__ = ["Grant", "SandboxServer"]
