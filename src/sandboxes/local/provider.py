"""Sandboxes on this machine, made with bubblewrap: what it can do is found out by trying, requests become
what the keeper is told."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from secrets import token_hex

from sandboxes.cgroups import Cgroup, CgroupSupport, detect_cgroups, read_capabilities, write_capabilities
from sandboxes.errors import SandboxCapacityError, SandboxError, SandboxNotFoundError, SandboxUnsupportedError
from sandboxes.local import network, processes, root_filesystem, warden
from sandboxes.local.keeper_link import KeeperLink
from sandboxes.local.processes import OUR_OWN_PIDS, OUR_OWN_PIDS_INSIDE, ProcessIdentity
from sandboxes.local.sandbox import (
    RECORD_SUFFIX,
    ForeignSandbox,
    LocalSandbox,
    SandboxRecord,
    end_foreign,
    end_orphans,
    foreign_records,
    marked_name,
)
from sandboxes.protocol import Sandbox, SandboxProvider, host_memory_mb, with_defaults
from sandboxes.streams import to_the_end
from sandboxes.types import Capabilities, HostSource, Mount, SandboxCreateRequest, SandboxLimits, SandboxQuery

_TRY_SECONDS = 20
_SYSCTLS = Path("/proc/sys")
_NAMESPACES = ("--unshare-user", "--uid", "0", "--gid", "0", "--disable-userns")
_WALLS = (
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
)
_FORK_AS_THE_SECOND = ("prlimit", "--nproc=2", "/bin/sh", "-c", "/bin/true; :")

_APPARMOR_PROFILE = r"abi <abi/4.0>,\nprofile bwrap /usr/bin/bwrap flags=(unconfined) {\n  userns,\n}\n"
_SWITCHES = (
    (
        "kernel.apparmor_restrict_unprivileged_userns",
        "1",
        f"printf '{_APPARMOR_PROFILE}' | sudo tee /etc/apparmor.d/bwrap"
        " && sudo apparmor_parser -r /etc/apparmor.d/bwrap (an AppArmor profile that lets bwrap alone make"
        " them), or sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (lets everyone)",
    ),
    ("kernel.unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    ("user.max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
)
_IN_A_CONTAINER = (
    "in a container start it with --privileged, or with --security-opt seccomp=unconfined --security-opt"
    " apparmor=unconfined --security-opt systempaths=unconfined; elsewhere run as root"
)


def userns_problem(switches: Path = _SYSCTLS) -> str | None:
    """Return why bubblewrap cannot make a sandbox for this user, with the way out; None when it can."""
    done = _try_bwrap(*_NAMESPACES, "--ro-bind", "/", "/", *_WALLS, "--", "/bin/true")
    if done.returncode == 0:
        return None
    said = done.stderr.strip().removeprefix("bwrap: ") or f"exit code {done.returncode}"
    if "nknown option" in said:
        version = _try_bwrap("--version").stdout.strip() or "this bubblewrap"
        return f"{version} is too old ({said}); install bubblewrap 0.8 or newer, or run as root"
    ways = [f"{name} is {value}: {way}" for name, value, way in userns_restrictions(switches)]
    return f"bubblewrap may not make a sandbox for this user ({said}); {'; '.join(ways) or _IN_A_CONTAINER}"


def userns_restrictions(switches: Path = _SYSCTLS) -> list[tuple[str, str, str]]:
    """The kernel's switches that are set against user namespaces: name, value, way out."""
    found = []
    for name, against, way_out in _SWITCHES:
        try:
            value = (switches / name.replace(".", "/")).read_text().strip()
        except OSError:
            continue  # this kernel does not have it
        if value == against:
            found.append((name, value, way_out))
    return found


def counts_processes() -> bool:
    """Return whether the limit on processes counts those of one user namespace only, as it does from Linux
    5.14."""
    # The second process of a new namespace, while its user has at least three.
    return _try_bwrap(*_NAMESPACES, "--ro-bind", "/", "/", "--", *_FORK_AS_THE_SECOND).returncode == 0


