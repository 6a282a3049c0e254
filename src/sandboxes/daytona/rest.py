"""The part of Daytona's SDK that reaches into an existing sandbox, over REST and without the SDK.

Services that grade in sandboxes of this machine need no more than that. Names and signatures are the SDK's,
so that the provider does not know which of the two it has; making and listing sandboxes takes the SDK itself.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import httpx

Hear = Callable[[str], Awaitable[object] | None]

TIMEOUT_S = 60.0
_STREAMS = {b"\x01\x01\x01": "stdout", b"\x02\x02\x02": "stderr"}
_ERROR_BYTES = 64 * 1024


class DaytonaError(Exception):
    """The other side refused, or could not do what was asked."""

    def __init__(
        self,
        message: str,
        status_code: int | None = None,
        *,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.code = code
        self.headers = dict(headers or {})


class DaytonaConnectionError(DaytonaError):
    """The other side was not reached, or went away."""


@dataclass(frozen=True, slots=True)
class SessionExecuteRequest:
    """One command for a session."""

    command: str
    run_async: bool = False


class AsyncDaytona:
    """Sandboxes at one address, by their ids."""

    def __init__(self, api_key: str, api_url: str) -> None:
        self._url = api_url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {api_key}"}
        self.http = httpx.AsyncClient(
            headers=self.headers, timeout=TIMEOUT_S, trust_env=not _is_loopback(api_url)
        )

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """Return the sandbox of that id."""
        return AsyncSandbox(self, await self.json("GET", self._place(sandbox_id)))

    async def delete(self, sandbox: AsyncSandbox) -> None:
        """End a sandbox."""
        await self.json("DELETE", self._place(sandbox.id))

    async def described(self, sandbox_id: str) -> dict[str, Any]:
        """Return what is known of a sandbox now."""
        found: dict[str, Any] = await self.json("GET", self._place(sandbox_id))
        return found

    async def set_network(self, sandbox_id: str, settings: Mapping[str, Any]) -> None:
        """Change what a sandbox may reach."""
        named = {_camel(name): value for name, value in settings.items()}
        await self.json("POST", f"{self._place(sandbox_id)}/network-settings", json=named)

    async def json(self, method: str, url: str, **given: Any) -> Any:
        """Send a request; return the answer's JSON, or raise what its status says."""
        answer = await self.http.request(method, url, **given)
        if answer.is_error:
            raise _refusal(answer, answer.content)
        return answer.json() if answer.content else None

    async def close(self) -> None:
        """Let go of the connections."""
        await self.http.aclose()

    def _place(self, sandbox_id: str) -> str:
        return f"{self._url}/sandbox/{quote(sandbox_id, safe='')}"


class AsyncSandbox:
    """One sandbox: what it is, its files (`fs`) and its processes (`process`)."""

    def __init__(self, daytona: AsyncDaytona, found: Mapping[str, Any]) -> None:
        self._daytona = daytona
        self._take(found)
        toolbox = f"{str(found['toolboxProxyUrl']).rstrip('/')}/{quote(self.id, safe='')}"
        self.fs = FileSystem(daytona, toolbox)
        self.process = Process(daytona, toolbox)

    def _take(self, found: Mapping[str, Any]) -> None:
        self.id = str(found["id"])
        self.name = found.get("name")
        self.state = found.get("state")
        self.user = str(found.get("user") or "root")
        self.labels = dict(found.get("labels") or {})
        self.created_at = found.get("createdAt")

    async def refresh_data(self) -> None:
        """Ask again what it is."""
        self._take(await self._daytona.described(self.id))

    async def update_network_settings(self, **settings: Any) -> None:
        """Change what it may reach."""
        await self._daytona.set_network(self.id, settings)


