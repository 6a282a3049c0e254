"""Find out by trying what this machine can do for local sandboxes, and turn requests into what the keeper is
told."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path

from sandboxes import cgroups
from sandboxes import values as defaults
from sandboxes.errors import SandboxUnsupportedError
from sandboxes.local import network, processes, root_filesystem, startup
from sandboxes.local.processes import OUR_OWN_PIDS, OUR_OWN_PIDS_INSIDE
from sandboxes.local.records import RECORD_SUFFIX, SandboxRecord
from sandboxes.types import Capabilities, HostSource, Mount, SandboxCreateRequest, SandboxLimits

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
    argv = [startup.BWRAP, *arguments]
    return subprocess.run(argv, env={}, capture_output=True, text=True, timeout=_TRY_SECONDS, cwd="/")


# What this machine can do for local sandboxes, found out by trying, and the way out of what it cannot.

_SOURCE_ROOT = str(Path(__file__).resolve().parents[2])
_TRY_SHIFT = "import sys; sys.path.append(sys.argv[1]); from sandboxes.local.probe_shift import main; main()"

_ISOLATION = {
    root_filesystem.SHIFTED: "bubblewrap: own user (ids shifted by 1,000,000), mount, pid, network, ipc"
    " and uts namespaces over a private copy-on-write view of this machine's system files",
    root_filesystem.PLAIN: "bubblewrap without a user namespace: own mount, pid, network, ipc and uts"
    " namespaces, capabilities dropped, kernel settings read-only",
    root_filesystem.ROOTLESS: "bubblewrap as an ordinary user: own user, mount, pid, network, ipc and uts"
    " namespaces, this machine's system files read-only",
}

_NO_BWRAP = f"bubblewrap is not installed ({startup.BWRAP}): apt install bubblewrap"
_AS_ROOT = "run as root, or --provider docker once it is there"
_ROOTLESS_REMARKS = (
    ("a writable view of the whole system (apt, useradd)", _AS_ROOT),
    ("users besides root in a sandbox", _AS_ROOT),
)


@dataclass(frozen=True)
class Machine:
    """How sandboxes are made here, or why they cannot be."""

    mode: str
    support: cgroups.CgroupSupport
    problem: str | None = None
    counts_apart: bool = False
    """The limit on processes by rlimit counts each sandbox by itself."""
    remarks: tuple[tuple[str, str], ...] = ()


_found: list[Machine] = []
_finding = threading.Lock()


def known() -> bool:
    """Return whether `machine` answers at once."""
    return bool(_found)


def machine() -> Machine:
    """Find out once per process. The first call starts a few short programs."""
    if not _found:
        with _finding:
            if not _found:
                _found.append(_find_out())
    return _found[0]


def _find_out() -> Machine:
    support = _that_limit(cgroups.detect())
    if not os.access(startup.BWRAP, os.X_OK):
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


def _that_limit(support: cgroups.CgroupSupport) -> cgroups.CgroupSupport:
    """Without a tree that is good for killing only: sandboxes die with their first process anyway."""
    places = tuple(place for place in support.places if place.controllers != {"kill"})
    return replace(support, places=places or support.places)


def _try_shift() -> str | None:
    argv = [sys.executable, "-I", "-S", "-c", _TRY_SHIFT, _SOURCE_ROOT]
    done = subprocess.run(argv, env={}, capture_output=True, text=True, timeout=_TRY_SECONDS, cwd="/")
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["unknown"])[-1]


def capabilities() -> Capabilities:
    """The declaration recorded with every run."""
    return _declared(machine())


def assumed_capabilities() -> Capabilities:
    """Return what a machine usually can do, from what is seen without starting a program."""
    here = Machine(
        root_filesystem.SHIFTED if os.geteuid() == 0 else root_filesystem.ROOTLESS, cgroups.CgroupSupport()
    )
    if not os.access(startup.BWRAP, os.X_OK):
        here = replace(here, problem=_NO_BWRAP)
    elif os.geteuid() != 0:
        here = replace(here, remarks=_ROOTLESS_REMARKS)
    declared = _declared(here)
    return replace(
        declared,
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
    return defaults.with_defaults(request.effective_limits, defaults.host_memory_mb())


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