def _try_bwrap(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [warden.BWRAP, *arguments]
    return subprocess.run(argv, env={}, capture_output=True, text=True, timeout=_TRY_SECONDS, cwd="/")


# What this machine can do for local sandboxes, found out by trying, and the way out of what it cannot.

_SOURCE_ROOT = str(Path(__file__).resolve().parents[2])
_TRY_SHIFT = (
    "import sys; sys.path.append(sys.argv[1]);"
    " from sandboxes.local.root_filesystem import try_shift; try_shift()"
)

_ISOLATION = {
    root_filesystem.SHIFTED: "bubblewrap: own user (ids shifted by 1,000,000), mount, pid, network, ipc"
    " and uts namespaces over a private copy-on-write view of this machine's system files",
    root_filesystem.PLAIN: "bubblewrap without a user namespace: own mount, pid, network, ipc and uts"
    " namespaces, capabilities dropped, kernel settings read-only",
    root_filesystem.ROOTLESS: "bubblewrap as an ordinary user: own user, mount, pid, network, ipc and uts"
    " namespaces, this machine's system files read-only",
}

_NO_BWRAP = f"bubblewrap is not installed ({warden.BWRAP}): apt install bubblewrap"
_AS_ROOT = "run as root, or --provider docker once it is there"
_ROOTLESS_REMARKS = (
    ("a writable view of the whole system (apt, useradd)", _AS_ROOT),
    ("users besides root in a sandbox", _AS_ROOT),
)


@dataclass(frozen=True)
class Machine:
    """How sandboxes are made here, or why they cannot be."""

    mode: str
    support: CgroupSupport
    problem: str | None = None
    counts_apart: bool = False
    """The limit on processes by rlimit counts each sandbox by itself."""
    remarks: tuple[tuple[str, str], ...] = ()


_found: list[Machine] = []
_finding = threading.Lock()


def is_machine_known() -> bool:
    """Return whether `machine` answers at once."""
    return bool(_found)


def probe_machine() -> Machine:
    """Find out once per process. The first call starts a few short programs."""
    if not _found:
        with _finding:
            if not _found:
                _found.append(_find_out())
    return _found[0]


def _find_out() -> Machine:
    support = _that_limit(detect_cgroups())
    if not os.access(warden.BWRAP, os.X_OK):
        return Machine(root_filesystem.ROOTLESS, support, _NO_BWRAP)
    if os.geteuid() != 0:
        problem = userns_problem()
        counts_apart = problem is None and support.pids is None and counts_processes()
        return Machine(root_filesystem.ROOTLESS, support, problem, counts_apart, _ROOTLESS_REMARKS)
    problem = _try_shift()
    if problem is None:
        return Machine(root_filesystem.SHIFTED, support)
    remark = (f"user namespace for sandboxes ({problem})", "Linux 5.19 or newer with idmapped mounts on /usr")
    return Machine(root_filesystem.PLAIN, support, remarks=(remark,))


def _that_limit(support: CgroupSupport) -> CgroupSupport:
    """Without a tree that is good for killing only: sandboxes die with their first process anyway."""
    places = tuple(place for place in support.places if place.controllers != {"kill"})
    return replace(support, places=places or support.places)


def _try_shift() -> str | None:
    argv = [sys.executable, "-I", "-S", "-c", _TRY_SHIFT, _SOURCE_ROOT]
    done = subprocess.run(argv, env={}, capture_output=True, text=True, timeout=_TRY_SECONDS, cwd="/")
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["unknown"])[-1]


def probed_capabilities() -> Capabilities:
    """The declaration recorded with every run."""
    return _declared(probe_machine())


def assumed_capabilities() -> Capabilities:
    """Return what a machine usually can do, from what is seen without starting a program."""
    here = Machine(
        root_filesystem.SHIFTED if os.geteuid() == 0 else root_filesystem.ROOTLESS, CgroupSupport()
    )
    if not os.access(warden.BWRAP, os.X_OK):
        here = replace(here, problem=_NO_BWRAP)
    elif os.geteuid() != 0:
        here = replace(here, remarks=_ROOTLESS_REMARKS)
    declared = _declared(here)
    return declared._replace(
        isolation=f"{declared.isolation} (not tried on this machine yet: valk doctor)",
        enforcement={**dict.fromkeys(declared.enforcement, "not tried yet"), "disk": _disk(True)},
    )


def _declared(here: Machine) -> Capabilities:
    missing = list(here.remarks)
    no_network = network.why_unavailable()
    if no_network is not None:
        missing.append(("network 'public'", no_network))
    missing += [
        (f"cgroup for {'cpus' if name == 'cpu' else name}", reason)
        for name, reason in here.support.reasons.items()
        if name != "kill"
    ]
    return Capabilities(
        provider="local",
        isolation=_ISOLATION[here.mode],
        writable_system=here.mode != root_filesystem.ROOTLESS,
        users=here.mode != root_filesystem.ROOTLESS,
        mounts=True,
        copy_on_write=here.mode != root_filesystem.ROOTLESS,
        carries_work=here.problem is None,
        networks=frozenset({"none"} if no_network else {"none", "public"}),
        enforcement=_enforcement(here),
        missing=tuple(missing),
        problem=here.problem,
    )


def _enforcement(here: Machine) -> Mapping[str, str]:
    support = here.support
    return {
        "cpus": support.cpu or "not enforced",
        "memory": support.memory or "private memory of each process (rlimit), not of the sandbox",
        "pids": support.pids or _pids_by_rlimit(here),
        "disk": _disk(bool(support.memory)),
    }


