"""What an attempt's sandbox is given besides its task: the agent's layer, and a door to its model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from sandboxes.errors import SandboxConnectionError, SandboxDiedError, SandboxError, SandboxUnsupportedError
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.values import Command, OutputSink
from valkyrie.agents.protocol import MODEL_URL, LayerSpec
from valkyrie.errors import BenchmarkError, SandboxFailedError

if TYPE_CHECKING:
    from sandboxes.types import SandboxCreateRequest, SandboxSource

DOOR = "/opt/valkyrie/door"
"""Where the door's folder is seen in a sandbox."""
BRIDGE = "bridge.py"
SOCKET = "model.sock"
DOOR_PORT = 8765
DOOR_TIMEOUT_S = 30.0
LAYER_MANIFEST = "layer.json"


class Layers(Protocol):
    """Where agents' layers are kept."""

    async def ready(
        self, spec: LayerSpec, provider: SandboxProvider, source: SandboxSource, log: Callable[[str], None]
    ) -> Path: ...


class Door(Protocol):
    """A way to the model."""

    def opened(self) -> AbstractAsyncContextManager[Path]:
        """A folder with a socket (and the bridge to it) of one attempt's own, shut at the end."""
        ...


@dataclass(slots=True)
class Gear:
    """What all attempts of a run are equipped with."""

    layers: Layers | None = None
    layer: LayerSpec | None = None
    served_at: str | None = None
    """`--model-url`."""
    door: Door | None = None
    """Through what `served_at` is reached, where that takes one."""
    layer_to_bring: Path | None = None
    """The layer, where the provider cannot show it."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What agents learn of their model by."""
        return {MODEL_URL: self.model_url} if self.model_url else {}

    @property
    def needed(self) -> bool:
        """Whether there is anything to give."""
        return self.layer is not None or self.door is not None

    @property
    def shows_layer(self) -> bool:
        """Whether sandboxes have the agent's layer from their beginning."""
        return self.layer is not None and self.layer_to_bring is None

    @property
    def model_url(self) -> str | None:
        """Where the model is served, seen from inside."""
        if self.served_at is None or self.door is None:
            return self.served_at
        return f"http://127.0.0.1:{DOOR_PORT}{urlsplit(self.served_at).path.rstrip('/')}"

    @asynccontextmanager
    async def doorway(self) -> AsyncIterator[Path | None]:
        """The folder through which one attempt reaches its model, if it takes one."""
        if self.door is None:
            yield None
            return
        async with self.door.opened() as folder:
            yield folder

    async def equip(
        self,
        request: SandboxCreateRequest,
        provider: SandboxProvider,
        doorway: Path | None,
        note: Callable[[str], None],
    ) -> SandboxCreateRequest:
        """The request with what is to be shown in the sandbox."""
        from sandboxes.types import Mount

        shown = provider.capabilities().mounts
        mounts: list[Mount] = []
        if self.layer and self.layers:
            folder = await self.layers.ready(self.layer, provider, request.source, note)
            if shown:
                mounts.append(Mount(source=str(folder), target=self.layer.target))
            else:
                self.layer_to_bring = folder
        if doorway:
            if not shown:
                raise SandboxUnsupportedError(
                    f"the model at {self.served_at} is out of reach of these sandboxes; give --model-url an "
                    "https address they can reach, or use --provider local or docker"
                )
            mounts.append(Mount(source=str(doorway), target=DOOR, sockets=True))
        return request.model_copy(update={"mounts": (*request.mounts, *mounts)})

    async def check_layer(self, sandbox: Sandbox) -> None:
        """BenchmarkError when the agent's layer, which is there before the task, is not there after set-up.

        What is shown cannot be changed from inside, but a folder above it can be moved away.
        """
        if self.layer is None:
            return
        try:
            found = json.loads(await sandbox.download_file(f"{self.layer.target}/{LAYER_MANIFEST}"))
            intact = (found["name"], found["version"]) == (self.layer.name, self.layer.version)
        except (SandboxConnectionError, SandboxDiedError):
            raise
        except (SandboxError, ValueError, KeyError, TypeError):
            intact = False
        if not intact:
            raise BenchmarkError(
                f"setting the task up took away the agent's own software at {self.layer.target}, which is no "
                "part of the task",
                cause="task_setup_failed",
            )

    async def open_door(self, sandbox: Sandbox, log: OutputSink) -> None:
        """Let the model be reached on the sandbox's own loopback; ended with the agent."""
        if self.door is None:
            return
        command = Command(
            ("python3", f"{DOOR}/{BRIDGE}", f"{DOOR}/{SOCKET}", str(DOOR_PORT)), timeout=DOOR_TIMEOUT_S
        )
        if (code := await sandbox.run(command, log)) != 0:
            raise SandboxFailedError(
                f"the door to the model could not be opened (exit code {code}); it needs python3 in the "
                "sandbox. An https --model-url needs no door."
            )
