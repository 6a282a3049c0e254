"""How benchmark services reach the sandboxes of their runs: a server of ours, or the provider's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from valkyrie import config
from valkyrie.errors import InfrastructureError

if TYPE_CHECKING:
    from sandboxes.configs import DaytonaProviderConfig
    from sandboxes.protocol import SandboxProvider
    from sandboxes.server import Grant, SandboxServer


class SandboxDoors:
    """One key per run, to that run's sandboxes only; the server starts when the first one is asked for.

    A service on this machine is told the loopback address. One elsewhere is told `sandbox_public_url`, which
    leads to a second server on `sandbox_port`: what the public address offers is no more than such runs need.
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self._servers: dict[bool, SandboxServer] = {}
        self._open: dict[str, tuple[SandboxServer, Grant]] = {}

    async def open(
        self, run_id: str, provider: SandboxProvider, *, public: bool, host_image: bool
    ) -> DaytonaProviderConfig:
        """A key to the run's sandboxes."""
        from sandboxes.configs import DaytonaProviderConfig

        if run_id not in self._open:
            server = await self._server(public)
            labels = {"Home": self._home, "Id": run_id}
            self._open[run_id] = server, server.grant(provider, labels=labels, host_image=host_image)
        grant = self._open[run_id][1]
        return DaytonaProviderConfig(
            DAYTONA_API_KEY=grant.api_key, DAYTONA_API_URL=grant.api_url, DAYTONA_TARGET=grant.target
        )

    async def _server(self, public: bool) -> SandboxServer:
        if public not in self._servers:
            from sandboxes.server import SandboxServer

            port = int(config.effective("sandbox_port").value or 0) if public else 0
            url = config.effective("sandbox_public_url").value if public else None
            server = SandboxServer(port=port, public_url=str(url) if url else None)
            try:
                await server.start()
            except OSError as error:
                raise InfrastructureError(
                    f"The sandbox server cannot listen on port {port}: {error.strerror or error}. "
                    "`valk config set sandbox_port` chooses another."
                ) from error
            self._servers[public] = server
        return self._servers[public]

    def shut(self, run_id: str) -> bool:
        """The run's key opens nothing any more; whether there was one."""
        found = self._open.pop(run_id, None)
        if found:
            server, grant = found
            server.revoke(grant)
        return found is not None

    async def close(self) -> None:
        """End the servers."""
        self._open.clear()
        while self._servers:
            await self._servers.popitem()[1].close()