def _disk(counts_as_memory: bool) -> str:
    files = "files count towards memory" if counts_as_memory else "files do not count towards memory"
    return f"size of an in-memory file system, at most 3/4 of the memory limit; {files}"


def _pids_by_rlimit(here: Machine) -> str:
    if here.mode == root_filesystem.PLAIN:
        return "not enforced"  # no such limit holds for the machine's root
    if here.counts_apart:
        return "per sandbox (rlimit, counted in its user namespace)"
    return "all processes of the user together (rlimit), not per sandbox"


# From what is asked for to what the keeper is told, and clear words for what cannot be had here.

DEFAULT_PIDS_BY_RLIMIT = 1024
"""Where the kernel has no group to count in, all sandboxes' processes count as the user's own, too."""
_MOST_VIEWS = 60
"""The layers of each go to the engine as descriptors, in one message."""


def refuse_unsupported(request: SandboxCreateRequest, machine: Machine) -> None:
    """Raise for what this machine or this provider cannot give."""
    if machine.problem is not None:
        raise SandboxUnsupportedError(f"local sandboxes do not work here: {machine.problem}")
    source = request.source
    if not isinstance(source, HostSource):
        raise SandboxUnsupportedError(
            f"the local provider cannot run a source of type {source.type!r};"
            " use --provider docker, or --host-image to run on this machine's own system files"
        )
    if source.rootfs is not None and machine.mode == root_filesystem.ROOTLESS:
        raise SandboxUnsupportedError(
            "a root file system in a folder needs root, or subordinate ids for this user:"
            " run as root, or use --provider docker"
        )
    if sum(mount.copy_on_write for mount in request.mounts) > _MOST_VIEWS:
        raise SandboxUnsupportedError(f"a sandbox has at most {_MOST_VIEWS} copy-on-write mounts")
    for mount in request.mounts:
        if not Path(mount.source).is_dir():
            raise SandboxUnsupportedError(f"{mount.source} is no folder that could be shown in a sandbox")
    for text in request.allowed_networks:
        try:
            ip_network(text)
        except ValueError as error:
            raise SandboxUnsupportedError(f"{text!r} cannot be an allowed network: {error}") from error
    policy = request.network_policy
    if policy == "allowlist":
        raise SandboxUnsupportedError(
            "the local provider has networks 'none' and 'public', no list of allowed hosts;"
            " use another provider"
        )
    if policy == "public" and (reason := network.why_unavailable()) is not None:
        raise SandboxUnsupportedError(f"network 'public' is not possible here: {reason}")


def group_limits(request: SandboxCreateRequest) -> SandboxLimits:
    """Return what the cgroup is told: the sandbox's limits with room for our own processes."""
    limits = _in_force(request)
    assert limits.pids is not None
    return SandboxLimits(cpus=limits.cpus, memory_mb=limits.memory_mb, pids=limits.pids + OUR_OWN_PIDS)


def _in_force(request: SandboxCreateRequest) -> SandboxLimits:
    return with_defaults(request.effective_limits, host_memory_mb())


def sandbox_spec(request: SandboxCreateRequest, machine: Machine, record: SandboxRecord) -> processes.Message:
    """Return what the keeper is told."""
    limits = _in_force(request)
    assert isinstance(request.source, HostSource)
    public = request.network_policy == "public"
    return {
        "id": record.id,
        "rootfs": request.source.rootfs,
        "disk_mb": limits.disk_mb,
        "memory_mb": limits.memory_mb,
        "separate": [_absolute(path) for path in request.separate_folders],
        "mounts": [(*_folders(mount), mount.sockets) for mount in request.mounts if not mount.copy_on_write],
        "views": [(*_folders(mount), _hidden(mount)) for mount in request.mounts if mount.copy_on_write],
        "resolv_conf": network.RESOLV_CONF if public else "",
        "network": public,
        "rlimits": _rlimits(limits, request.effective_limits.pids, machine),
        "record_name": record.id + RECORD_SUFFIX,
        "record": record.opening(),
        "boot": record.keeper.boot,
    }


def _folders(mount: Mount) -> tuple[str, str]:
    return os.path.realpath(mount.source), _absolute(mount.target)


def _hidden(mount: Mount) -> list[str]:
    """The outermost of the paths; what is below one of them is gone with it."""
    found: list[str] = []
    for path in sorted(mount.hidden):
        parts = path.split("/")
        if path.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
            raise SandboxUnsupportedError(f"{path!r} cannot be hidden; name a path below the folder")
        if not any(path.startswith(f"{outer}/") for outer in found):
            found.append(path)
    return found