class FileSystem:
    """Files of one sandbox."""

    def __init__(self, daytona: AsyncDaytona, toolbox: str) -> None:
        self._daytona = daytona
        self._url = f"{toolbox}/files"

    async def upload_file(self, content: bytes, path: str) -> None:
        """Write a file."""
        await self._daytona.json("POST", f"{self._url}/upload-v2", params={"path": path}, content=content)

    async def upload_file_stream(self, chunks: AsyncIterator[bytes], path: str) -> None:
        """Write a file from pieces."""
        await self._daytona.json("POST", f"{self._url}/upload-v2", params={"path": path}, content=chunks)

    async def set_file_permissions(self, path: str, *, mode: str) -> None:
        """Set a file's mode, in octal digits."""
        await self._daytona.json("POST", f"{self._url}/permissions", params={"path": path, "mode": mode})

    async def get_file_info(self, path: str) -> SimpleNamespace:
        """Return size, kind and mode of a file."""
        found = await self._daytona.json("GET", f"{self._url}/info", params={"path": path})
        return SimpleNamespace(size=found["size"], is_dir=found["isDir"], mode=found["mode"])

    async def download_file_stream(self, path: str, timeout: float) -> AsyncIterator[bytes]:
        """Return the pieces of a file."""
        request = self._daytona.http.build_request(
            "GET", f"{self._url}/download", params={"path": path}, timeout=timeout
        )
        answer = await self._daytona.http.send(request, stream=True)
        if answer.is_error:
            said = await _beginning(answer)
            raise _refusal(answer, said)
        return _pieces(answer)


class Process:
    """Commands of one sandbox."""

    def __init__(self, daytona: AsyncDaytona, toolbox: str) -> None:
        self._daytona = daytona
        self._url = f"{toolbox}/process"

    async def exec(self, command: str, timeout: float) -> SimpleNamespace:
        """Run a short command; return its exit code and output."""
        body = {"command": command, "timeout": timeout}
        found = await self._daytona.json(
            "POST", f"{self._url}/execute", json=body, timeout=timeout + TIMEOUT_S
        )
        return SimpleNamespace(exit_code=found["exitCode"], result=found["result"])

    async def create_session(self, session_id: str) -> None:
        """Open a session under a name of the caller's."""
        await self._daytona.json("POST", f"{self._url}/session", json={"sessionId": session_id})

    async def delete_session(self, session_id: str) -> None:
        """End a session and what runs in it."""
        await self._daytona.json("DELETE", self._session(session_id))

    async def execute_session_command(
        self, session_id: str, request: SessionExecuteRequest
    ) -> SimpleNamespace:
        """Start a command in a session; return its id."""
        body = {"command": request.command, "runAsync": request.run_async}
        found = await self._daytona.json("POST", f"{self._session(session_id)}/exec", json=body)
        return SimpleNamespace(cmd_id=found["cmdId"])

    async def get_session_command(self, session_id: str, command_id: str) -> SimpleNamespace:
        """Return a command's exit code, None while it runs."""
        found = await self._daytona.json("GET", self._command(session_id, command_id))
        return SimpleNamespace(exit_code=found.get("exitCode"))

    async def get_session_command_logs_async(
        self, session_id: str, command_id: str, on_stdout: Hear, on_stderr: Hear
    ) -> None:
        """Hand on what a command prints, from its beginning to its end."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosedError, InvalidHandshake, InvalidStatus

        address = f"ws{self._command(session_id, command_id).removeprefix('http')}/logs?follow=true"
        told = {"stdout": on_stdout, "stderr": on_stderr}
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in told}
        proxy: Literal[True] | None = None if _is_loopback(address) else True
        try:
            async with connect(
                address, additional_headers=self._daytona.headers, max_size=None, proxy=proxy
            ) as line:
                async for frame in line:
                    data = frame.encode() if isinstance(frame, str) else frame
                    name = _STREAMS.get(data[:3])
                    if name is not None and (text := decoders[name].decode(data[3:])):
                        waited = told[name](text)
                        if waited is not None:
                            await waited
        except InvalidStatus as error:
            raise DaytonaError(str(error), error.response.status_code) from error
        except (ConnectionClosedError, InvalidHandshake, OSError) as error:
            raise DaytonaConnectionError(f"the log broke off: {error}") from error

    def _session(self, session_id: str) -> str:
        return f"{self._url}/session/{quote(session_id, safe='')}"

    def _command(self, session_id: str, command_id: str) -> str:
        return f"{self._session(session_id)}/command/{quote(command_id, safe='')}"


async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_bytes():
            yield piece
    finally:
        await answer.aclose()


async def _beginning(answer: httpx.Response) -> bytes:
    said = b""
    try:
        async for piece in answer.aiter_bytes():
            said += piece
            if len(said) >= _ERROR_BYTES:
                break
    finally:
        await answer.aclose()
    return said[:_ERROR_BYTES]


def _refusal(answer: httpx.Response, said: bytes) -> DaytonaError:
    try:
        found = json.loads(said)
        message, code = str(found["message"]), found.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code = said.decode(errors="replace"), None
    return DaytonaError(message, answer.status_code, code=code, headers=answer.headers)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
