"""Calls to the engine over aiodocker, each failure in the protocol's terms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sandboxes.docker import errors
from sandboxes.errors import SandboxError, SandboxUnsupportedError
from sandboxes.installation import add_extra

if TYPE_CHECKING:
    import aiodocker
    import aiohttp
    from aiodocker.stream import Stream

Query = Mapping[str, str | int]


def missing_client() -> str:
    """Return what to say where the engine's client library is not installed."""
    return f"provider 'docker' needs aiodocker: {add_extra('docker')}"


class EngineClient:
    """One connection pool to one engine; opened by the first call."""

    def __init__(self, url: str) -> None:
        self.url = url

    @cached_property
    def _docker(self) -> aiodocker.Docker:
        try:
            import aiodocker
            import aiohttp
        except ImportError as error:
            raise SandboxUnsupportedError(missing_client()) from error
        path = self.url.removeprefix("unix://")
        # Every running command holds a connection; a limit would make the next call wait for them.
        if path != self.url:
            connector: aiohttp.BaseConnector = aiohttp.UnixConnector(path, limit=0)
            url = "unix://localhost"
        else:
            connector, url = aiohttp.TCPConnector(limit=0), self.url.replace("tcp://", "http://", 1)
        session = aiohttp.ClientSession(connector=connector)
        return aiodocker.Docker(url, connector=connector, session=session)

    async def close(self) -> None:
        """Close all connections."""
        docker = self.__dict__.pop("_docker", None)
        if docker is not None:
            await docker.session.close()
            await docker.close()
            # aiohttp closes its sockets in the loop's next turn.
            await asyncio.sleep(0)

    @asynccontextmanager
    async def answer(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Query | None = None,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One call whose answer is read as it comes."""
        docker = self._docker
        try:
            # aiodocker's own calls hold whole files in memory; its request underneath does not.
            response = await docker._do_query(
                path, method, params=dict(query or {}), data=data, headers=dict(headers or {})
            )
            async with response:
                yield response
        except self.failures() as error:
            raise errors.translated(error, what) from error

    async def call(
        self, method: str, path: str, *, what: str, query: Query | None = None, body: Any = None
    ) -> Any:
        """One call with a JSON body, if any; its JSON answer, or None."""
        data = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        async with self.answer(method, path, what=what, query=query, data=data, headers=headers) as response:
            text = await response.text()
        return json.loads(text) if text.strip() and "json" in response.content_type else None

    async def progress(
        self, path: str, *, what: str, query: Query, data: Any = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The reports of a long call (a pull, a build), one JSON object a line."""
        headers = {"Content-Type": "application/x-tar"} if data is not None else {}
        async with self.answer("POST", path, what=what, query=query, data=data, headers=headers) as response:
            buffer = b""
            async for chunk in response.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
            if buffer.strip():
                yield json.loads(buffer)

    def attach(self, exec_id: str) -> Stream:
        """The output of a command that was made with `exec`; reading starts it."""
        from aiodocker.execs import Exec

        return Exec(self._docker, exec_id, tty=False).start()

    def failures(self) -> tuple[type[BaseException], ...]:
        """Everything a call may raise because of the other side."""
        import aiohttp
        from aiodocker.exceptions import DockerError

        return (DockerError, aiohttp.ClientError, ConnectionError)

    async def remove_container(self, name: str) -> None:
        """End a container with its volumes; gone already is fine."""
        delay = 0.05
        for _ in range(8):
            try:
                await self.call(
                    "DELETE", f"containers/{name}", what=f"delete {name}", query={"force": 1, "v": 1}
                )
            except SandboxError as error:
                status = getattr(error.__cause__, "status", None)
                if status == 404:
                    return
                # 409: it is being removed by somebody else; 500: its processes are still on their way out.
                if status not in (409, 500):
                    raise
                failure = error
            else:
                return
            await asyncio.sleep(delay)
            delay *= 2
        raise failure
