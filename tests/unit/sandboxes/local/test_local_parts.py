"""The parts of the local provider that can be looked at without a sandbox."""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from sandboxes import static_programs
from sandboxes.cgroups import CgroupSupport
from sandboxes.errors import SandboxError, SandboxUnsupportedError
from sandboxes.local import provider, restrictions, root_filesystem, sandbox, skeleton
from sandboxes.local.processes import ExecError, ProcessIdentity, find_program
from sandboxes.local.provider import Machine
from sandboxes.rooted_files import RootedFiles
from sandboxes.static_programs import PROCESSORS
from sandboxes.types import ImageSource, SandboxCreateRequest

LIMITED = Machine(root_filesystem.SHIFTED, CgroupSupport(memory="cgroup v2", pids="cgroup v2"))


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program is for x86_64")
def test_the_first_process_is_ready_reaps_and_cannot_be_traced() -> None:
    program = static_programs.open_first_process()
    assert program is not None
    read, write = os.pipe()
    high = static_programs.FIRST_FREE_FD + 50
    os.dup2(write, high)
    os.close(write)
    actions = [(os.POSIX_SPAWN_DUP2, high, static_programs.READY_FD)]
    pid = os.posix_spawn(f"/proc/self/fd/{program}", ["init"], {}, file_actions=actions)
    try:
        os.close(high)
        assert len(os.read(read, 1)) == 1
        assert select.select([read], [], [], 10)[0]
        assert os.read(read, 1) == b"", "it closed every descriptor"
        status = Path(f"/proc/{pid}/status").read_text()
        ignored = int(status.partition("SigIgn:\t")[2].split()[0], 16)
        assert ignored & 1 << (signal.SIGCHLD - 1)
        assert Path(f"/proc/{pid}/environ").stat().st_uid == 0
        with pytest.raises(OSError, match="not permitted"):
            os.pwrite(program, b"x", 0)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(program)


def test_the_program_for_arm_is_what_an_assembler_makes_of_it() -> None:
    arm = PROCESSORS["aarch64"]
    assert arm.call(167, 4, 0x410000).hex() == (
        "800080d2"
        "0000a0f2"  # movz x0, 4; movk x0, 0, lsl 16
        "010080d2"
        "2108a0f2"  # movz x1, 0; movk x1, 0x41, lsl 16
        "e81480d2"
        "0800a0f2"  # movz x8, 167; movk x8, 0, lsl 16
        "010000d4"  # svc 0
    )
    assert arm.back(8).hex() == "feffff17"  # b -8


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("mounting", [True, False])
def test_every_jump_of_the_filter_lands_in_it(machine: str, mounting: bool) -> None:
    program = restrictions.seccomp_program(machine, mounting=mounting)
    assert program is not None
    rules = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    for number, (code, then, otherwise, _) in enumerate(rules):
        if code & 0x07 == 0x05:
            assert max(number + 1 + then, number + 1 + otherwise) < len(rules)
    assert rules[-1][0] == 0x06, "it ends with an answer"
    assert restrictions.seccomp_program("riscv64", mounting=mounting) is None


def test_records_survive_torn_lines(tmp_path: Path) -> None:
    keeper = ProcessIdentity(1, 2, "boot")
    record = sandbox.SandboxRecord("a1", "name", {"k": "v"}, 5.0, "valkyrie-x", keeper)
    path = tmp_path / f"a1{sandbox.RECORD_SUFFIX}"
    path.write_text(record.opening() + '{"first": {"pid": 7, "st')
    (loaded,) = sandbox.load_records(tmp_path)
    assert (loaded.id, loaded.labels, loaded.first) == ("a1", {"k": "v"}, None)
    path.write_text(record.opening() + '{"first": {"pid": 7, "start": 8, "boot": "b"}}\n')
    (loaded,) = sandbox.load_records(tmp_path)
    assert loaded.first is not None
    assert (loaded.first.pid, loaded.first.start, loaded.first.boot) == (7, 8, "b")
    path.write_text('{"id": "a')
    assert sandbox.load_records(tmp_path) == []


def test_a_mark_is_one_process_only() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        mark = ProcessIdentity.of(process.pid)
        assert mark is not None and mark.alive()
        assert not ProcessIdentity(mark.pid, mark.start + 1, mark.boot).alive()
        assert not ProcessIdentity(mark.pid, mark.start, "other").alive()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not mark.alive(), "a zombie is gone"
    assert ProcessIdentity.of(process.pid) is None


def test_sweeping_an_empty_folder_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "notes.txt").write_text("not ours")
    assert sandbox.end_orphans(tmp_path / "state", "valkyrie-no-such-prefix-") == []
    assert (tmp_path / "state" / "notes.txt").exists()