def _absolute(path: str) -> str:
    if not path.startswith("/") or ".." in path.split("/") or path.strip("/") == "":
        raise SandboxUnsupportedError(
            f"{path!r} cannot be a folder of its own; name an absolute path below /"
        )
    return path


def _rlimits(limits: SandboxLimits, asked_pids: int | None, machine: Machine) -> dict[str, int]:
    """Weaker limits where there is no cgroup for them."""
    found: dict[str, int] = {}
    if machine.support.memory is None and limits.memory_mb is not None:
        # Not the address space: Node, Java and Go reserve far more of it than they ever use.
        found["data"] = limits.memory_mb << 20
    if machine.support.pids is None:
        pids = DEFAULT_PIDS_BY_RLIMIT if asked_pids is None else asked_pids
        found["nproc"] = pids + (OUR_OWN_PIDS_INSIDE if machine.counts_apart else _tasks_of(os.geteuid()))
    return found


def _tasks_of(uid: int) -> int:
    """Return how many processes and threads a user has."""
    count = 0
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and process.stat().st_uid == uid:
                count += len(os.listdir(process / "task"))  # noqa: PTH208 - names are enough
        except OSError:
            continue  # it ended just now
    return count


# Sandboxes on this machine, made with bubblewrap.


class LocalProvider(SandboxProvider):
    """Makes sandboxes on this machine. `state_dir` holds one small record for each while it lives.

    Files of a sandbox lie in memory and count towards its memory limit; with such a limit its disk is at
    most three quarters of it, so that a full disk shows as one and not as killed processes. Who names no
    limits gets those of `sandboxes.protocol`.
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
        self._swept: list[SandboxRecord] | None = None

    async def create_sandbox(self, request: SandboxCreateRequest) -> Sandbox:
        try:
            return await self._create(request)
        except (OSError, SandboxError) as error:
            if not _lacks_files(error):
                raise
            message = f"this machine has too many open files for another sandbox (`ulimit -n`): {error}"
            raise SandboxCapacityError(message) from error

    async def _create(self, request: SandboxCreateRequest) -> Sandbox:
        if not is_machine_known():
            await asyncio.to_thread(probe_machine)
        machine = probe_machine()
        refuse_unsupported(request, machine)
        keeper = await self._running_keeper(machine)
        record = self._new_record(request)
        spec = sandbox_spec(request, machine, record)
        limits = group_limits(request)
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

    def _new_record(self, request: SandboxCreateRequest) -> SandboxRecord:
        assert self._keeper_mark is not None
        sandbox_id = token_hex(6)
        return SandboxRecord(
            id=sandbox_id,
            name=request.name or sandbox_id,
            labels=request.labels,
            created_at=time.time(),
            cgroup=self._cgroup_prefix + marked_name(self._keeper_mark, sandbox_id),
            keeper=self._keeper_mark,
        )

    async def _start(
        self,
        keeper: KeeperLink,
        record: SandboxRecord,
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
        return self._state_dir / marked_name(self._keeper_mark, f"{sandbox_id}.net")

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
                await to_the_end(asyncio.to_thread(end_foreign, self._state_dir, record))

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
        found = probed_capabilities()
        write_capabilities(self._state_dir, found)
        return found

    def expected_capabilities(self) -> Capabilities:
        if is_machine_known():
            return probed_capabilities()
        return read_capabilities(self._state_dir) or assumed_capabilities()

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

    async def _running_keeper(self, machine: Machine) -> KeeperLink:
        if self._keeper is not None and self._keeper.alive:
            return self._keeper
        async with self._starting:
            if self._keeper is None or not self._keeper.alive:
                await to_the_end(self._start_keeper(machine))
            assert self._keeper is not None
            return self._keeper

    async def _start_keeper(self, machine: Machine) -> None:
        if self._keeper is not None:
            await self._keeper.close()
            self._keeper = None
        await self._sweep()
        self._keeper = await KeeperLink.start(machine.mode, self._state_dir, machine.support)
        self._keeper_mark = ProcessIdentity.of(self._keeper.pid)

    async def _sweep(self) -> None:
        swept = await asyncio.to_thread(end_orphans, self._state_dir, self._cgroup_prefix)
        self._swept = [*(self._swept or ()), *swept]

    async def _foreign(self) -> list[SandboxRecord]:
        if self._swept is None:
            await to_the_end(self._sweep())
        own = self._keeper.pid if self._keeper is not None else None
        found = await asyncio.to_thread(foreign_records, self._state_dir, own)
        if found and not is_machine_known():
            await asyncio.to_thread(probe_machine)
        return found

    def _foreign_sandbox(self, record: SandboxRecord) -> ForeignSandbox:
        machine = probe_machine()
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
