"""Which of the tools a request offers runs a shell command, and how it wants to be called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from valkyrie.testing.model_server.shape import OfferedTool

SHELLS = (
    "bash",
    "exec_command",
    "shell",
    "shell_command",
    "local_shell",
    "run_shell_command",
    "developer__shell",
    "execute_command",
    "run_command",
    "run_terminal_cmd",
    "terminal",
)
_COMMAND = ("command", "cmd", "script", "input", "code")
_EMPTY: Mapping[str, Any] = {"string": "run it", "integer": 1, "number": 1, "boolean": False, "array": []}


def shell_tool(tools: Sequence[OfferedTool]) -> OfferedTool | None:
    """The first known shell among the tools."""
    by_name = {tool.name.lower(): tool for tool in reversed(tools)}
    return next((by_name[name] for name in SHELLS if name in by_name), None)


def shell_arguments(tool: OfferedTool, command: str) -> dict[str, Any]:
    """The command in the tool's own words; what else it requires is filled in."""
    properties: Mapping[str, Any] = tool.schema.get("properties") or {}
    key = next((name for name in _COMMAND if name in properties), "command")
    schema = properties.get(key) or {}
    as_list = schema.get("type") == "array"
    found: dict[str, Any] = {key: ["bash", "-lc", command] if as_list else command}
    for name in tool.schema.get("required") or ():
        if name not in found:
            kind = str((properties.get(name) or {}).get("type", "string")).lower()
            found[name] = _EMPTY.get(kind, "run it")
    return found
