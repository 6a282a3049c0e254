"""What an agent tries inside a local sandbox, and that it stays there. Every test is a real attack."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.local import provider as probe
from sandboxes.local import root_filesystem
from sandboxes.local.provider import LocalProvider
from sandboxes.local.sandbox import LocalSandbox
from sandboxes.testing.base import eventually
from sandboxes.types import Command, SandboxCreateRequest, SandboxLimits
from tests.live_folders import control_groups

USERS = (None, "nobody") if os.geteuid() == 0 else (None,)
MODES = [root_filesystem.SHIFTED, root_filesystem.PLAIN] if os.geteuid() == 0 else [root_filesystem.ROOTLESS]
DOCKERS_CAPABILITIES = 0xA80425FB
MKNOD_AND_SETFCAP = 1 << 27 | 1 << 31


@pytest.fixture(params=MODES)
async def provider(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LocalProvider]:
    """Root's two ways, with a shifted user namespace and where the kernel cannot do that; or the user's."""
    found = probe.probe_machine()
    if found.problem is not None:
        pytest.skip(found.problem)
    if request.param == root_filesystem.SHIFTED and found.mode != root_filesystem.SHIFTED:
        pytest.skip("this machine has no idmapped mounts")
    monkeypatch.setattr(probe, "_found", [dataclasses.replace(found, mode=request.param)])
    async with LocalProvider(tmp_path / "state") as provider:
        yield provider
    assert list((tmp_path / "state").iterdir()) == []


@pytest.fixture
async def sandbox(provider: LocalProvider) -> LocalSandbox:
    return await make(provider)


async def make(provider: LocalProvider, **limits: int) -> LocalSandbox:
    request = SandboxCreateRequest(network="none", limits=SandboxLimits(**limits))
    sandbox = await provider.create_sandbox(request)
    assert isinstance(sandbox, LocalSandbox)
    return sandbox


async def attack(sandbox: LocalSandbox, script: str, timeout: float = 30) -> tuple[int, str]:
    result = await sandbox.exec(script, timeout=timeout)
    return result.exit_code, result.output


async def python(sandbox: LocalSandbox, program: str) -> tuple[int, str]:
    pieces: list[str] = []
    command = Command(argv=("/usr/bin/python3", "-c", program), timeout=30)
    code = await sandbox.run(command, lambda _, text: pieces.append(text))
    return code, "".join(pieces)


def processes_named(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def test_the_hosts_files_are_invisible(sandbox: LocalSandbox, tmp_path: Path) -> None:
    (tmp_path / "host-secret").write_text("s3cret")
    for path in (tmp_path / "host-secret", Path("/root/.bashrc"), Path("/work"), Path("/run/lock/x")):
        assert (await attack(sandbox, f"ls {path}"))[0] != 0
    _, homes = await attack(sandbox, "ls -A /root /home /run /opt /srv /mnt")
    assert [line for line in homes.split() if not line.endswith(":")] == []
    assert (await attack(sandbox, "ls -A /etc/ssl/private 2> /dev/null"))[1] == ""
    _, etc = await attack(sandbox, "ls -A /etc /etc/apt /etc/ssl; cat /etc/shadow")
    for name in (
        "pip.conf",
        "npmrc",
        "gitconfig",
        "auth.conf",
        "ssh",
        "environment.d",
        "$6$",
        "$y$",
    ):
        assert name not in etc.replace("\n", " ").split() and f":{name}" not in etc


async def test_the_engines_environment_is_invisible(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTILE_TEST_SECRET", "from-the-engine")
    sandbox = await make(provider)
    _, output = await attack(sandbox, "env; cat /proc/*/environ | tr '\\0' '\\n'")
    assert "from-the-engine" not in output


async def test_another_sandboxs_files_are_invisible(provider: LocalProvider) -> None:
    one, other = await make(provider), await make(provider)
    await one.upload_file("/app/only-in-one", b"x")
    await one.upload_file("/usr/local/bin/only-in-one", b"x")
    if root_filesystem.ROOTLESS not in MODES:
        await one.upload_file("/usr/bin/only-in-one", b"x")
    await one.upload_file("/dev/shm/only-in-one", b"x")
    _, output = await attack(
        other, "find / -xdev -name 'only-in-one*'; ls /app /dev/shm /usr/bin | grep only-in"
    )
    assert "only-in" not in output


@pytest.mark.parametrize(
    "path",
    [
        *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory"),
        *("/proc/sys/kernel/modprobe", "/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger"),
        *("/proc/irq/default_smp_affinity", "/sys/kernel/uevent_helper", "/dev/kmsg", "/dev/mem"),
        *("/proc/1/oom_score_adj", "/sys/fs/cgroup/release_agent", "/dev/planted"),
    ],
)
async def test_the_kernels_settings_are_closed(sandbox: LocalSandbox, path: str) -> None:
    before = Path(path).read_bytes() if path == "/proc/sys/kernel/core_pattern" else b""
    code, output = await attack(sandbox, f"echo '|/tmp/evil' > {path}")
    assert code != 0, output
    if before:
        assert Path(path).read_bytes() == before


async def test_there_is_no_kernel_file_system_but_proc(sandbox: LocalSandbox) -> None:
    _, mounts = await attack(sandbox, "cat /proc/self/mounts")
    kinds = {line.split()[2] for line in mounts.splitlines()}
    if root_filesystem.ROOTLESS in MODES:
        of_the_host = [
            line.split() for line in mounts.splitlines() if line.split()[1].startswith(("/usr", "/etc"))
        ]
        assert {fields[3].split(",")[0] for fields in of_the_host} == {"ro"}
        kinds -= {fields[2] for fields in of_the_host}
    assert kinds <= {"overlay", "tmpfs", "devtmpfs", "devpts", "proc"}
    devices = {line.split()[1] for line in mounts.splitlines() if line.split()[2] == "devtmpfs"}
    allowed = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")}
    assert {path for path in devices if not path.startswith("/proc/")} <= allowed


@pytest.mark.parametrize(
    "script",
    [
        "mount -t tmpfs none /mnt",
        "mount --bind /proc /mnt",
        "mount -o remount,rw /proc/sys",
        "umount /proc",
        "unshare --mount true",
        "unshare --user true",
        "unshare --user --map-root-user --mount mount -t tmpfs none /mnt",
        "unshare --pid --fork true",
        "unshare --net true",
        "nsenter --target 1 --mount true",
        "mkdir -p /tmp/new/old && pivot_root /tmp/new /tmp/new/old",
        "mknod /tmp/disk b 254 0",
        "mknod /tmp/mem c 1 1 && cat /tmp/mem",
        "modprobe loop",
        "chroot / mount -t proc none /mnt",
        "date -s 2001-01-01",
        "ip link add dummy0 type dummy",
        "nice -n -5 true 2>&1 | grep -q denied && exit 1",
    ],
)
async def test_privileges_are_refused(sandbox: LocalSandbox, script: str) -> None:
    code, output = await attack(sandbox, script)
    assert code != 0, output


SYSTEM_CALLS = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(*(ctypes.c_long(value) for value in arguments))
    if result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS, errno.EACCES):
        print(name, "gave", result, errno.errorcode.get(ctypes.get_errno()))
        sys.exit(1)
call("keyctl", 250, 0, -3, 1)
call("add_key", 248, 0, 0, 0, 0, -3)
call("bpf", 321, 0, 0, 0)
call("perf_event_open", 298, 0, 0, -1, -1, 0)
call("userfaultfd", 323, 0)
call("io_uring_setup", 425, 1, 0)
call("open_by_handle_at", 304, -100, 0, 0)
call("clone3", 435, 0, 88)
call("clone with a user namespace", 56, 0x10000000 | 17, 0, 0, 0, 0)
call("unshare with a user namespace", 272, 0x10000000)
call("init_module", 175, 0, 0, 0)
call("kexec_load", 246, 0, 0, 0, 0)
call("x32 call", 0x40000000 | 39)
call("sethostname", 170, 0, 0)
call("settimeofday", 164, 0, 0)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86_64")
async def test_dangerous_system_calls_are_refused(sandbox: LocalSandbox) -> None:
    code, output = await python(sandbox, SYSTEM_CALLS)
    assert code == 0, output


async def test_commands_have_dockers_capabilities_and_no_more(sandbox: LocalSandbox) -> None:
    expected = DOCKERS_CAPABILITIES
    if probe.probe_machine().mode == root_filesystem.PLAIN:
        expected &= ~MKNOD_AND_SETFCAP
    _, status = await attack(sandbox, "cat /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == int(fields["CapBnd"], 16) == expected
    assert int(fields["CapInh"], 16) == int(fields["CapAmb"], 16) == 0
    assert fields["Seccomp"] == "2"


async def test_nobody_can_hide_in_the_first_process(sandbox: LocalSandbox) -> None:
    _, output = await attack(sandbox, "grep -E '^Cap(Eff|Prm)' /proc/1/status")
    assert {line.split("\t")[1] for line in output.splitlines()} == {"0" * 16}
    for script in (
        "head -c 1 /proc/1/maps",
        "head -c 1 /proc/1/environ",
        ": >> /proc/1/mem",
        "ls /proc/1/root/",
    ):
        assert (await attack(sandbox, script))[0] != 0
    assert os.listdir(f"/proc/{sandbox.first_pid}/fd") == []


WRITING = """
import os, sys
opened = []
for top, folders, files in os.walk("/proc/1"):
    for name in files:
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            try:
                os.close(os.open(os.path.join(top, name), flags | os.O_NONBLOCK))
                opened.append(os.path.join(top, name))
            except OSError:
                pass
    for name in folders:
        for change in (os.mkdir, os.chmod):
            try:
                at = os.path.join(top, name)
                change(os.path.join(at, "new") if change is os.mkdir else at, 0o777)
                opened.append(at)
            except OSError:
                pass
