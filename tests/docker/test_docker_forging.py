"""What an agent that is root in a container may try before its work is graded: none of it may hold."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandboxes.docker import DockerProvider, overlay_walk
from sandboxes.docker.changes import ContainerChange, ContainerListings
from sandboxes.docker.container_config import ALLOWED, ContainerPlan, container
from sandboxes.docker.engine import Engine
from sandboxes.docker.provider import died
from sandboxes.errors import SandboxDiedError
from sandboxes.folder_contents import folder_digest
from sandboxes.protocol import CarryRules, ImageDefaults, Sandbox, WorkLimits
from sandboxes.testing.base import HEARTBEAT, output_of, wait_for_beats
from sandboxes.types import BuildSource, Command, SandboxCreateRequest, SandboxLimits
from tests.docker_engine import IMAGE, PrivateEngine

pytestmark = pytest.mark.slow

RULES = CarryRules(left=("/usr", "/bin", "/etc", "/lib"), forbidden=("/tests", "/logs/verifier"))
NOT_PERMITTED = "1"
CALL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def errno_of(number, *arguments):
    result = libc.syscall(number, *arguments)
    return 0 if result >= 0 else ctypes.get_errno()
"""


@pytest.fixture
async def provider(engine: PrivateEngine, tmp_path: Path) -> AsyncIterator[DockerProvider]:
    async with DockerProvider(tmp_path / "state") as provider:
        yield provider
        await provider.reap({})
    assert engine.left() == []


@pytest.fixture
async def sandbox(provider: DockerProvider) -> Sandbox:
    return await provider.create_sandbox(SandboxCreateRequest(network="none"))


async def python(sandbox: Sandbox, script: str) -> str:
    found: list[str] = []
    argv = ("python3", "-c", CALL + script)
    code = await sandbox.run(Command(argv, timeout=60), lambda _, text: found.append(text))
    assert code == 0, "".join(found)
    return "".join(found).strip()


async def test_the_first_process_cannot_be_traced_or_written_to(sandbox: Sandbox) -> None:
    script = """
print(errno_of(101, 16, 1, 0, 0), errno_of(101, 0x4206, 1, 0, 0))  # PTRACE_ATTACH, PTRACE_SEIZE
for name in ("mem", "oom_score_adj", "oom_adj", "task/1/oom_score_adj", "clear_refs", "coredump_filter"):
    try:
        os.open("/proc/1/" + name, os.O_WRONLY)
        print(name)
    except OSError:
        pass
for name in ("exe", "root", "cwd"):
    try:
        os.readlink("/proc/1/" + name)
        print(name)
    except OSError:
        pass
fd = libc.syscall(434, 1, 0)
print(errno_of(438, fd, 0, 0))  # pidfd_getfd
os.kill(1, 9); os.kill(1, 19)
"""
    assert (await python(sandbox, script)).split() == [NOT_PERMITTED] * 3
    # It cannot be replaced on disk either.
    replace = "rm -rf /.valkyrie; mv /.valkyrie /x; mount -t tmpfs none /.valkyrie; echo x > /.valkyrie/init"
    await sandbox.run(Command.shell(replace))
    assert await output_of(sandbox, "ls /.valkyrie; stat -c %s /.valkyrie/init; cat /proc/1/comm") == (
        "init\nkill\nremove\n250\ninit\n"
    )


BREAKING = {
    "no shell": "rm -f /bin/sh /bin/dash /bin/bash",
    "no system": "rm -rf /bin /usr /lib /lib64 /sbin",
    "users are a folder": "rm /etc/passwd /etc/group; mkdir /etc/passwd /etc/group",
    "users are a pipe": "rm /etc/passwd /etc/group; mkfifo /etc/passwd /etc/group",
    "the working folder is a file": "cd /; cp app/beat beat; rm -rf /app; touch /app",
}


