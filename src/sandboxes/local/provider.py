"""Sandboxes on this machine, made with bubblewrap."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from sandboxes import host_capabilities
from sandboxes.cgroups import Cgroup
from sandboxes.errors import SandboxCapacityError, SandboxError, SandboxNotFoundError
from sandboxes.local import network, probe, processes, records
from sandboxes.local.keeper_link import KeeperLink
from sandboxes.local.processes import ProcessIdentity
from sandboxes.local.records import ForeignSandbox
from sandboxes.local.sandbox import LocalSandbox
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.threads import to_the_end
from sandboxes.types import Capabilities, SandboxCreateRequest, SandboxQuery


class LocalProvider(SandboxProvider):
    """Makes sandboxes on this machine. `state_dir` holds one small record for each while it lives.

    Files of a sandbox lie in memory and count towards its memory limit; with such a limit its disk is at
    most three quarters of it, so that a full disk shows as one and not as killed processes. Who names no
    limits gets those of `sandboxes.values`.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = Path(state_dir).absolute()
        digest = hashlib.sha256(os.fsencode(self._state_dir)).hexdigest()[:8]
        self._cgroup_prefix = f"valkyrie-{digest}-"
        self._sandboxes: dict[str, LocalSandbox] = {}
        self._networks: dict[str, network.Attachment] = {}
        self._keeper: KeeperLink | None = None
        self._keeper_mark: ProcessIdentity | None = None
        self._starting = asyncio.Lock()
        self._swept: list[records.SandboxRecord] | None = None

    async def create_sandbox(self, request: SandboxCreateRequest) -> Sandbox:
        try:
            return await self._create(request)
        except (OSError, SandboxError) as error:
            if not _lacks_files(error):
                raise
            message = f"this machine has too many open files for another sandbox (`ulimit -n`): {error}"
            raise SandboxCapacityError(message) from error

    async def _create(self, request: SandboxCreateRequest) -> Sandbox:
        if not probe.known():
            await asyncio.to_thread(probe.machine)
        machine = probe.machine()
        probe.refuse_unsupported(request, machine)
        keeper = await self._running_keeper(machine)
        record = self._new_record(request)
        spec = probe.sandbox_spec(request, machine, record)
        limits = probe.group_limits(request)
        try:
            group = await to_the_end(asyncio.to_thread(Cgroup.create, record.cgroup, limits, machine.support))
        except asyncio.CancelledError:
            await to_the_end(asyncio.to_thread(Cgroup.reopen(record.cgroup, machine.support).remove))
            raise
        spec["groups"] = [str(Path(path).parent) for path in group.procs_files]
        try:
            return await self._start(keeper, record, spec, request)
        except BaseException:
            # The keeper removes the groups of sandboxes it was told of; this one may not be among them.
            with suppress(SandboxError):
                await to_the_end(asyncio.to_thread(group.remove))
            raise

    def _new_record(self, request: SandboxCreateRequest) -> records.SandboxRecord:
        assert self._keeper_mark is not None
        sandbox_id = token_hex(6)
        return records.SandboxRecord(
            id=sandbox_id,
            name=request.name or sandbox_id,
            labels=request.labels,
            created_at=time.time(),
            cgroup=self._cgroup_prefix + records.marked_name(self._keeper_mark, sandbox_id),
            keeper=self._keeper_mark,
        )

    async def _start(
        self,
        keeper: KeeperLink,
        record: records.SandboxRecord,
        spec: processes.Message,
        request: SandboxCreateRequest,
    ) -> LocalSandbox:
        sandbox = LocalSandbox(keeper, record, spec, request.env_vars)
        self._sandboxes[sandbox.id] = sandbox
        try:
            async with asyncio.timeout(request.create_timeout):
                await sandbox.started()
                if request.network_policy == "public":
                    await self._plug_in(sandbox, keeper, request.allowed_networks)
        except BaseException as error:
            await to_the_end(self._end(sandbox))
            if isinstance(error, TimeoutError):
                raise SandboxError(f"no sandbox within {request.create_timeout:g} s") from error
            raise
        return sandbox

    async def _plug_in(self, sandbox: LocalSandbox, keeper: KeeperLink, allowed: Sequence[str]) -> None:
        folder = self._network_folder(sandbox.id)
        folder.mkdir(mode=0o700)
        settings = network.NetworkSettings(allow=allowed)
        attachment = await network.attach(sandbox.first_pid, keeper.userns_fd, folder, settings)
        self._networks[sandbox.id] = attachment

    def _network_folder(self, sandbox_id: str) -> Path:
        assert self._keeper_mark is not None
        return self._state_dir / records.marked_name(self._keeper_mark, f"{sandbox_id}.net")

    async def _end(self, sandbox: LocalSandbox) -> None:
        attachment = self._networks.pop(sandbox.id, None)
        try:
            await sandbox.end()
        finally:
            if attachment is not None:
                await attachment.close()
            if sandbox.networked:
                await asyncio.to_thread(shutil.rmtree, self._network_folder(sandbox.id), ignore_errors=True)
            self._sandboxes.pop(sandbox.id, None)

    async def get_sandbox(self, sandbox_id: str) -> Sandbox:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None and sandbox.state == "started":
            return sandbox
        if sandbox is None:
            for record in await self._foreign():
                if record.id == sandbox_id:
                    return self._foreign_sandbox(record)
        raise SandboxNotFoundError(f"no sandbox {sandbox_id} on this machine")

    async def delete_sandbox(self, sandbox_id: str) -> None:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None:
            await to_the_end(self._end(sandbox))
            return
        for record in await self._foreign():
            if record.id == sandbox_id:
                await to_the_end(asyncio.to_thread(records.end_foreign, self._state_dir, record))

    async def list_sandboxes(self, query: SandboxQuery | None = None) -> AsyncIterator[Sandbox]:
        query = query or SandboxQuery()
        own: list[Sandbox] = [sandbox for sandbox in self._sandboxes.values() if sandbox.state == "started"]
        for sandbox in own + [self._foreign_sandbox(record) for record in await self._foreign()]:
            if _matches(sandbox, query):
                yield sandbox

    async def reap(self, labels: Mapping[str, str]) -> int:
        """End what earlier processes left under these labels; those a sweep already ended count too."""
        ended = await super().reap(labels)
        swept = self._swept or []
        mine = [record for record in swept if labels.items() <= record.labels.items()]
        self._swept = [record for record in swept if record not in mine]
        return ended + len(mine)

    def capabilities(self) -> Capabilities:
        found = probe.capabilities()
        host_capabilities.write_capabilities(self._state_dir, found)
        return found

    def expected_capabilities(self) -> Capabilities:
        if probe.known():
            return probe.capabilities()
        return host_capabilities.read_capabilities(self._state_dir) or probe.assumed_capabilities()

    @property
    def admission_pool_id(self) -> str:
        return "local"

    async def close(self) -> None:
        """End every sandbox and the keeper, and leave nothing of them in the state folder."""
        await to_the_end(self._close())

    async def _close(self) -> None:
        ends = [self._end(sandbox) for sandbox in list(self._sandboxes.values())]
        outcomes = await asyncio.gather(*ends, return_exceptions=True)
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.close()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _running_keeper(self, machine: probe.Machine) -> KeeperLink:
        if self._keeper is not None and self._keeper.alive:
            return self._keeper
        async with self._starting:
            if self._keeper is None or not self._keeper.alive:
                await to_the_end(self._start_keeper(machine))
            assert self._keeper is not None
            return self._keeper

    async def _start_keeper(self, machine: probe.Machine) -> None:
        if self._keeper is not None:
            await self._keeper.close()
            self._keeper = None
        await self._sweep()
        self._keeper = await KeeperLink.start(machine.mode, self._state_dir, machine.support)
        self._keeper_mark = ProcessIdentity.of(self._keeper.pid)

    async def _sweep(self) -> None:
        swept = await asyncio.to_thread(records.end_orphans, self._state_dir, self._cgroup_prefix)
        self._swept = [*(self._swept or ()), *swept]

    async def _foreign(self) -> list[records.SandboxRecord]:
        if self._swept is None:
            await to_the_end(self._sweep())
        own = self._keeper.pid if self._keeper is not None else None
        found = await asyncio.to_thread(records.foreign_records, self._state_dir, own)
        if found and not probe.known():
            await asyncio.to_thread(probe.machine)
        return found

    def _foreign_sandbox(self, record: records.SandboxRecord) -> ForeignSandbox:
        machine = probe.machine()
        files = Cgroup.reopen(record.cgroup, machine.support).procs_files
        groups = [str(Path(path).parent) for path in files if Path(path).exists()]
        return ForeignSandbox(record, machine.mode, groups)


def _matches(sandbox: Sandbox, query: SandboxQuery) -> bool:
    if not query.labels.items() <= dict(sandbox.labels or {}).items():
        return False
    before = query.created_at_lte
    return before is None or (sandbox.created_at is not None and sandbox.created_at <= before)


def _lacks_files(error: BaseException | None) -> bool:
    """Return whether a call failed, or what it says came about, for lack of file descriptors."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__
    return False
