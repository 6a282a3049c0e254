import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from sandboxes.cgroups import (
    PREFIX,
    Cgroup,
    CgroupSupport,
    Hierarchy,
    detect_cgroups,
    parse_hierarchies,
    support_from,
)
from sandboxes.errors import SandboxError
from sandboxes.types import SandboxLimits

JOIN = 'for f in "$@"; do echo 0 > "$f"; done; '
FORKING = "while :; do sleep 1000 & sleep 1000 & sleep 0.01; done"

needs_kill = pytest.mark.skipif(
    detect_cgroups().kill is None, reason=detect_cgroups().reasons.get("kill", "")
)
needs_memory = pytest.mark.skipif(
    detect_cgroups().memory is None, reason=detect_cgroups().reasons.get("memory", "")
)
needs_pids = pytest.mark.skipif(
    detect_cgroups().pids is None, reason=detect_cgroups().reasons.get("pids", "")
)


@pytest.fixture
def name() -> Iterator[str]:
    name = f"{PREFIX}test-{uuid4().hex[:8]}"
    yield name
    Cgroup.reopen(name).remove()


def start(group: Cgroup, script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", JOIN + script, "sh", *group.procs_files],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )


def wait_until_joined(group: Cgroup, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(group.pids()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_hybrid_machines() -> None:
    mounts = """31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
    own = "4:memory:/user/me\n2:cpu,cpuacct:/\n1:name=systemd:/x\n0::/user/me\n"
    assert parse_hierarchies(mounts, own) == [
        Hierarchy(
            "cgroup v1", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct", frozenset({"cpu"})
        ),
        Hierarchy(
            "cgroup v1", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/user/me", frozenset({"memory"})
        ),
        Hierarchy("cgroup v2", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/user/me"),
    ]


@pytest.mark.parametrize(
    ("root", "own", "expected"),
    [
        ("/", "/user.slice/me", "/sys/fs/cgroup/user.slice/me"),
        ("/", "/", "/sys/fs/cgroup"),
        ("/docker/abc", "/docker/abc", "/sys/fs/cgroup"),
        ("/docker/abc", "/docker/abc/in", "/sys/fs/cgroup/in"),
        ("/docker/abc", "/other", "/sys/fs/cgroup"),
        ("/", "/../outside", "/sys/fs/cgroup"),
    ],
)
def test_unified_machines(root: str, own: str, expected: str) -> None:
    mounts = f"30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
    assert parse_hierarchies(mounts, f"0::{own}\n") == [Hierarchy("cgroup v2", "/sys/fs/cgroup", expected)]


def test_all_threads_get_the_same_answer() -> None:
    script = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from sandboxes.cgroups import detect_cgroups
start = Barrier(8)
def ask(_):
    start.wait()
    return detect_cgroups()
with ThreadPoolExecutor(8) as pool:
    answers = list(pool.map(ask, range(8)))
assert all(answer is answers[0] for answer in answers)
"""
    subprocess.run(
        [sys.executable, "-c", script], check=True, env=os.environ | {"PYTHONPATH": ":".join(sys.path)}
    )


def test_what_cannot_be_had_has_a_reason(tmp_path: Path) -> None:
    support = support_from(
        [Hierarchy("cgroup v1", str(tmp_path / "none"), str(tmp_path / "none"), frozenset({"memory"}))]
    )
    assert (support.memory, support.pids, support.places) == (None, None, ())
    assert "No such file" in support.reasons["memory"]
    assert "no mounted cgroup tree" in support.reasons["pids"]
    assert set(support.reasons) == {"memory", "pids", "cpu", "kill"}


def test_without_support_everything_is_a_no_op() -> None:
    none = CgroupSupport()
    group = Cgroup.create("x", SandboxLimits(memory_mb=64, pids=5, cpus=1), none)
    assert (group.procs_files, group.pids(), group.oom_killed(), group.can_kill) == ([], [], False, False)
    assert group.kill()
    group.child("y").remove()
    group.remove()
    assert Cgroup.find(support=none) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become someone else")
def test_an_ordinary_user_is_told_why_not() -> None:
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("no Python that another user can start")
    script = f"""
import sys
sys.path[:0] = {[path for path in sys.path if path]!r}
from sandboxes.cgroups import detect_cgroups
print(detect_cgroups().memory, detect_cgroups().reasons["memory"])
"""
    done = subprocess.run(
        ["/usr/bin/python3", "-B", "-c", script],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    if "ModuleNotFoundError" in done.stderr or "ImportError" in done.stderr:
        pytest.skip("the packages are out of the other user's reach, or for another Python")
    assert done.stdout.startswith("None "), done.stderr
    assert "run as root" in done.stdout


@needs_kill
def test_made_found_reopened_removed(name: str) -> None:
    group = Cgroup.create(name, SandboxLimits(memory_mb=64, pids=50, cpus=0.5))
    assert group.name == name
    assert all(Path(path).exists() for path in group.procs_files)
    assert name in Cgroup.find()
    assert name in Cgroup.find(name[:-2])
    assert name not in Cgroup.find("valkyrie-other")
    assert sorted(Cgroup.reopen(name).procs_files) == sorted(group.procs_files)
    with pytest.raises(SandboxError, match="exists"):
        Cgroup.create(name, SandboxLimits())
    assert Path(group.procs_files[0]).exists()
    group.remove()
    group.remove()
    assert name not in Cgroup.find()
    assert Cgroup.reopen(name).procs_files == []


@needs_kill
def test_killing_reaches_what_forks_and_hides(name: str) -> None:
    group = Cgroup.create(name, SandboxLimits(pids=100))
    process = start(group, f"setsid sh -c '{FORKING}' & setsid sleep 1000 & exec sleep 1000")
    wait_until_joined(group, 10)
    assert process.pid in group.pids()
    assert group.kill()
    assert process.wait(60) == -9
    assert group.pids() == []


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/sys/fs/cgroup/freezer").is_dir(), reason="no v1 freezer")
def test_killing_by_freezing(name: str) -> None:
    mount = "/sys/fs/cgroup/freezer"
    support = support_from([Hierarchy("cgroup v1", mount, mount, frozenset({"freezer"}))])
    assert (support.kill, support.memory) == ("cgroup v1", None)
    group = Cgroup.create(name, SandboxLimits(), support)
    process = start(group, f"setsid sh -c '{FORKING}' & exec sleep 1000")
    wait_until_joined(group, 10)
    assert group.kill()
    assert process.wait(60) == -9
    group.remove()
    with contextlib.suppress(OSError):  # in use by someone else
        Path(mount, "valkyrie").rmdir()


@needs_kill
def test_killing_without_cgroup_kill(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Cgroup.create(name, SandboxLimits(pids=100))
    process = start(group, "exec sleep 1000")
    wait_until_joined(group, 1)
    monkeypatch.setattr(Cgroup, "_kill_at_once", lambda _: None)
    assert group.kill()
    assert process.wait(60) == -9


@needs_kill
def test_removing_kills_and_takes_inner_groups_along(name: str) -> None:
    group = Cgroup.create(name, SandboxLimits())
    inner = group.child("run-1")
    process = start(inner, "exec sleep 1000")
    wait_until_joined(group, 1)
    assert not group.remove_if_empty()
    group.remove()
    assert process.wait(60) == -9
    assert name not in Cgroup.find()


@needs_kill
def test_a_child_group_dies_alone(name: str) -> None:
    group = Cgroup.create(name, SandboxLimits(memory_mb=64, pids=50))
    one, two = group.child("run-1"), group.child("run-2")
    first, second = start(one, "exec sleep 1000"), start(two, "exec sleep 1000")
    wait_until_joined(one, 1)
    wait_until_joined(two, 1)
    assert one.kill()
    assert one.remove_if_empty()
    assert first.wait(60) == -9
    assert second.poll() is None
    assert group.pids() == [second.pid]
    assert group.kill()
    assert second.wait(60) == -9


@needs_kill
def test_adding_by_pid(name: str) -> None:
    group = Cgroup.create(name, SandboxLimits())
    with subprocess.Popen(["sleep", "1000"]) as process:
        group.add(process.pid)
        assert group.pids() == [process.pid]
        assert group.kill()


@needs_memory
def test_the_memory_limit_kills(name: str) -> None:
    group = Cgroup.create(name, SandboxLimits(memory_mb=32))
    assert not group.oom_killed()
    assert start(group, "exec tail /dev/zero").wait(60) == -9
    assert group.oom_killed()


@needs_pids
def test_the_process_limit_holds(name: str) -> None:
    group = Cgroup.create(name, SandboxLimits(pids=10))
    process = start(group, "i=0; while [ $i -lt 50 ]; do sleep 1000 & i=$((i+1)); done")
    assert process.wait(60) != 0
    assert len(group.pids()) <= 10


@needs_kill
def test_a_vanished_parent_is_made_again(name: str) -> None:
    support = detect_cgroups()
    parents = [f"{place.parent}-again-{uuid4().hex[:6]}" for place in support.places]
    moved = dataclasses.replace(
        support,
        places=tuple(
            dataclasses.replace(place, parent=parent)
            for place, parent in zip(support.places, parents, strict=True)
        ),
    )
    Cgroup.create(name, SandboxLimits(memory_mb=32, pids=5, cpus=1), moved).remove()
    for parent in parents:
        Path(parent).rmdir()