@pytest.mark.parametrize("breaking", BREAKING)
async def test_kill_all_needs_nothing_of_the_image(sandbox: Sandbox, tmp_path: Path, breaking: str) -> None:
    await output_of(
        sandbox, f"setsid sh -c 'trap : TERM HUP; cp /bin/sleep /tmp/; {HEARTBEAT}' >/dev/null 2>&1 &"
    )
    await wait_for_beats(sandbox)
    await sandbox.upload_file("/data/kept", b"work")
    await sandbox.run(Command.shell(f"{BREAKING[breaking]}; true"))
    await sandbox.kill_all()
    packed = await sandbox.pack_work(RULES, tmp_path / "work.tar")
    assert packed.left_count or breaking == "the working folder is a file"
    assert await sandbox.download_file("/data/kept") == b"work"
    top = subprocess.run(["docker", "top", sandbox.id], capture_output=True, text=True).stdout
    assert len(top.splitlines()) == (0 if "folder" in breaking and "users" in breaking else 2)


async def test_a_container_that_cannot_be_started_any_more_died_from_inside(
    provider: DockerProvider, sandbox: Sandbox, tmp_path: Path
) -> None:
    pristine = await provider.create_sandbox(SandboxCreateRequest(network="none"))
    await output_of(sandbox, "echo x > /data; rm /etc/passwd; mkdir /etc/passwd")
    await provider.restart(sandbox)  # type: ignore[arg-type]
    assert (await sandbox.pack_work(RULES, tmp_path / "work.tar")).files == 1
    with pytest.raises(SandboxDiedError, match="/etc/passwd") as caught:
        await sandbox.run(Command.shell("true"))
    assert not caught.value.outside
    await sandbox.put_back(["/etc/passwd"], pristine)
    assert await output_of(sandbox, "cat /data; id -un") == "x\nroot\n"


async def test_unneeded_system_calls_are_refused(sandbox: Sandbox) -> None:
    script = """
import socket
for family in range(1, 46):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        if errno_of(41, family, kind, 0) == 0:
            print(family)
print("io_uring", errno_of(425, 1, 0), errno_of(426, 0, 0, 0, 0, 0))
print("unshare", errno_of(272, 0x10000000), errno_of(56, 0x10000000 | 17, 0, 0, 0, 0))
print("mount", errno_of(165, 0, 0, 0, 0, 0), "bpf", errno_of(321, 0, 0, 0), "keys", errno_of(250, 0, 0, 0, 0))
print("perf", errno_of(298, 0, 0, 0, 0, 0), "clone3", errno_of(435, 0, 0))
"""
    said = (await python(sandbox, script)).splitlines()
    assert {line for line in said if line.isdigit()} <= {"1", "2", "10", "16"}
    assert said[-4:] == ["io_uring 1 1", "unshare 1 1", "mount 1 bpf 1 keys 1", "perf 1 clone3 38"]


async def test_what_programs_need_is_allowed(sandbox: Sandbox) -> None:
    script = """
import asyncio, multiprocessing, socket, sqlite3, subprocess, tempfile, threading
pid = os.fork()
if pid == 0:  # traced by its parent, as a debugger does it
    libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19); os._exit(7)
assert os.WIFSTOPPED(os.waitpid(pid, 0)[1]); libc.ptrace(7, pid, 0, 0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
threading.Thread(target=print).start()
multiprocessing.Pool(2).map(abs, [1, -1])
socket.socketpair(); socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
socket.create_server(("127.0.0.1", 0))
sqlite3.connect("/tmp/x.db").execute("create table t (x)")
asyncio.run(asyncio.create_subprocess_exec("true"))
libc.personality(0xffffffff); os.memfd_create("x"); os.getrandom(8); os.posix_spawn("/bin/true", ["true"], {})
print("done")
"""
    assert (await python(sandbox, script)).endswith("done")
    made = "cd /tmp; git init -q r; cd r; git -c user.name=a -c user.email=b commit -q --allow-empty -m x"
    assert (
        await output_of(sandbox, f"{made}; git log --format=%s; apt-get check -qq; dpkg -l >/dev/null")
        == "x\n"
    )


FORGED = """
cp -a /usr/bin/bash /tmp/saved; size=$(stat -c %s /usr/bin/bash)
printf '#!/usr/bin/dash\\necho forged; exit 0\\n' > /tmp/forged
truncate -s "$size" /tmp/forged; cp /tmp/forged /usr/bin/bash
chmod --reference=/tmp/saved /usr/bin/bash; touch -r /tmp/saved /usr/bin/bash
printf '#!/bin/dash\\nexit 0\\n' > /usr/local/bin/dirname; chmod 755 /usr/local/bin/dirname
ln -s /tmp/evil.so /etc/ld.so.preload
for tool in rm cp tar mkdir cat; do printf '#!/usr/bin/dash\\nexit 0\\n' > /usr/bin/$tool; done
"""
TOOLS = ("/usr/bin/bash", "/usr/local/bin/dirname", "/etc/ld.so.preload", "/usr/bin/rm", "/usr/bin/tar")