def test_credentials_and_closed_files_are_not_shown(tmp_path: Path) -> None:
    cases = {
        "plain": ("deb https://example.org/debian stable main\n", 0o644, True),
        "with a password": ("deb https://me:hunter2@example.org/debian stable main\n", 0o644, False),
        "for root only": ("x", 0o600, False),
    }
    for name, (text, mode, shown) in cases.items():
        path = tmp_path / name
        path.write_text(text)
        path.chmod(mode)
        assert skeleton.may_show(path) is shown, name
    (tmp_path / "nowhere").symlink_to("/no/such/file")
    assert not skeleton.may_show(tmp_path / "nowhere")


def test_accounts_have_system_users_without_passwords() -> None:
    files = skeleton.own_files()
    assert files["passwd"].startswith("root:x:0:0:")
    assert all(
        int(line.split(":")[2]) < 1000 or line.startswith("nobody:") for line in files["passwd"].splitlines()
    )
    assert all(line.split(":")[1] == "*" for line in files["shadow"].splitlines())


def test_a_user_is_found_by_name_or_number(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nbad line\nann:x:1001:1002::/home/ann:/bin/sh\n"
    )
    (tmp_path / "etc/group").write_text("ann:x:1002:\ndocs:x:50:bob,ann\n")
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        files = RootedFiles(root, (os.geteuid(), os.getegid()))
        ann = sandbox.look_up_account(files, "ann")
        assert (ann.uid, ann.gid, ann.groups, ann.home) == (1001, 1002, (50, 1002), "/home/ann")
        assert sandbox.look_up_account(files, "1001") == ann
        assert sandbox.look_up_account(files, "4242").uid == 4242
        for unknown in ("eve", "70000"):
            with pytest.raises(SandboxError):
                sandbox.look_up_account(files, unknown)
    finally:
        os.close(root)


def test_programs_are_found_as_a_shell_does(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    path = f"/no/such/folder:{tmp_path}:/usr/bin"
    if os.geteuid() == 0:
        (tmp_path / "tool").chmod(0o600)
    with pytest.raises(ExecError) as refused:
        find_program("tool", path)
    assert refused.value.code == 126
    (tmp_path / "tool").chmod(0o755)
    assert find_program("tool", path) == f"{tmp_path}/tool"
    assert find_program("./here", path) == "./here"
    with pytest.raises(ExecError) as missing:
        find_program("no-such-tool", path)
    assert missing.value.code == 127


def test_what_cannot_be_had_is_refused_with_the_way_out() -> None:
    image = SandboxCreateRequest(source=ImageSource(image="debian:12"), network="none")
    with pytest.raises(SandboxUnsupportedError, match=r"--provider docker.*--host-image"):
        provider.refuse_unsupported(image, LIMITED)
    with pytest.raises(SandboxUnsupportedError, match="no list of allowed hosts"):
        provider.refuse_unsupported(SandboxCreateRequest(network="allowlist"), LIMITED)
    broken = Machine(
        root_filesystem.ROOTLESS, CgroupSupport(), "bubblewrap is not installed: apt install bubblewrap"
    )
    with pytest.raises(SandboxUnsupportedError, match="apt install bubblewrap"):
        provider.refuse_unsupported(SandboxCreateRequest(network="none"), broken)


SPEC = {"disk_mb": 10, "memory_mb": None, "separate": ["/own"], "mounts": [("/layer", "/opt/layer", False)]}


def test_the_command_line_has_every_wall() -> None:
    for argv in (
        root_filesystem.over_root("/m", 4, user_namespace=True, has_devices=True, memory_mb=None),
        root_filesystem.over_root("/m", None, user_namespace=False, has_devices=False, memory_mb=64),
        root_filesystem.rootless(["/etc/ssl"], [], 4, SPEC),
    ):
        for option in ("pid", "ipc", "uts", "net"):
            assert f"--unshare-{option}" in argv
        for option in ("--clearenv", "--new-session", "--as-pid-1", "--die-with-parent", "--info-fd"):
            assert option in argv
        assert argv[argv.index("--cap-drop") + 1] == "ALL"
        assert "--share-net" not in argv
    plain = root_filesystem.over_root("/m", 4, user_namespace=False, has_devices=True, memory_mb=None)
    at = plain.index("/proc/sys")
    assert plain[at - 1 : at + 2] == ["--ro-bind", "/proc/sys", "/proc/sys"]
    assert set(root_filesystem.PRIVATE_FOLDERS) >= {
        "app",
        "workspace",
        "tests",
        "logs",
        "solution",
        "bundle",
        "opt",
    }
