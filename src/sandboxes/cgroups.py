"""Find out which limits by cgroup this machine can set, set them, and end process trees by them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any, Literal

from sandboxes.errors import SandboxError
from sandboxes.local.processes import boot_id
from sandboxes.protocol import Capabilities
from sandboxes.types import SandboxLimits

Mechanism = Literal["cgroup v2", "cgroup v1"]
Controller = Literal["memory", "pids", "cpu", "kill"]

PARENT = "valkyrie"
"""Every group of ours lies in a group of this name, which is made once and then stays."""
PREFIX = "valkyrie-"

_DETECTING = Lock()
_LIMITS: tuple[Controller, ...] = ("memory", "pids", "cpu")
_ADVICE = (
    "run as root, or inside a delegated group: systemd-run --user --scope -p Delegate=yes valkyrie …"
    " (in a container: --privileged)"
)
_CONTROL_FILES: Mapping[tuple[Mechanism, Controller], str] = {
    ("cgroup v2", "memory"): "memory.max",
    ("cgroup v2", "pids"): "pids.max",
    ("cgroup v2", "cpu"): "cpu.max",
    ("cgroup v1", "memory"): "memory.limit_in_bytes",
    ("cgroup v1", "pids"): "pids.max",
    ("cgroup v1", "cpu"): "cpu.cfs_quota_us",
    ("cgroup v1", "kill"): "freezer.state",
}


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup tree: where it is, where this process is in it, which controllers it has."""

    mechanism: Mechanism
    mount: str
    own: str
    """Absolute path of this process's own group; equal to `mount` when that cannot be seen."""
    controllers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CgroupParent:
    """A folder in which groups can be made, and what can be controlled there."""

    mechanism: Mechanism
    parent: str
    controllers: frozenset[Controller]