@pytest.mark.parametrize("way", ["here", "in a container"])
async def test_replaced_tools_are_seen_and_put_back(
    provider: DockerProvider, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "in a container":
        monkeypatch.setattr(os, "access", lambda *_: False)
    pristine = await provider.create_sandbox(SandboxCreateRequest(network="none"))
    await output_of(sandbox, FORGED)
    await sandbox.kill_all()
    found = {change.path: change.kind for change in await sandbox.changes()}
    assert set(TOOLS) <= set(found), "a file of the same size and age is seen"
    assert found["/usr/bin/bash"] == "changed"
    assert found["/etc/ld.so.preload"] == "added"
    await sandbox.put_back([path for path in found if not path.startswith("/tmp")], pristine)
    look = "bash -c 'echo $0'; command -v dirname; rm -r /tmp/saved && ls /tmp /etc/ld.so.preload 2>/dev/null"
    assert await output_of(sandbox, f"{look}; true") == "bash\n/usr/bin/dirname\n/tmp:\nforged\n"
    assert {change.path for change in await sandbox.changes()} >= {"/tmp/forged"}


async def test_an_engine_that_only_compares_sizes_still_carries_work(
    provider: DockerProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def nothing(*_: object) -> list[ContainerChange] | None:
        return None

    monkeypatch.setattr(ContainerListings, "_walked", nothing)
    request = SandboxCreateRequest(network="none", separate_folders=("/tests",))
    source, target = [await provider.create_sandbox(request) for _ in range(2)]
    assert await source.changes() == []
    await output_of(
        source,
        "mkdir -p /app/sub; echo a > /app/sub/a; ln -s sub/a /app/link; ln -s /tests/x /app/cheat;"
        " mkfifo /app/f; rm /etc/issue; echo x > /srv/new; chmod 700 /srv; echo x >> /etc/profile;"
        " rm -r /usr/share/git-core",
    )
    await source.kill_all()
    packed = await source.pack_work(RULES, tmp_path / "work.tar")
    assert {change.path for change in packed.left} >= {"/etc/issue", "/etc/profile", "/usr/share/git-core"}
    assert {path for path, _ in packed.skipped} == {"/app/cheat", "/app/f"}
    await target.unpack_work(tmp_path / "work.tar", RULES, packed.removed)
    assert await output_of(target, "cat /app/link /srv/new; ls /app") == "a\nx\nlink\nsub\n"
    paths = [change.path for change in packed.left]
    await source.put_back(paths, target)
    assert await output_of(
        source, "wc -l < /etc/issue; tail -n 1 /etc/profile; ls /usr/share/git-core | wc -l"
    )
    assert not {change.path for change in await source.changes()} & set(paths)


async def test_much_else_in_a_folder_is_not_fetched_for_a_few_files(
    provider: DockerProvider, engine: PrivateEngine, tmp_path: Path
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(
        f"FROM {IMAGE}\nRUN mkdir -p /app/data && head -c 100000000 /dev/zero > /app/data/big"
        " && for n in 1 2 3 4 5 6; do echo old > /app/data/$n; done\n"
    )
    source = BuildSource(context=str(context), digest=folder_digest(context))
    request = SandboxCreateRequest(network="none", source=source)
    sandbox, target = [await provider.create_sandbox(request) for _ in range(2)]
    await output_of(
        sandbox, "for n in 1 2 3 4 5 6; do echo new > /app/data/$n; done; truncate -s 3G /app/data/9"
    )
    await sandbox.kill_all()
    packed = await sandbox.pack_work(RULES, tmp_path / "work.tar", WorkLimits(max_file_bytes=1 << 20))
    assert (packed.files, [path for path, _ in packed.skipped]) == (6, ["/app/data/9"])
    await target.unpack_work(tmp_path / "work.tar", RULES, packed.removed)
    assert await output_of(target, "cat /app/data/[1-6] | uniq; ls /app/data | wc -l") == "new\n7\n"
    await provider.reap({})
    engine.docker("image", "prune", "-af", "--filter", "label=valkyrie.kind=build")


async def test_who_ended_a_container(
    provider: DockerProvider, engine: PrivateEngine, sandbox: Sandbox
) -> None:
    running = asyncio.create_task(sandbox.run(Command.shell("echo x > /app/beat; sleep 100")))
    while not await sandbox.list_files("/app/beat"):
        await asyncio.sleep(0.02)
    engine.docker("kill", sandbox.id)
    with pytest.raises(SandboxDiedError) as caught:
        await running
    assert caught.value.outside
    with pytest.raises(SandboxDiedError) as caught:
        await sandbox.run(Command.shell("true"))
    assert caught.value.outside
    engine.docker("rm", "-f", sandbox.id)
    with pytest.raises(SandboxDiedError, match="removed") as caught:
        await sandbox.run(Command.shell("true"))
    assert caught.value.outside


@pytest.mark.parametrize(
    ("state", "outside"),
    [
        ({"ExitCode": 137, "OOMKilled": False}, True),
        ({"ExitCode": 255, "OOMKilled": False}, True),
        ({"ExitCode": 137, "OOMKilled": True}, False),
        ({"ExitCode": 0, "OOMKilled": False}, False),
        ({"ExitCode": 1, "OOMKilled": False, "Error": "no such thing"}, False),
    ],
)
def test_an_ended_container_is_judged_by_its_state(state: dict[str, Any], outside: bool) -> None:
    found = {"State": state, "Config": {"Entrypoint": ["/.valkyrie/init"]}}
    assert died("x", found).outside == outside
    assert not died("x", found | {"Config": {"Entrypoint": ["/bin/sh"]}}).outside


async def test_memory_and_processes_are_limited_when_a_task_names_no_limits(
    provider: DockerProvider, engine: PrivateEngine, sandbox: Sandbox
) -> None:
    form = "{{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} {{.HostConfig.PidsLimit}}"
    memory, swap, pids = map(int, engine.docker("inspect", "-f", form, sandbox.id).split())
    assert 256 << 20 <= memory == swap <= 4 << 30
    assert 0 < pids <= 4096
    asked = SandboxCreateRequest(network="none", limits=SandboxLimits(memory_mb=300, pids=77))
    other = await provider.create_sandbox(asked)
    assert engine.docker("inspect", "-f", form, other.id).split() == [str(300 << 20)] * 2 + ["77"]


async def test_our_programs_cannot_be_changed_from_inside(provider: DockerProvider) -> None:
    sandbox = await provider.create_sandbox(SandboxCreateRequest(network="none"))
    assert await output_of(sandbox, "cat /proc/1/comm; ls /.valkyrie | wc -l") == "init\n3\n"
    assert await sandbox.run(Command.shell("echo x > /.valkyrie/init")) != 0
    await sandbox.kill_all()
    assert await sandbox.changes() == []


def test_labels_keep_the_networks_a_sandbox_reaches() -> None:
    plan = ContainerPlan("image", ImageDefaults("/app"), Engine("unix:///x", {"NCPU": 2}))
    body = container(SandboxCreateRequest(allowed_networks=("10.1.0.0/16", "192.168.7.0/24")), plan)
    assert body["Labels"][ALLOWED] == "10.1.0.0/16,192.168.7.0/24"


def test_an_overlay_is_walked_without_following_its_links(tmp_path: Path) -> None:
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    (upper / "etc/deep").mkdir(parents=True)
    (upper / "etc/passwd").write_text("x")
    (upper / "etc/deep/new").write_text("x")
    (upper / "link").symlink_to("/etc")
    lower.mkdir()
    (lower / "etc").symlink_to("/etc")
    walked = list(overlay_walk.walk(str(upper), [str(lower)]))
    assert walked == [
        ("c", "d", "/etc"),
        ("a", "l", "/link"),
        ("a", "d", "/etc/deep"),
        ("a", "f", "/etc/passwd"),
        ("a", "f", "/etc/deep/new"),
    ]
