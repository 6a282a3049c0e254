"""Find out by trying which cgroup limits this machine can set, and keep what providers found out about it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any, Literal

from sandboxes.local.processes import boot_id
from sandboxes.values import Capabilities

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


def detect() -> CgroupSupport:
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
            place = _try_place(hierarchy, folder, wanted)
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


def _try_place(hierarchy: Hierarchy, folder: str, wanted: set[Controller]) -> CgroupParent:
    parent = f"{folder}/{PARENT}"
    existed = Path(parent).is_dir()
    prepare(parent, hierarchy.mechanism)
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


def prepare(parent: str, mechanism: Mechanism) -> None:
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
    values = {one.name: getattr(found, one.name) for one in fields(found)}
    return {**values, "networks": sorted(found.networks), "enforcement": dict(found.enforcement)}


def _from_json(kept: Mapping[str, Any]) -> Capabilities:
    missing = tuple((str(what), str(way)) for what, way in kept["missing"])
    return Capabilities(**{**kept, "networks": frozenset(kept["networks"]), "missing": missing})
