"""Tool servers (MCP) a task gives its agent, checked and in one form; each agent writes them in its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from valkyrie.errors import UsageError
from valkyrie.nouns import Json, TaskSpec
from valkyrie.suggest import did_you_mean

WORKSPACE = "${workspace}"
"""In a command, an argument, a variable or a folder: where the agent works."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_STDIO, _REMOTE = ("stdio", "local"), ("http", "sse", "streamable-http", "streamable_http")
_KEYS = ("type", "command", "args", "env", "cwd", "timeout", "url", "headers", "tools")
_FILLED = re.compile(r"\$\{|\$[A-Z_][A-Z0-9_]{2,}|\{(env|file):")
"""What some agent or other replaces when it reads its list of servers."""
_GO_THERE = 'cd -- "$1" && shift && exec "$@"'


@dataclass(frozen=True, slots=True)
class McpServer:
    """One server: a program that is started beside the agent, or an address."""

    name: str
    argv: tuple[str, ...] = ()
    """Goes to its folder itself: not every agent can start a program elsewhere."""
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "stdio"
    """`stdio`, `http` or `sse`."""
    timeout: float | None = None
    """Seconds for one call."""


def mcp_servers(task: TaskSpec) -> list[McpServer]:
    """The task's servers in order. Raises UsageError that names the server and what is wrong with it."""
    return [_server(name, data, task.cwd) for name, data in task.mcp_servers.items()]


def _server(name: str, data: Any, workspace: str) -> McpServer:
    where = f"mcpServers.{name[:80]}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where}: a server's name has letters, digits, - and _ only, at most 64.")
    if not isinstance(data, Mapping):
        raise UsageError(f"{where}: an object is expected.")
    for key in data:
        if key not in _KEYS:
            raise UsageError(f"{where}: no field is called {key!r}.{did_you_mean(str(key), _KEYS)}")
    kind = data.get("type", "http" if "url" in data else "stdio")
    timeout = _seconds(data.get("timeout"), f"{where}.timeout")
    if kind in _STDIO:
        return _program(name, data, workspace, where, timeout)
    if kind not in _REMOTE:
        known = ", ".join((*_STDIO, *_REMOTE))
        raise UsageError(f"{where}.type: one of {known} is expected, not {str(kind)[:40]!r}.")
    url = _text(data.get("url"), f"{where}.url")
    headers = _texts(data.get("headers", {}), f"{where}.headers")
    for said in (url, *headers, *headers.values()):
        if match := _FILLED.search(said):
            raise UsageError(
                f"{where}: {match[0]!r} in an address or header is filled by agents with their own variables "
                "and files, and sent there; write the value itself."
            )
    return McpServer(name, url=url, headers=headers, kind="sse" if kind == "sse" else "http", timeout=timeout)


def _program(
    name: str, data: Mapping[str, Any], workspace: str, where: str, timeout: float | None
) -> McpServer:
    args = data.get("args", [])
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise UsageError(f"{where}.args: a list of texts is expected.")
    words = [_text(data.get("command"), f"{where}.command")]
    words += [str(arg) for arg in args]
    words = [word.replace(WORKSPACE, workspace) for word in words]
    env = _texts(data.get("env", {}), f"{where}.env")
    for key in env:
        if not re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII):
            raise UsageError(f"{where}.env: {key[:80]!r} is no name of a variable.")
    env = {key: value.replace(WORKSPACE, workspace) for key, value in env.items()}
    folder = _folder(data.get("cwd"), workspace, f"{where}.cwd")
    if folder != workspace:
        words = ["/bin/sh", "-c", _GO_THERE, "sh", folder, *words]
    return McpServer(name, tuple(words), env, timeout=timeout)


def _folder(value: Any, workspace: str, where: str) -> str:
    if value is None:
        return workspace
    said = _text(value, where).replace(WORKSPACE, workspace).removeprefix("./")
    if said in ("", "."):
        return workspace
    return said.rstrip("/") if said.startswith("/") else f"{workspace}/{said}".rstrip("/")


def _seconds(value: Any, where: str) -> float | None:
    """Seconds, or a duration as specs write it."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", value) if isinstance(value, str) else None:
        return float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]
    raise UsageError(f"{where}: a duration is expected, like 30s.")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where}: text is expected.")
    return value


def _texts(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: an object of texts is expected.")
    return {str(key): str(one) for key, one in value.items()}


def as_json(servers: Sequence[McpServer], *, stdio: str = "stdio", more: Json | None = None) -> Json:
    """The form most agents read: `{"mcpServers": {name: {…}}}`; `more` stands in each."""
    return {"mcpServers": {server.name: _entry(server, stdio) | (more or {}) for server in servers}}


def _entry(server: McpServer, stdio: str) -> Json:
    if server.url:
        return {"type": server.kind, "url": server.url, "headers": dict(server.headers)}
    program, *args = server.argv
    return {"type": stdio, "command": program, "args": args, "env": dict(server.env)}
