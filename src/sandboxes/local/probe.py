"""What this machine can do for local sandboxes, found out by trying, and the way out of what it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes import cgroups
from sandboxes.local import ground, network, startup, userns
from sandboxes.types import Capabilities

_SOURCE_ROOT = str(Path(__file__).resolve().parents[2])
_TRY_SECONDS = 20
_TRY_SHIFT = "import sys; sys.path.append(sys.argv[1]); from sandboxes.local.probe_shift import main; main()"

_ISOLATION = {
    ground.SHIFTED: "bubblewrap: own user (ids shifted by 1,000,000), mount, pid, network, ipc and uts"
    " namespaces over a private copy-on-write view of this machine's system files",
    ground.PLAIN: "bubblewrap without a user namespace: own mount, pid, network, ipc and uts namespaces,"
    " capabilities dropped, kernel settings read-only",
    ground.ROOTLESS: "bubblewrap as an ordinary user: own user, mount, pid, network, ipc and uts namespaces,"
    " this machine's system files read-only",
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
    """Whether `machine` answers at once."""
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
        return Machine(ground.ROOTLESS, support, _NO_BWRAP)
    if os.geteuid() != 0:
        problem = userns.problem()
        counts_apart = problem is None and support.pids is None and userns.counts_processes()
        return Machine(ground.ROOTLESS, support, problem, counts_apart, _ROOTLESS_REMARKS)
    problem = _try_shift()
    if problem is None:
        return Machine(ground.SHIFTED, support)
    remark = (f"user namespace for sandboxes ({problem})", "Linux 5.19 or newer with idmapped mounts on /usr")
    return Machine(ground.PLAIN, support, remarks=(remark,))


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
    here = Machine(ground.SHIFTED if os.geteuid() == 0 else ground.ROOTLESS, cgroups.CgroupSupport())
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
        writable_system=here.mode != ground.ROOTLESS,
        users=here.mode != ground.ROOTLESS,
        mounts=True,
        copy_on_write=here.mode != ground.ROOTLESS,
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
    if here.mode == ground.PLAIN:
        return "not enforced"  # no such limit holds for the machine's root
    if here.counts_apart:
        return "per sandbox (rlimit, counted in its user namespace)"
    return "all processes of the user together (rlimit), not per sandbox"
