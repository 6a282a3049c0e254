"""Makes, finds and ends containers that are sandboxes."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any

from sandboxes.docker import container_config, files, shared_resources
from sandboxes.docker.changes import ContainerListings
from sandboxes.docker.container_config import (
    KIND,
    LABELS,
    NETWORK,
    PROGRAMS,
    SANDBOX,
    WORKDIR,
    ContainerPlan,
    StaticPrograms,
    container,
    container_name,
    shown_folders,
    uses_programs,
)
from sandboxes.docker.engine import (
    Engine,
    EngineClient,
    engine_capabilities,
    find_engine,
    missing_client,
    status_of,
)
from sandboxes.docker.images import Images
from sandboxes.docker.sandbox import DockerSandbox
from sandboxes.docker.shared_resources import FolderVolumes, PublicNetwork
from sandboxes.docker.work import ContainerWork
from sandboxes.errors import (
    SandboxConnectionError,
    SandboxDiedError,
    SandboxError,
    SandboxFullError,
    SandboxNotFoundError,
    SandboxUnsupportedError,
)
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.streams import uninterrupted
from sandboxes.types import KILLED_EXIT_CODE, Capabilities, SandboxCreateRequest, SandboxQuery

DEFAULT_IMAGE = "python:3.12"
"""For tasks that name none; it also lays the fence around networks, which takes a python3."""
IMAGE_VARIABLE = "VALKYRIE_DOCKER_IMAGE"
KILL_SECONDS = 30.0
USERS = {"/etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n", "/etc/group": b"root:x:0:\n"}
"""Where engines look up users, and the least there has to be."""
MAKE_ATTEMPTS = 5
"""How often a container is made anew whose network or volumes other processes removed in between."""
AT_ONCE = 8
"""So many containers are made at a time: an engine makes them no faster when asked for more."""


class DockerProvider(SandboxProvider):
    """Sandboxes of one engine. It is looked for by the first call that needs it."""

    def __init__(self, state_dir: Path, docker_image: str | None = None) -> None:
        self._state_dir = state_dir
        self._image = docker_image or os.environ.get(IMAGE_VARIABLE) or DEFAULT_IMAGE
        self._making = asyncio.Semaphore(AT_ONCE)
        self._deleted: set[str] = set()
        self._stopped: dict[str, str] = {}
        """Containers that we ended and that could not be started since, and why."""
        self._restarting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @cached_property
    def engine(self) -> Engine:
        """The engine, asked once."""
        return find_engine()

    @cached_property
    def _client(self) -> EngineClient:
        if find_spec("aiodocker") is None:
            raise SandboxUnsupportedError(missing_client())
        if self.engine.problem or self.engine.url is None:
            raise SandboxUnsupportedError(str(self.engine.problem))
        return EngineClient(self.engine.url)

    @cached_property
    def _programs(self) -> StaticPrograms:
        return StaticPrograms(self.engine, self._state_dir)

    @cached_property
    def _volumes(self) -> FolderVolumes:
        return FolderVolumes(self._client, self.engine, self._state_dir)

    @cached_property
    def work(self) -> ContainerWork:
        """What carries the work of containers."""
        return ContainerWork(
            self._client, ContainerListings(self._client, self.engine, self._image), self._inspect_own
        )

    @cached_property
    def _seccomp(self) -> str | None:
        return container_config.seccomp_for_engine(self.engine, self._state_dir)

    @cached_property
    def _network(self) -> PublicNetwork:
        return PublicNetwork(self._client, self.engine, self._state_dir)

    @cached_property
    def _images(self) -> Images:
        return Images(self._client, self._state_dir, self._image)

    async def create_sandbox(self, request: SandboxCreateRequest) -> Sandbox:
        if request.network_policy == "allowlist":
            raise SandboxUnsupportedError(
                "provider 'docker' cannot restrict the network to a list; use 'public' or 'no-network'"
            )
        await self._ready()
        # Whoever starts after a crash looks here for what to reap.
        self._state_dir.mkdir(parents=True, exist_ok=True)
        image = await self._images.ready(request.source, request.create_timeout)
        if request.network_policy == "public":
            await self._images.pulled(self._image, request.create_timeout)
        name = container_name(request, token_hex(6))
        # Where a task names no image, its folder is ours to choose.
        workdir = WORKDIR if request.source.type == "host" else "/"
        defaults, names = await self._images.defaults(image, workdir)
        plan = ContainerPlan(image, defaults, self.engine, image_env=names, seccomp=self._seccomp)
        async with self._making:
            making = asyncio.ensure_future(self._make(name, request, plan))
            try:
                return await asyncio.shield(making)
            except BaseException as error:
                await uninterrupted(self._undo(name, making))
                if isinstance(error, SandboxFullError):
                    # No disk of a sandbox, which was never there.
                    raise SandboxError(f"{error}; make room on the engine's disk") from error
                raise

    async def _make(self, name: str, request: SandboxCreateRequest, plan: ContainerPlan) -> DockerSandbox:
        what = f"make a sandbox from {plan.image}"
        public = request.network_policy == "public"
        for attempt in range(MAKE_ATTEMPTS):
            planned = await self._with_volumes(request, plan)
            bridge = await self._network.ensure() if public else "none"
            body = container(request, replace(planned, network=bridge))
            try:
                await self._client.call(
                    "POST", "containers/create", what=what, query={"name": name}, body=body
                )
                if not await self._volumes.are_held(planned.volumes):
                    raise _LostError(f"cannot {what}: its volumes were removed meanwhile")
                await self._client.call("POST", f"containers/{name}/start", what=what)
                break
            except SandboxError as error:
                # Another process may have taken the network away in between, finding nobody on it.
                lost = isinstance(error, _LostError) or (public and bridge in str(error))
                if attempt == MAKE_ATTEMPTS - 1 or not lost:
                    raise
                await self._client.remove_container(name)
        if public:
            await shared_resources.fence_off(self._client, self.engine, name, body["Labels"], self._image)
        return self._wrap(await self._inspect(name))

    async def _with_volumes(self, request: SandboxCreateRequest, plan: ContainerPlan) -> ContainerPlan:
        """Return the plan with what is shown in the container, which is on the engine by then."""
        shown = [
            await self._volumes.mount(Path(mount.source), mount.target, plan.image)
            for mount in shown_folders(request, self.engine)
        ]
        folder = await self._programs.folder()
        programs = await self._volumes.mount(folder, PROGRAMS, plan.image) if folder else None
        return replace(plan, programs=programs, shown=tuple(shown))

    async def _undo(self, name: str, making: asyncio.Future[DockerSandbox]) -> None:
        # A call that is under way may still make it; only when that is over is there nothing more to come.
        await asyncio.wait((making,))
        if not making.cancelled():
            making.exception()
        await self._client.remove_container(name)

    async def get_sandbox(self, sandbox_id: str) -> Sandbox:
        await self._ready()
        if sandbox_id in self._deleted:
            raise SandboxNotFoundError(f"sandbox {sandbox_id} was deleted")
        return self._wrap(await self._inspect(sandbox_id))

    async def delete_sandbox(self, sandbox_id: str) -> None:
        await self._ready()
        try:
            found = await self._inspect(sandbox_id)
        except SandboxNotFoundError:
            self._deleted.add(sandbox_id)
            return
        name = str(found["Name"]).lstrip("/")
        self._deleted.add(name)
        await uninterrupted(self._client.remove_container(name))

    async def list_sandboxes(self, query: SandboxQuery | None = None) -> AsyncIterator[Sandbox]:
        await self._ready()
        query = query or SandboxQuery()
        for found in await self._containers(query.labels, SANDBOX):
            try:
                sandbox = self._wrap(await self._inspect(found["Id"]))
            except SandboxNotFoundError:
                continue
            late = query.created_at_lte and sandbox.created_at and sandbox.created_at > query.created_at_lte
            if not late and sandbox.state != "deleted":
                yield sandbox

    async def reap(self, labels: Mapping[str, str]) -> int:
        await self._ready()
        found = await self._containers(labels, None)
        await asyncio.gather(*(self._client.remove_container(each["Id"]) for each in found))
        await self._network.remove_if_unused()
        await self._volumes.remove_unused()
        ended = [each for each in found if each["Labels"].get(KIND) == SANDBOX]
        self._deleted.update(str(name).lstrip("/") for each in ended for name in each["Names"])
        return len(ended)

    def capabilities(self) -> Capabilities:
        return engine_capabilities(self.engine, self._image)

    @property
    def admission_pool_id(self) -> str:
        return f"docker {self.engine.url}"

    async def close(self) -> None:
        client = self.__dict__.pop("_client", None)
        bridge, volumes = (self.__dict__.pop(name, None) for name in ("_network", "_volumes"))
        for name in ("_images", "_programs", "work"):
            self.__dict__.pop(name, None)
        if client is None:
            return
        try:
            if bridge is not None:
                await uninterrupted(bridge.remove_if_unused())
            if volumes is not None:
                await uninterrupted(volumes.remove_unused())
        except SandboxError:
            pass  # the engine is gone; what it has is found by the next one who reaps
        finally:
            await uninterrupted(client.close())

    async def restart(self, sandbox: DockerSandbox) -> None:
        """End every process of a container and start it anew on the files it has."""
        name, cpus = sandbox.id, sandbox.nano_cpus
        async with self._restarting[name]:
            # Nothing is asked about the container before: while a command cannot start, because a pipe is
            # where the list of users was, the engine answers no such question, and nothing else after it.
            await self._kill(name, cpus)
            await self._limit_cpus(name, cpus)
            await self._start(name)

    async def _kill(self, name: str, cpus: int) -> None:
        what = f"end the processes of {name}"
        try:
            async with asyncio.timeout(KILL_SECONDS):
                # A crowd that may use little of the processors also takes long to die.
                await self._limit_cpus(name, self.engine.cpus * 10**9 if cpus else 0)
                await self._client.call("POST", f"containers/{name}/kill", what=what)
        except TimeoutError:
            if await self._answers():
                # Only what an agent left in a container keeps a healthy engine from ending it.
                raise SandboxDiedError(f"cannot {what}: its engine answers, but not about it") from None
            raise SandboxConnectionError(f"cannot {what}: the engine does not answer") from None
        except SandboxError as error:
            if status_of(error) != 409:
                raise
            found = await self._inspect(name)
            if name not in self._stopped and not found["State"].get("Running"):
                raise died(name, found) from error
        await self._client.call("POST", f"containers/{name}/wait", what=what)

    async def _answers(self) -> bool:
        """Return whether the engine itself answers."""
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await self._client.call("GET", "version", what="ask the engine for its version")
        except (SandboxError, TimeoutError):
            return False
        return True

    async def _start(self, name: str) -> None:
        """Start a container that we ended. It stays ended, and its files can be read, when what an agent left
        in it prevents that."""
        await self._mend_users(name)
        self._stopped[name] = await self.find_obstacle(name)
        if self._stopped[name]:
            return
        try:
            await self._client.call("POST", f"containers/{name}/start", what=f"start sandbox {name} anew")
        except (SandboxNotFoundError, SandboxConnectionError):
            raise
        except SandboxError as error:
            self._stopped[name] = str(error)
            return
        del self._stopped[name]
        labels = (await self._inspect(name))["Config"]["Labels"]
        if labels.get(NETWORK) == "public":
            await shared_resources.fence_off(self._client, self.engine, name, labels, self._image)

    async def find_obstacle(self, name: str, *, reading: bool = False) -> str:
        """Return what in a container's files keeps the engine from running anything in it, if anything, or
        from `reading` its files: it looks up users there, and a pipe would block it for ever."""
        looks = await asyncio.gather(*(files.stat_path(self._client, name, path) for path in USERS))
        for path, found in zip(USERS, looks, strict=True):
            if found is not None and not found.is_file and not (reading and found.is_folder):
                return f"{path} is not what an engine can read"
        return ""

    async def _mend_users(self, name: str) -> None:
        """Put a list of users where an agent put a pipe or the like: for want of it the engine could neither
        start the container nor read its files."""
        for path, content in USERS.items():
            found = await files.stat_path(self._client, name, path)
            if found is not None and not found.is_file and not found.is_folder:
                await files.write_whole(self._client, name, path, content)

    async def check_alive(self, name: str) -> None:
        """Raise SandboxDiedError when a container has ended that nobody asked to end."""
        async with self._restarting[name]:
            found = await self._inspect_own(name)
            if name in self._stopped and not found["State"].get("Running"):
                await self._start(name)
                if reason := self._stopped.get(name):
                    raise SandboxDiedError(f"sandbox {name} cannot be started any more: {reason}")
                return
        state = found["State"]
        if state["Status"] in ("removing", "dead"):
            raise SandboxDiedError(f"sandbox {name} is being removed from the engine", outside=True)
        if not state.get("Running"):
            raise died(name, found)

    async def _limit_cpus(self, name: str, nano_cpus: int) -> None:
        if nano_cpus:
            what = f"limit the processors of {name}"
            body = {"NanoCpus": nano_cpus}
            await self._client.call("POST", f"containers/{name}/update", what=what, body=body)

    async def _ready(self) -> None:
        if "engine" not in self.__dict__:
            self.__dict__["engine"] = await asyncio.to_thread(find_engine)

    def _wrap(self, found: Mapping[str, Any]) -> DockerSandbox:
        return DockerSandbox(self._client, found, self._deleted, self)

    async def _inspect_own(self, name: str) -> dict[str, Any]:
        """As `_inspect`, for a sandbox that was there: who removed it was not inside."""
        try:
            found = await self._inspect(name)
        except SandboxNotFoundError as error:
            if name in self._deleted:
                raise SandboxNotFoundError(f"sandbox {name} was deleted") from error
            raise SandboxDiedError(f"sandbox {name} was removed from the engine", outside=True) from error
        if name in self._deleted:
            raise SandboxNotFoundError(f"sandbox {name} was deleted")
        return found

    async def _inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._client.call(
            "GET", f"containers/{name}/json", what=f"find sandbox {name}"
        )
        if (found["Config"].get("Labels") or {}).get(KIND) != SANDBOX:
            raise SandboxNotFoundError(f"container {name} is no sandbox of ours")
        return found

    async def _containers(self, labels: Mapping[str, str], kind: str | None) -> list[dict[str, Any]]:
        """Containers of ours in any state whose request carried all these labels."""
        wanted = {"label": [f"{KIND}={kind}" if kind else KIND]}
        found = await self._client.call(
            "GET",
            "containers/json",
            what="list sandboxes",
            query={"all": 1, "filters": json.dumps(wanted)},
        )
        return [each for each in found if labels.items() <= _asked(each["Labels"]).items()]


class _LostError(SandboxError):
    """What a container was to use went away before it was made."""


def died(name: str, found: Mapping[str, Any]) -> SandboxDiedError:
    """Return what ended a container, and whether that came from outside.

    Our first process cannot be killed, traced or made to exit from inside; only the kernel, for lack of the
    container's own memory, ends it on behalf of what runs there. 255 is what an engine writes down for
    containers it finds dead when it starts.
    """
    state = found["State"]
    code, for_memory = int(state.get("ExitCode") or 0), bool(state.get("OOMKilled"))
    outside = uses_programs(found) and not for_memory and code in (KILLED_EXIT_CODE, 143, 255)
    reason = (
        "the kernel ended it for lack of memory" if for_memory else f"its first process ended with {code}"
    )
    if outside:
        reason = "it was killed from outside, or its engine was restarted"
    if said := str(state.get("Error") or ""):
        reason += f" ({said[:200]})"
    return SandboxDiedError(f"sandbox {name} has ended: {reason}", outside=outside)


def _asked(labels: Mapping[str, str]) -> dict[str, str]:
    try:
        found = json.loads(labels.get(LABELS, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