for path in ("/proc/1/oom_score_adj", "/proc/1/task/1/oom_score_adj", "/proc/self/root/proc/1/oom_score_adj",
             "/proc/self/cwd/proc/1/comm", "/proc/1/timerslack_ns", "/proc/1/coredump_filter", "/proc/1/mem"):
    try:
        os.close(os.open(path, os.O_WRONLY))
        opened.append(path)
    except OSError:
        pass
print("opened", sorted(set(opened)))
"""

TRACING = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
ATTACH, SEIZE = 16, 0x4206
requests = (("attach", ATTACH), ("seize", SEIZE))
done = [name for name, request in requests if libc.ptrace(request, 1, 0, 0) == 0]
data = ctypes.create_string_buffer(8)
class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))
ours, theirs = Vector(ctypes.addressof(data), 8), Vector(0x400000, 8)
for name, number in (("read", 310), ("write", 311)):
    if libc.syscall(number, 1, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) >= 0:
        done.append(name)
try:
    pidfd = os.pidfd_open(1)
    if libc.syscall(438, pidfd, 0, 0) >= 0:
        done.append("pidfd_getfd")
except OSError:
    pass
print("did", done)
"""


@pytest.mark.parametrize("user", USERS)
async def test_the_first_process_is_neither_written_to_nor_traced(
    sandbox: LocalSandbox, user: str | None
) -> None:
    for program, expected in ((WRITING, "opened []\n"), (TRACING, "did []\n")):
        pieces: list[str] = []
        command = Command(argv=("/usr/bin/python3", "-c", program), user=user, timeout=60)
        await sandbox.run(command, lambda _, text, pieces=pieces: pieces.append(text))
        assert "".join(pieces) == expected
    score = Path(f"/proc/{sandbox.first_pid}/oom_score_adj").read_text()
    assert (await attack(sandbox, "echo 1000 > /proc/1/oom_score_adj"))[0] != 0
    assert Path(f"/proc/{sandbox.first_pid}/oom_score_adj").read_text() == score
    assert (await attack(sandbox, "umount /proc/1 || umount -l /proc/1 || mount -o remount,rw /proc/1"))[
        0
    ] != 0