@dataclass(frozen=True, slots=True)
class CgroupSupport:
    """For each kind of control the mechanism that works here, or None and the reason why not."""

    memory: Mechanism | None = None
    pids: Mechanism | None = None
    cpu: Mechanism | None = None
    kill: Mechanism | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why something is None, and what to do about it."""
    places: tuple[CgroupParent, ...] = ()


def detect_cgroups() -> CgroupSupport:
    """Return what works for this process, proven by making a group, putting a process in, and removing it."""
    # One answer for all threads: groups made after one answer are looked for after another otherwise.
    with _DETECTING:
        return _detect_once()


@lru_cache(maxsize=1)
def _detect_once() -> CgroupSupport:
    try:
        hierarchies = parse_hierarchies(
            Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        )
    except OSError as error:
        return CgroupSupport(reasons=dict.fromkeys((*_LIMITS, "kill"), f"no cgroups: {error}"))
    return support_from(hierarchies)


def support_from(hierarchies: list[Hierarchy]) -> CgroupSupport:
    """Try each control in the trees that offer it, the unified one first."""
    found: dict[Controller, CgroupParent] = {}
    reasons: dict[str, str] = {}
    for hierarchy in sorted(hierarchies, key=lambda tree: tree.mechanism, reverse=True):
        wanted = {control for control in _offered(hierarchy) if control not in found}
        if wanted:
            place = _try_places(hierarchy, wanted, reasons)
            for control in place.controllers if place else ():
                found[control] = place  # type: ignore[assignment]
    for control in (*_LIMITS, "kill"):
        if control in found:
            reasons.pop(control, None)
        else:
            reasons.setdefault(control, f"no mounted cgroup tree offers it; {_ADVICE}")
    return CgroupSupport(
        **{control: place.mechanism for control, place in found.items()},
        reasons=reasons,
        places=tuple(dict.fromkeys(found.values())),
    )


def parse_hierarchies(mountinfo: str, membership: str) -> list[Hierarchy]:
    """The cgroup trees in the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`."""
    own_paths: dict[str, str] = {}
    for line in membership.splitlines():
        _, names, path = line.split(":", 2)
        own_paths.update(dict.fromkeys(names.split(","), path))
    trees: dict[str, Hierarchy] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, mount = (_unescape(text) for text in left.split(" ")[3:5])
        if kind == "cgroup2":
            own = _visible(own_paths.get("", "/"), root, mount)
            trees.setdefault(mount, Hierarchy("cgroup v2", mount, own))
            continue
        controllers = frozenset(options.split(",")) & {"memory", "pids", "cpu", "freezer"}
        if controllers:
            own = _visible(own_paths.get(min(controllers), "/"), root, mount)
            trees.setdefault(mount, Hierarchy("cgroup v1", mount, own, controllers))
    return list(trees.values())


def _visible(own: str, root: str, mount: str) -> str:
    """Return where the group `own` is seen, given that `root` of the tree is what is mounted at `mount`."""
    if root != "/":
        if own != root and not own.startswith(f"{root}/"):
            return mount
        own = own[len(root) :]
    return mount if ".." in own else (mount + own).rstrip("/")


def _unescape(text: str) -> str:
    return text.encode().decode("unicode_escape") if "\\" in text else text


def _offered(hierarchy: Hierarchy) -> set[Controller]:
    if hierarchy.mechanism == "cgroup v2":
        return {"memory", "pids", "cpu", "kill"}
    offered: set[Controller] = {control for control in _LIMITS if control in hierarchy.controllers}
    return offered | {"kill"} if "freezer" in hierarchy.controllers else offered


def _try_places(
    hierarchy: Hierarchy, wanted: set[Controller], reasons: dict[str, str]
) -> CgroupParent | None:
    """The place with the most controls, from the top of the tree down to the own group."""
    best: CgroupParent | None = None
    tried: list[CgroupParent] = []
    for folder in _candidates(hierarchy):
        try:
            place = _try_parent(hierarchy, folder, wanted)
        except OSError as error:
            for control in wanted:
                reasons[control] = f"{error.filename or folder}: {error.strerror}; {_ADVICE}"
            continue
        tried.append(place)
        for control in wanted - place.controllers:
            reasons[control] = f"not enabled for groups below {folder}; {_ADVICE}"
        if best is None or len(place.controllers) > len(best.controllers):
            best = place
        if place.controllers == wanted:
            break
    for place in tried:
        if place is not best:
            with suppress(OSError):  # in use by someone else
                Path(place.parent).rmdir()
    return best if best is not None and best.controllers else None


def _candidates(hierarchy: Hierarchy) -> Iterator[str]:
    yield hierarchy.mount
    below = hierarchy.own[len(hierarchy.mount) :].strip("/")
    parts = below.split("/") if below else []
    # On v1 only one's own group is delegated, if anything; on v2 any group above may be.
    start = 1 if hierarchy.mechanism == "cgroup v2" else max(len(parts), 1)
    for depth in range(start, len(parts) + 1):
        yield "/".join([hierarchy.mount, *parts[:depth]])


def _try_parent(hierarchy: Hierarchy, folder: str, wanted: set[Controller]) -> CgroupParent:
    parent = f"{folder}/{PARENT}"
    existed = Path(parent).is_dir()
    prepare_parent(parent, hierarchy.mechanism)
    # Not named like a sandbox's group: nobody may take it for a leftover.
    trial = f"{parent}/trial-{token_hex(8)}"
    try:
        Path(trial).mkdir()
        try:
            _prove_join(trial)
            return CgroupParent(
                hierarchy.mechanism, parent, frozenset(_working(hierarchy.mechanism, trial, wanted))
            )
        finally:
            _remove_trial(trial)
    except OSError:
        if not existed:
            Path(parent).rmdir()
        raise


def prepare_parent(parent: str, mechanism: Mechanism) -> None:
    """Make the group that holds ours, with all controllers it may pass on passed on."""
    Path(parent).mkdir(exist_ok=True)
    if mechanism == "cgroup v1":
        return
    for group in (Path(parent).parent, Path(parent)):
        offered = (group / "cgroup.controllers").read_text().split()
        enabled = (group / "cgroup.subtree_control").read_text().split()
        for control in _LIMITS:
            if control in offered and control not in enabled:
                try:
                    (group / "cgroup.subtree_control").write_text(f"+{control}")
                except OSError as error:
                    # A group with processes of its own cannot pass controllers on; they stay put.
                    if error.errno not in (errno.EBUSY, errno.EACCES, errno.EPERM, errno.EOPNOTSUPP):
                        raise


def _prove_join(group: str) -> None:
    """Put a process into the group: writing there may be allowed where moving processes is not."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={}) as process:
        Path(f"{group}/cgroup.procs").write_text(str(process.pid))
        process.kill()


def _remove_trial(group: str) -> None:
    deadline = time.monotonic() + 1.0
    while True:
        try:
            Path(group).rmdir()
        except OSError as error:
            # A process that was reaped just now may count for a moment longer.
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.001)
        else:
            return


def _working(mechanism: Mechanism, group: str, wanted: set[Controller]) -> Iterator[Controller]:
    files = {path.name for path in Path(group).iterdir()}
    for control in wanted:
        if mechanism == "cgroup v2" and control == "kill":
            usable = bool({"cgroup.kill", "cgroup.freeze"} & files)
        else:
            usable = _CONTROL_FILES[mechanism, control] in files
        if usable:
            yield control


# What a provider last found out about this machine, kept so that plans can say it without trying again.

_CAPABILITY_FILE = "capabilities.json"


def write_capabilities(folder: Path, found: Capabilities) -> None:
    """Keep what was found, for this boot and user; a folder that cannot be written keeps nothing.

    Written in place: half of it is nothing to `read`, and no draft is left by whoever is killed here.
    """
    text = json.dumps({"found_by": _finder(), **_to_json(found)})
    target = folder / _CAPABILITY_FILE
    with suppress(OSError):
        if folder.is_dir() and (not target.exists() or target.read_text() != text):
            target.write_text(text)


def read_capabilities(folder: Path) -> Capabilities | None:
    """Return what this user found since the machine started, or None."""
    try:
        kept = json.loads((folder / _CAPABILITY_FILE).read_text())
        return _from_json(kept) if kept.pop("found_by") == _finder() else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _finder() -> list[Any]:
    return [boot_id(), os.geteuid()]


def _to_json(found: Capabilities) -> Mapping[str, Any]:
    return {**found._asdict(), "networks": sorted(found.networks), "enforcement": dict(found.enforcement)}


def _from_json(kept: Mapping[str, Any]) -> Capabilities:
    missing = tuple((str(what), str(way)) for what, way in kept["missing"])
    return Capabilities(**{**kept, "networks": frozenset(kept["networks"]), "missing": missing})


# Limits by cgroup, and the one sure way to end a process tree.
#
# A sandbox's group is a folder in each tree that controls something. Calls here are a few file operations
# each; `kill` and `remove` may sleep for milliseconds while processes die, so call them in a thread when the
# group may hold any.

CPU_PERIOD_US = 100_000
PATIENCE_SECONDS = 10.0
"""How long killed processes may take to vanish."""


@dataclass(frozen=True, slots=True)
class _Group:
    """The sandbox's folder in one tree."""

    path: str
    mechanism: Mechanism
    controllers: frozenset[Controller]


class Cgroup:
    """One sandbox's groups in all trees that matter to it."""

    __slots__ = ("_groups", "_joined", "name")

    def __init__(self, name: str, groups: tuple[_Group, ...], joined: tuple[_Group, ...] = ()) -> None:
        self.name = name
        self._groups = groups
        self._joined = joined
        """Groups of the parent that a process joins as well; killing and removing leaves them alone."""

    @classmethod
    def create(cls, name: str, limits: SandboxLimits, support: CgroupSupport | None = None) -> Cgroup:
        """Make the groups and set the limits. What the machine cannot limit is left out."""
        name = name if name.startswith(PREFIX) else PREFIX + name
        wanted = _wanted(limits)
        made: list[_Group] = []
        try:
            for place in (support or detect_cgroups()).places:
                if place.controllers & wanted:
                    group = _Group(f"{place.parent}/{name}", place.mechanism, place.controllers)
                    _make(place, group.path)
                    made.append(group)
                    _set_limits(group, limits)
        except OSError as error:
            cls(name, tuple(made)).remove()
            raise SandboxError(f"cannot make cgroup {name}: {error}") from error
        return cls(name, tuple(made))

    @classmethod
    def find(cls, prefix: str = PREFIX, support: CgroupSupport | None = None) -> list[str]:
        """Return names of the groups that are there, whoever made them."""
        names: set[str] = set()
        for place in (support or detect_cgroups()).places:
            try:
                names.update(
                    path.name for path in Path(place.parent).iterdir() if path.name.startswith(prefix)
                )
            except FileNotFoundError:
                continue
        return sorted(name for name in names if name.startswith(PREFIX))

    @classmethod
    def reopen(cls, name: str, support: CgroupSupport | None = None) -> Cgroup:
        """The groups of that name which are there, whichever process made them; maybe none."""
        name = name if name.startswith(PREFIX) else PREFIX + name
        groups = (
            _Group(f"{place.parent}/{name}", place.mechanism, place.controllers)
            for place in (support or detect_cgroups()).places
        )
        return cls(name, tuple(group for group in groups if Path(group.path).is_dir()))

    @property
    def can_kill(self) -> bool:
        """Whether `kill` reaches whatever was put in, however it forks."""
        return any("kill" in group.controllers for group in self._groups)

    def child(self, name: str) -> Cgroup:
        """A group inside this one, for one command: the same limits, killed and removed by itself.

        Without a tree that can kill, it is a stand-in without groups of its own.
        """
        for group in self._groups:
            if "kill" in group.controllers:
                path = f"{group.path}/{name}"
                try:
                    Path(path).mkdir()
                except OSError as error:
                    raise SandboxError(f"cannot make cgroup {path}: {error}") from error
                own = _Group(path, group.mechanism, frozenset({"kill"}))
                return Cgroup(name, (own,), tuple(other for other in self._groups if other is not group))
        return Cgroup(name, (), self._groups)

    @property
    def procs_files(self) -> list[str]:
        """Files into each of which a process writes `0` to join."""
        return [f"{group.path}/cgroup.procs" for group in (*self._joined, *self._groups)]

    def add(self, pid: int) -> None:
        """Put a process, and all it will fork, into the groups."""
        for path in self.procs_files:
            _write(path, str(pid))

    def pids(self) -> list[int]:
        """The processes in the groups and in groups made below them."""
        found: set[int] = set()
        for group in self._groups:
            for folder in _tree(group.path):
                found.update(_pids_in(folder))
        return sorted(found)

    def oom_killed(self) -> bool:
        """Return whether the kernel killed something in here for lack of memory."""
        for group in self._groups:
            if "memory" in group.controllers:
                name = "memory.events" if group.mechanism == "cgroup v2" else "memory.oom_control"
                for line in _read(f"{group.path}/{name}").splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1]) > 0
        return False

    def kill(self) -> bool:
        """SIGKILL everything in the groups, forks in flight included; whether all were gone in time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        delay = 0.0002
        frozen = self._kill_at_once()
        try:
            while pids := self.pids():
                for pid in pids:
                    _kill(pid)
                # A task frozen by v1 dies only when thawed.
                self._thaw(frozen)
                if time.monotonic() > deadline:
                    return False
                time.sleep(delay)
                delay = min(delay * 2, 0.02)
                if self.pids():
                    frozen = self._kill_at_once()
            return True
        finally:
            self._thaw(frozen)

    def remove_if_empty(self) -> bool:
        """Remove the groups unless something is in them; whether they are gone."""
        gone = [_rmdir(group.path) for group in self._groups]
        return all(gone)

    def remove(self) -> None:
        """Remove the groups, and kill what is still in them."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        delay = 0.0002
        for group in self._groups:
            while not _rmdir(group.path):
                self._make_way()
                self.kill()
                for folder in _tree(group.path)[:0:-1]:
                    _rmdir(folder)
                if time.monotonic() > deadline:
                    raise SandboxError(f"cgroup {group.path} stays busy; its processes do not die")
                time.sleep(delay)
                delay = min(delay * 2, 0.02)

    def _make_way(self) -> None:
        """Let nothing fork any more, and double the memory limit, in groups that are about to go.

        A process that waits for memory in a full group dies only once it has it.
        """
        for group in self._groups:
            if "pids" in group.controllers:
                with suppress(OSError):
                    _write(f"{group.path}/pids.max", "0")
            if "memory" in group.controllers:
                for file in ("memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max"):
                    limit = _read(f"{group.path}/{file}").strip()
                    if limit.isdigit() and int(limit) < 1 << 60:
                        with suppress(OSError):
                            _write(f"{group.path}/{file}", str(2 * int(limit)))

    def _kill_at_once(self) -> str | None:
        """Kill the whole group in one go, or at least freeze it; the file that thaws it again."""
        for group in self._groups:
            if "kill" not in group.controllers:
                continue
            if group.mechanism == "cgroup v1":
                return _frozen(f"{group.path}/freezer.state", "FROZEN")
            try:
                _write(f"{group.path}/cgroup.kill", "1")
            except OSError:  # Linux before 5.14, or the group is gone
                return _frozen(f"{group.path}/cgroup.freeze", "1")
        return None

    def _thaw(self, path: str | None) -> None:
        if path is not None:
            try:
                _write(path, "THAWED" if path.endswith("freezer.state") else "0")
            except FileNotFoundError:
                pass


def _frozen(path: str, word: str) -> str | None:
    try:
        _write(path, word)
    except FileNotFoundError:
        return None
    return path


def _wanted(limits: SandboxLimits) -> set[Controller]:
    wanted: set[Controller] = {"kill"}
    if limits.memory_mb is not None:
        wanted.add("memory")
    if limits.pids is not None:
        wanted.add("pids")
    if limits.cpus is not None:
        wanted.add("cpu")
    return wanted


def _make(place: CgroupParent, path: str) -> None:
    try:
        Path(path).mkdir()
    except FileNotFoundError:
        prepare_parent(place.parent, place.mechanism)
        Path(path).mkdir()


def _set_limits(group: _Group, limits: SandboxLimits) -> None:
    unified = group.mechanism == "cgroup v2"
    if "memory" in group.controllers and limits.memory_mb is not None:
        amount = str(limits.memory_mb << 20)
        _write(f"{group.path}/memory.{'max' if unified else 'limit_in_bytes'}", amount)
        # v2 limits swap by itself, v1 memory and swap together.
        swap_file = "memory.swap.max" if unified else "memory.memsw.limit_in_bytes"
        try:
            _write(f"{group.path}/{swap_file}", "0" if unified else amount)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.EOPNOTSUPP):
                raise
    if "pids" in group.controllers and limits.pids is not None:
        _write(f"{group.path}/pids.max", str(limits.pids))
    if "cpu" in group.controllers and limits.cpus is not None:
        quota = max(int(limits.cpus * CPU_PERIOD_US), 1000)
        if unified:
            _write(f"{group.path}/cpu.max", f"{quota} {CPU_PERIOD_US}")
        else:
            _write(f"{group.path}/cpu.cfs_period_us", str(CPU_PERIOD_US))
            _write(f"{group.path}/cpu.cfs_quota_us", str(quota))


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        pieces = []
        while piece := os.read(fd, 1 << 16):
            pieces.append(piece)
    except OSError as error:
        if error.errno != errno.ENODEV:  # the group went away while it was read
            raise
    finally:
        os.close(fd)
    return b"".join(pieces).decode()


def _pids_in(folder: str) -> list[int]:
    # 0 stands for a process that cannot be seen from this pid namespace.
    return [pid for pid in map(int, _read(f"{folder}/cgroup.procs").split()) if pid > 0]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _tree(path: str) -> list[str]:
    """The group and all groups below it, parents first."""
    folders = [path]
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                folders.extend(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            continue
    return folders


def _rmdir(path: str) -> bool:
    try:
        Path(path).rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise
    return True


__all__ = [
    "PREFIX",
    "Cgroup",
    "CgroupSupport",
    "detect_cgroups",
]
