"""What this machine can do for local sandboxes, found out by trying, and the way out of what it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes import cgroups
from sandboxes.local import ground, network
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


@dataclass(frozen=True)
class Machine:
    """How sandboxes are made here, or why they cannot be."""

    mode: str
    support: cgroups.CgroupSupport
    problem: str | None = None
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
    if shutil.which("bwrap") is None:
        return Machine(ground.ROOTLESS, support, "bubblewrap is not installed: apt install bubblewrap")
    if os.geteuid() != 0:
        return Machine(ground.ROOTLESS, support, _try_rootless(), _rootless_remarks())
    problem = _try_shift()
    if problem is None:
        return Machine(ground.SHIFTED, support)
    remark = (f"user namespace for sandboxes ({problem})", "Linux 5.19 or newer with idmapped mounts on /usr")
    return Machine(ground.PLAIN, support, None, (remark,))


def _that_limit(support: cgroups.CgroupSupport) -> cgroups.CgroupSupport:
    """Without a tree that is good for killing only: sandboxes die with their first process anyway."""
    places = tuple(place for place in support.places if place.controllers != {"kill"})
    return replace(support, places=places or support.places)


def _try_shift() -> str | None:
    argv = [sys.executable, "-I", "-S", "-c", _TRY_SHIFT, _SOURCE_ROOT]
    done = subprocess.run(argv, env={}, capture_output=True, text=True, timeout=_TRY_SECONDS, cwd="/")
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["unknown"])[-1]


def _try_rootless() -> str | None:
    argv = ["bwrap", "--unshare-user", "--uid", "0", "--ro-bind", "/", "/", "--disable-userns", "true"]
    done = subprocess.run(argv, env={}, capture_output=True, text=True, timeout=_TRY_SECONDS, cwd="/")
    if done.returncode == 0:
        return None
    return (
        f"this user may not make user namespaces ({done.stderr.strip()}); as root:"
        " sysctl kernel.apparmor_restrict_unprivileged_userns=0 kernel.unprivileged_userns_clone=1"
    )


def _rootless_remarks() -> tuple[tuple[str, str], ...]:
    return (
        (
            "a writable view of the whole system (apt, useradd)",
            "run as root, or use --provider docker",
        ),
    )


def capabilities() -> Capabilities:
    """The declaration recorded with every run."""
    here = machine()
    missing = list(here.remarks)
    no_network = network.why_unavailable()
    if no_network is not None:
        missing.append(("network 'public'", no_network))
    missing += [
        (f"limit on {name}", reason) for name, reason in here.support.reasons.items() if name != "kill"
    ]
    return Capabilities(
        provider="local",
        isolation=_ISOLATION[here.mode],
        writable_system=here.mode != ground.ROOTLESS,
        networks=frozenset({"none"} if no_network else {"none", "public"}),
        enforcement=_enforcement(here.support),
        missing=tuple(missing),
        problem=here.problem,
    )


def _enforcement(support: cgroups.CgroupSupport) -> Mapping[str, str]:
    return {
        "cpus": support.cpu or "not enforced",
        "memory": support.memory or "address space per process (rlimit), not per sandbox",
        "pids": support.pids or "per user (rlimit), not per sandbox",
        "disk": "size of an in-memory file system; files count towards memory, so at most 3/4 of its limit",
    }