FAMILIES = """
import errno, socket, sys
open_ones = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
wrong = []
for family in (*range(0, 64), 0x1_0000_0028):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        for make in ("socket", "socketpair"):
            try:
                made = getattr(socket, make)(family, kind)
            except OSError as error:
                if family in open_ones or error.errno == errno.EAFNOSUPPORT:
                    continue
                wrong.append((make, family, error.errno))
            except OverflowError:
                pass
            else:
                if family not in open_ones:
                    wrong.append((make, family))
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
    socket.socket(family, socket.SOCK_STREAM).close()
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()
socket.socketpair()
print("wrong", wrong)
"""


async def test_only_usual_sockets_are_to_be_had(sandbox: LocalSandbox) -> None:
    assert await python(sandbox, FAMILIES) == (0, "wrong []\n")


OLD_CALLS = r"""
import ctypes, mmap, struct
# int 0x80 takes 32-bit numbers and addresses whatever the program is.
code = mmap.mmap(-1, 4096, prot=7, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)
def call(number, one, two):
    code.seek(0)
    # push rbx; mov eax, number; mov ebx, one; mov ecx, two; xor edx, edx; int 0x80; pop rbx; ret
    code.write(b"\x53\xb8" + struct.pack("<I", number) + b"\xbb" + struct.pack("<I", one) + b"\xb9"
               + struct.pack("<I", two) + b"\x31\xd2\xcd\x80\x5b\xc3")
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
words = mmap.mmap(-1, 4096, prot=3, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)
words.write(struct.pack("<III", 40, 1, 0))
address = ctypes.addressof(ctypes.c_char.from_buffer(words))
print(call(359, 40, 1), call(359, 2, 1) >= 0 or "off", call(102, 1, address))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls of i386 on x86_64")
async def test_the_calls_of_32_bit_programs_are_no_way_round(sandbox: LocalSandbox) -> None:
    code, output = await python(sandbox, OLD_CALLS)
    if code != 0 or "-38" in output or "off" in output:
        pytest.skip("this kernel has no calls for 32-bit programs")
    assert output == "-97 True -97\n"


async def test_roots_of_processes_lead_nowhere(sandbox: LocalSandbox, tmp_path: Path) -> None:
    (tmp_path / "host-mark").write_text("x")
    script = f"""
    for link in /proc/[0-9]*/root /proc/[0-9]*/cwd /proc/[0-9]*/fd/*; do
        for up in . .. ../.. ../../../../..; do
            test -e "$link/$up{tmp_path}/host-mark" && echo "escaped by $link/$up"
        done
    done
    mkdir -p /tmp/jail && chroot /tmp/jail /bin/true 2>/dev/null
    ls -d /oldroot /newroot /dev/pts/lower-root 2>/dev/null
    """
    _, output = await attack(sandbox, script)
    assert output == ""


CHROOT = """
import os
os.makedirs("/tmp/jail", exist_ok=True)
fd = os.open("/", os.O_RDONLY)
os.chroot("/tmp/jail")
os.fchdir(fd)
for _ in range(64):
    os.chdir("..")
os.chroot(".")
print(sorted(os.listdir("/")))
"""


async def test_a_chroot_in_a_chroot_ends_at_the_sandboxs_root(sandbox: LocalSandbox) -> None:
    code, output = await python(sandbox, CHROOT)
    _, root = await python(sandbox, "import os; print(sorted(os.listdir('/')))")
    assert (code, output) == (0, root)
    assert "'work'" not in output


async def test_processes_outside_cannot_be_seen_or_touched(sandbox: LocalSandbox) -> None:
    program = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in (1, {os.getpid()}, {os.getppid()}, {sandbox.first_pid}):
    if pid != os.getpid() and libc.ptrace(16, pid, 0, 0) == 0:
        print("attached to", pid)
for pid in ({os.getpid()}, {sandbox.first_pid}):
    try:
        os.kill(pid, 0)
        print("can signal", pid)
    except ProcessLookupError:
        pass
print(len([name for name in os.listdir("/proc") if name.isdigit()]))
"""
    assert await python(sandbox, program) == (0, "2\n")


async def test_the_hosts_abstract_sockets_are_out_of_reach(sandbox: LocalSandbox) -> None:
    name = f"\0valkyrie-hostile-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        program = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
        code, output = await python(sandbox, program)
    assert code != 0 and "refused" in output
    _, links = await attack(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1")
    assert links.split() == ["lo"]


async def test_kill_everyone_spares_the_sandbox(sandbox: LocalSandbox) -> None:
    for _ in range(3):
        await attack(sandbox, "kill -9 -1; kill -9 1; kill -TERM 1")
        assert await attack(sandbox, "echo usable") == (0, "usable\n")


async def test_orphans_leave_no_zombies(sandbox: LocalSandbox) -> None:
    await attack(sandbox, "for i in 1 2 3 4 5 6 7 8; do (sh -c 'sleep 0.1' &) ; done; sleep 0.3")
    async with asyncio.timeout(60):  # one that has just ended is seen until it is collected
        while (await attack(sandbox, "ps -eo stat= | grep -c Z"))[1].strip() != "0":
            pass


FORK_BOMB = f"""
mark = "bomb-{os.getpid()}"
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


@pytest.mark.slow
async def test_a_fork_bomb_stays_small_and_dies(provider: LocalProvider) -> None:
    sandbox = await make(provider, pids=64, memory_mb=512)
    bomb = asyncio.create_task(sandbox.run(Command(argv=("/usr/bin/python3", "-c", FORK_BOMB), timeout=2)))
    await asyncio.sleep(1)
    assert len(processes_named(f"bomb-{os.getpid()}")) <= 64
    assert await bomb in (124, 137)
    await sandbox.kill_all()
    assert processes_named(f"bomb-{os.getpid()}") == []
    assert await attack(sandbox, "echo usable") == (0, "usable\n")


@pytest.mark.slow
async def test_a_bomb_short_of_memory_dies_and_leaves_the_limit_as_it_was(provider: LocalProvider) -> None:
    sandbox = await make(provider, pids=2000, memory_mb=128)
    files = [
        path
        for group in sandbox._spec["groups"]
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max")
        if (path := Path(group, name)).exists()
    ]
    before = [path.read_text() for path in files]
    code = await sandbox.run(Command(argv=("/usr/bin/python3", "-c", FORK_BOMB), timeout=3))
    assert code in (124, 137)
    await sandbox.kill_all()
    assert processes_named(f"bomb-{os.getpid()}") == []
    assert [path.read_text() for path in files] == before
    assert await attack(sandbox, "echo usable") == (0, "usable\n")


@pytest.mark.skipif(root_filesystem.ROOTLESS not in MODES, reason="root has no limit on processes")
async def test_bombs_in_every_sandbox_leave_their_user_room(tmp_path: Path) -> None:
    """All processes of all sandboxes count as the user's own, and still the engine can start some."""
    found = probe.probe_machine()
    if not found.counts_apart:
        pytest.skip("processes are limited by cgroup, or this kernel counts a user's all together")
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (probe._tasks_of(os.geteuid()) + 600, before[1]))
    try:
        async with LocalProvider(tmp_path / "state") as provider:
            sandboxes = [await make(provider, pids=300) for _ in range(4)]
            command = Command(argv=("/usr/bin/python3", "-c", FORK_BOMB), timeout=3)
            bombs = [asyncio.create_task(sandbox.run(command)) for sandbox in sandboxes]
            await asyncio.sleep(1.5)
            for _ in range(20):
                assert (await asyncio.to_thread(subprocess.run, ["true"], check=False)).returncode == 0
            await asyncio.gather(*bombs)
            for sandbox in sandboxes:
                await sandbox.kill_all()
            assert processes_named(f"bomb-{os.getpid()}") == []
            for sandbox in sandboxes:
                assert await attack(sandbox, "echo usable") == (0, "usable\n")
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, before)


@pytest.mark.slow
async def test_a_storm_of_stop_signals_ends_with_kill_all(sandbox: LocalSandbox) -> None:
    storm = "(setsid sh -c 'while :; do kill -STOP -1; done' &)"
    await attack(sandbox, storm, timeout=2)
    async with asyncio.timeout(60):
        await sandbox.run(Command.shell("true", timeout=0.5))
        await sandbox.kill_all()
        assert await attack(sandbox, "echo usable") == (0, "usable\n")


async def test_daemons_die_with_kill_all(sandbox: LocalSandbox) -> None:
    daemon = "import os,sys,time\nfor _ in range(2):\n    os.fork() and os._exit(0)\n    os.setsid()\n"
    daemon += f"os.environ.clear()\ntime.sleep(3141)  # {os.getpid()}\n"
    mark = f"time.sleep(3141)  # {os.getpid()}"
    for user in USERS:
        await sandbox.run(Command(argv=("/usr/bin/python3", "-c", daemon), user=user))
    await eventually(lambda: len(processes_named(mark)) == len(USERS))
    await sandbox.kill_all()
    assert processes_named(mark) == []
    async with asyncio.timeout(60):  # those killed are seen until they are collected
        while await attack(sandbox, "ps -eo pid= | wc -l; true") != (0, "4\n"):  # first, sh, ps, wc
            pass


async def test_memory_is_limited_in_every_command(provider: LocalProvider) -> None:
    sandbox = await make(provider, memory_mb=256)
    hog = "x = bytearray(1 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1\n"
    for _ in range(2):
        code, output = await python(sandbox, hog)
        if probe.probe_machine().support.memory:
            assert code == 137
        else:  # each process by itself, and it is told
            assert code == 1 and "MemoryError" in output
    assert await attack(sandbox, "echo usable") == (0, "usable\n")


async def test_files_in_memory_are_limited_together(provider: LocalProvider) -> None:
    sandbox = await make(provider, memory_mb=256, disk_mb=2048)
    for place in ("/app", "/dev/shm", "/run", "/tmp"):
        code, output = await attack(sandbox, f"head -c 1G /dev/zero > {place}/big")
        assert code in (1, 137), output
    assert await attack(sandbox, "echo usable") == (0, "usable\n")
    code, _ = await attack(sandbox, "head -c 1M /dev/zero > /dev/big")
    assert code != 0
    assert await attack(sandbox, "rm /app/big /dev/shm/big /run/big; echo x > /app/small") == (0, "")


async def test_the_disk_quota_is_one_for_all_folders(provider: LocalProvider) -> None:
    sandbox = await make(provider, disk_mb=32)
    fill = "head -c 10M /dev/zero > $place/big || exit 9"
    system = "/usr/local" if root_filesystem.ROOTLESS in MODES else "/usr/lib"
    script = f"for place in /app {system} /var/tmp /root /etc; do {fill}; done"
    code, output = await attack(sandbox, script)
    assert code == 9 and "space" in output


async def test_a_working_folder_cannot_be_the_hosts(sandbox: LocalSandbox, tmp_path: Path) -> None:
    (tmp_path / "host-mark").write_text("x")
    for number in range(3, 40):
        await sandbox.exec(f"rm -f /app/out; ln -s /proc/self/fd/{number} /app/out")
        seen = await sandbox.exec(f"pwd -P; ls -d .{tmp_path} ../../../..{tmp_path}", cwd="/app/out")
        assert "host-mark" not in seen.output
        assert "No such file" in seen.output or "cannot enter" in seen.output


async def test_a_program_that_names_its_starter_changes_nothing(sandbox: LocalSandbox) -> None:
    interpreter = Path(sys.executable).resolve()
    before = interpreter.stat()
    evil = b"#!/proc/self/exe\nimport os\nos.chmod('/proc/self/exe', 0o7777)\nopen('/proc/self/exe', 'r+b')\n"
    await sandbox.upload_file("/app/evil", evil)
    await sandbox.exec("chmod 755 /app/evil; cp /app/evil /usr/local/bin/evil")
    for argv in (("/app/evil",), ("evil",)):
        for user in USERS:
            await sandbox.run(Command(argv=argv, user=user, timeout=10))
    after = interpreter.stat()
    assert (before.st_mode, before.st_size, before.st_mtime_ns) == (
        after.st_mode,
        after.st_size,
        after.st_mtime_ns,
    )


async def test_nothing_shows_on_the_host(provider: LocalProvider, tmp_path: Path) -> None:
    sandbox = await make(provider, memory_mb=128, pids=50)
    mark = f"27182818{os.getpid()}"
    await attack(sandbox, f"sleep {mark} & setsid sleep {mark} &")
    await eventually(lambda: len(processes_named(f"sleep\0{mark}")) == 2)
    assert shown(sandbox, tmp_path) == []
    groups = [path for path in control_groups() if sandbox.id in path.name]
    assert groups or not probe.probe_machine().support.places
    await provider.delete_sandbox(sandbox.id)
    assert processes_named(f"sleep\0{mark}") == []
    assert [path for path in groups if path.exists()] == []
    assert shown(sandbox, tmp_path) == []
    assert list((tmp_path / "state").iterdir()) == []


def shown(sandbox: LocalSandbox, tmp_path: Path) -> list[str]:
    """Mounts of a sandbox the host sees; others come and go."""
    marks = ("- tmpfs keeper", "- tmpfs sandbox", sandbox.id, str(tmp_path))
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if any(mark in line for mark in marks)]
