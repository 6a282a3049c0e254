"""One small process per sandbox that starts it, runs commands in it, and ends it.

It is forked from the keeper, joins the sandbox's cgroup and namespaces, and stays in the host's pid
namespace: nothing inside can see or signal it, and the exit codes it reports are the kernel's. Commands
start by vfork from here, so entering the sandbox costs nothing per command.
"""

# Without pathlib, which would be copied into every warden's memory.
# ruff: noqa: PTH101, PTH102, PTH116
from __future__ import annotations

import errno
import fcntl
import gc
import os
import resource
import select
import signal
import socket
import stat

from sandboxes import static_programs
from sandboxes.local import mounts, processes, restrictions, root_filesystem
from sandboxes.local.processes import RunningCommands
from sandboxes.local.restrictions import CgroupFolders

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NoReturn


BWRAP = "/usr/bin/bwrap"
_FIRST_PROC = "/proc/1"
_OPEN_FILES = 1 << 16
_STAGE = "/sys"
"""An empty folder of an ordinary user's sandbox to put mounts together on."""
_ENTERED = (
    mounts.CLONE_NEWNS
    | mounts.CLONE_NEWPID
    | mounts.CLONE_NEWNET
    | mounts.CLONE_NEWIPC
    | mounts.CLONE_NEWUTS
    | mounts.CLONE_NEWCGROUP
)


class StartedSandbox:
    """A sandbox that runs: its bubblewrap, and its first process."""

    def __init__(self, bwrap_pid: int, first_pid: int, first_pidfd: int) -> None:
        self.bwrap_pid = bwrap_pid
        self.first_pid = first_pid
        self.first_pidfd = first_pidfd
        # By the host's /proc, which is out of sight once inside.
        self._first_proc = os.open(f"/proc/{first_pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_ending(self) -> bool:
        """Return whether the first process is on its way out; it takes all others along before it is gone."""
        try:
            fd = os.open("stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._first_proc)
        except OSError:
            return True
        try:
            fields = os.read(fd, 4096).rpartition(b")")[2].split()
        except ProcessLookupError:
            return True
        finally:
            os.close(fd)
        return bool(int(fields[6]) & processes.PF_EXITING)


class StartError(Exception):
    """The sandbox did not come up; the message says what bubblewrap or the kernel said."""


class Mounted:
    """A sandbox's root in the warden's own namespace: the folder it is at, and what its layers are."""

    def __init__(self, merged: str, box_fd: int) -> None:
        self.merged = merged
        self.box_fd = box_fd
        """The folder with the upper folders of all its overlays."""
        self.folders: dict[str, int] = {}
        self.files: dict[str, str] = {}
        """What was put into the root's upper folder before the start, by path: modes and texts."""
        self.views: list[str] = []
        self.view_fds: list[int] = []
        """The lower folders of the views."""

    def close(self) -> None:
        """Let go of the layers."""
        for fd in (self.box_fd, *self.view_fds):
            os.close(fd)


def mount_root(
    base: root_filesystem.BaseLayers, layer: root_filesystem.LowerRoot, spec: processes.Message
) -> Mounted:
    """Mount the sandbox's own root in this process's mount namespace."""
    mounts.unshare(mounts.CLONE_NEWNS)
    box, owner = base.box, base.owner
    # The box is walked through by the sandbox's own root while bubblewrap looks the folder up.
    size = f"size={spec['disk_mb']}m,mode=755"
    mounts.mount("sandbox", box, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, size)
    merged, upper = f"{box}/merged", f"{box}/upper"
    mounted = Mounted(merged, os.open(box, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    os.mkdir(merged)
    _owned_folder(upper, owner, 0o755)
    _fill_upper(upper, layer, spec["resolv_conf"], owner, mounted)
    targets = (target for _, target, *_ in (*spec["mounts"], *spec["views"]))
    for path in (*spec["separate"], *targets):
        _owned_folders(upper, path, owner, mounted.folders)
    _overlay(box, "", layer.root, merged)
    for number, (name, lower) in enumerate(layer.trees):
        _owned_folder(f"{upper}{number}", owner, 0o755)
        _overlay(box, str(number), lower, f"{merged}/{name}")
    if base.devices is not None:
        _owned_folder(f"{box}/shm", owner, 0o1777)
        mounts.mount_devices(base.devices, merged, f"{box}/shm", owner)
    for path in spec["separate"]:
        options = f"{size},uid={owner},gid={owner}"
        mounts.mount("separate", merged + path, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, options)
    for source, target, sockets in spec["mounts"]:
        _show(base, source, merged + target, sockets=sockets)
    return mounted


def _show(base: root_filesystem.BaseLayers, source: str, target: str, *, sockets: bool) -> None:
    """Show a folder of the host without its path; sockets work only in the folder itself."""
    shown = base.shown(source)
    if not sockets:
        try:
            mounts.mount_covered(shown, base.empty, target)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        else:
            return
    mounts.bind(shown, target)  # also a file system that cannot be a lower layer


def mount_views(base: root_filesystem.BaseLayers, mounted: Mounted, spec: processes.Message) -> None:
    """Lay a writable layer of the sandbox's own over each folder it is given a view of; note what worked."""
    for number, (source, target, hidden) in enumerate(spec["views"]):
        lower = base.viewed(source)
        if lower is None:
            continue
        name = f"-view{number}"
        upper = f"{base.box}/upper{name}"
        _owned_folder(upper, base.owner, stat.S_IMODE(os.stat(lower).st_mode) | 0o700)
        for path in hidden:
            _hide(upper, path, base.owner)
        try:
            _overlay(base.box, name, lower, mounted.merged + target)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            continue  # a file system that cannot be a lower layer, or too many layers already
        mounted.views.append(target)
        mounted.view_fds.append(os.open(lower, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))


def _hide(upper: str, path: str, owner: int) -> None:
    """Leave the mark in an upper layer by which a lower one's file or folder is not there."""
    above, _, name = path.rpartition("/")
    if above:
        _owned_folders(upper, above, owner, {})
    os.mknod(f"{upper}/{above}/{name}", stat.S_IFCHR, os.makedev(0, 0))


def _fill_upper(
    upper: str, layer: root_filesystem.LowerRoot, resolv_conf: str, owner: int, mounted: Mounted
) -> None:
    # Before it is mounted, and never through the merged view: a root file system's own links lead out.
    for name in layer.missing:
        mode = mounted.folders[f"/{name}"] = 0o1777 if name == "tmp" else 0o755
        _owned_folder(f"{upper}/{name}", owner, mode)
    if not (layer.names_needed or resolv_conf) or layer.etc_elsewhere:
        return
    _owned_folder(f"{upper}/etc", owner, 0o755)
    mounted.folders["/etc"] = 0o755
    mounted.files["/etc/resolv.conf"] = resolv_conf
    if layer.names_needed:
        mounted.files["/etc/hosts"] = root_filesystem.HOSTS
        mounted.files["/etc/hostname"] = f"{root_filesystem.HOSTNAME}\n"
    for path, text in mounted.files.items():
        _write_owned(upper + path, text, owner)


def _overlay(box: str, name: str, lower: str, target: str) -> None:
    work = f"{box}/work{name}"
    os.mkdir(work)
    mounts.mount_overlay(lower, f"{box}/upper{name}", work, target)


def _owned_folder(path: str, owner: int, mode: int) -> None:
    os.mkdir(path)
    os.chmod(path, mode)
    os.chown(path, owner, owner)


def _owned_folders(top: str, path: str, owner: int, made: dict[str, int]) -> None:
    below = ""
    for name in path.strip("/").split("/"):
        below = f"{below}/{name}"
        if not os.path.isdir(top + below):  # noqa: PTH112 - without pathlib, as everywhere in a warden
            _owned_folder(top + below, owner, 0o755)
            made[below] = 0o755


def _write_owned(path: str, text: str, owner: int) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        os.fchown(file.fileno(), owner, owner)


def enter_user_namespace(fd: int) -> None:
    """Become root of that user namespace."""
    mounts.setns(fd, mounts.CLONE_NEWUSER)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def start_bwrap(argv: list[str], program_fd: int | None, record_fd: int, boot: str) -> StartedSandbox:
    """Run bubblewrap until its first process has said it is ready; its mark goes into the record."""
    info_read, info_write = _pipe()
    ready_read, ready_write = _pipe()
    log = _out_of_the_way(os.memfd_create("bwrap", os.MFD_CLOEXEC))
    null = _out_of_the_way(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
    wiring = [
        (null, 0),
        (null, 1),
        (log, 2),
        (ready_write, static_programs.READY_FD),
        (info_write, root_filesystem.INFO_FD),
    ]
    if program_fd is not None:
        wiring.append((program_fd, static_programs.PROGRAM_FD))
    pid = os.posix_spawn(
        BWRAP,
        argv,
        {},
        file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for source, target in wiring],
        setsigmask=[],
    )
    os.close(info_write)
    os.close(ready_write)
    first_pidfd = -1
    try:
        # To the end of file: bubblewrap's own guard against a lost parent is up only then.
        first = _child_pid(_read_all(info_read))
        first_pidfd = os.pidfd_open(first)
        start = processes.start_time(first)
        line = f'{{"first": {{"pid": {first}, "start": {start or 0}, "boot": "{boot}"}}}}\n'
        os.write(record_fd, line.encode())
        if not os.read(ready_read, 1):
            raise StartError(_said(log))
        return StartedSandbox(pid, first, first_pidfd)
    except (OSError, ValueError, StartError) as error:
        # Killing bubblewrap alone can orphan its child: its own guard has a gap while starting.
        for fd in (first_pidfd, os.pidfd_open(pid)):
            if fd >= 0:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        raise StartError(_said(log) or str(error)) from error
    finally:
        for fd in (info_read, ready_read, log, null):
            os.close(fd)


def enter_sandbox(base: root_filesystem.BaseLayers, started: StartedSandbox, spec: processes.Message) -> None:
    """Join every namespace of the sandbox and give up what its commands must never have."""
    if base.mode == root_filesystem.ROOTLESS:
        mounts.enter_owner_of_mounts(started.first_pid)
        mounts.setns(started.first_pidfd, mounts.CLONE_NEWNS)
        _close_first_process()
        for _, target, sockets in spec["mounts"]:
            if not sockets:
                _cover(target)
        enter_namespaces(started.first_pidfd, mounts.CLONE_NEWUSER)
    else:
        enter_namespaces(started.first_pidfd)
        _close_first_process()
    restrict(base.mode, base.last_capability)
    if base.mode == root_filesystem.ROOTLESS:
        for name, text in base.own_etc.items():
            _write_own(f"/etc/{name}", spec["resolv_conf"] if name == "resolv.conf" else text)
        restrictions.install_seccomp(mounting=False)  # a keeper that is root has done it once for all
    if spec["rlimits"]:
        _set_rlimits(spec["rlimits"])
    _bound_open_files()


def _cover(target: str) -> None:
    """Put a file system of its own in place of a folder bubblewrap shows, where the kernel lets a user do so.

    It is put together on a small one that nobody can reach later: what is in the empty folder would show.
    """
    try:
        mounts.mount("empty", _STAGE, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, "size=64k,mode=755")
    except OSError:
        return
    try:
        for name in ("empty", "covered"):
            os.mkdir(f"{_STAGE}/{name}")
        try:
            mounts.mount_covered(target, f"{_STAGE}/empty", f"{_STAGE}/covered")
        except OSError:
            return
        mounts.unmount(target)
        mounts.move(f"{_STAGE}/covered", target)
    finally:
        mounts.unmount(_STAGE)


def _close_first_process() -> None:
    """Make what /proc tells of the first process read-only: its score for lack of memory, for instance.

    It has the same owner as the sandbox's root. What is mounted goes before any command comes.
    """
    mounts.bind(_FIRST_PROC, _FIRST_PROC)
    flags = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC | mounts.MS_RDONLY
    mounts.mount("none", _FIRST_PROC, "", mounts.MS_REMOUNT | mounts.MS_BIND | flags)


def enter_namespaces(first_pidfd: int, user: int = 0) -> None:
    """Join the namespaces of the sandbox's first process, as their root; `user` adds its user namespace."""
    mounts.setns(first_pidfd, _ENTERED | user)
    if user:
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)


def _write_own(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def leave_processes_to_the_user() -> None:
    """Let no sandbox started from here fork once its user has three quarters of the processes they may have.

    They count as the user's own, so that many of them could keep the engine, and the user, from starting any.
    A user namespace keeps the limit its maker had, and bubblewrap is about to make one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft * 3 // 4, hard))


def _set_rlimits(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        number = resource.RLIMIT_DATA if name == "data" else resource.RLIMIT_NPROC
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))


def _bound_open_files() -> None:
    """Give programs a limit they can count to: some close every descriptor up to it, one by one.

    The engine's own may be a million.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > _OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, hard))


def restrict(mode: str, last_capability: int) -> None:
    """Bound what programs started from here can do; this process keeps its own rights."""
    plain = mode == root_filesystem.PLAIN
    kept = restrictions.WITHOUT_USER_NAMESPACE if plain else restrictions.IN_USER_NAMESPACE
    restrictions.bound_capabilities(kept, last_capability)
    os.chdir("/")
    os.umask(0o022)


def _out_of_the_way(fd: int) -> int:
    """The same descriptor, away from the numbers descriptors are handed over under."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, static_programs.FIRST_FREE_FD)
    finally:
        os.close(fd)


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    return _out_of_the_way(read), _out_of_the_way(write)


def _child_pid(info: bytes) -> int:
    # {"child-pid": 123, ...}: not worth a JSON parser in every warden's memory.
    return int(info.partition(b'"child-pid":')[2].partition(b",")[0].strip(b" }\n"))


def _read_all(fd: int) -> bytes:
    pieces = []
    while piece := os.read(fd, 4096):
        pieces.append(piece)
    return b"".join(pieces)


def _said(log: int) -> str:
    size = os.fstat(log).st_size
    return os.pread(log, min(size, 2000), max(0, size - 2000)).decode("utf-8", "replace").strip()


# The warden itself: it starts, obeys and ends.


def serve(
    base: root_filesystem.BaseLayers,
    spec: processes.Message,
    channel: socket.socket,
    state_fd: int,
    groups: CgroupFolders,
) -> NoReturn:
    """Start the sandbox `spec` describes and obey the engine until it goes. Never returns."""
    gc.disable()
    keeper = os.getppid()
    try:
        restrictions.die_with(keeper)
        record_fd = _create_record(state_fd, spec)
        own_proc = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        oom_fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        for group in spec["groups"]:
            groups.join(group)
        count_fd = groups.open_count(spec["groups"])
        started, mounted = _start(base, spec, record_fd)
        restrictions.die_with(keeper)
        enter_sandbox(base, started, spec)
        restrictions.die_with(keeper)
        restrictions.hide_memory()
        root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        _say_ready(channel, started, root_fd, mounted)
        _obey(channel, started, RunningCommands(own_proc, oom_fd, count_fd))
    except (OSError, StartError) as error:
        _report_failure(channel, error)
    _end_children()
    os._exit(0)


def _create_record(state_fd: int, spec: processes.Message) -> int:
    """Write what is known before the start; the descriptor is for what is known after."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    fd = os.open(spec["record_name"], flags, 0o600, dir_fd=state_fd)
    os.write(fd, spec["record"].encode())
    return fd


def _say_ready(
    channel: socket.socket, started: StartedSandbox, root_fd: int, mounted: Mounted | None
) -> None:
    ready: processes.Message = {"event": "ready", "pid": started.first_pid, "views": [], "prepared": ({}, {})}
    if mounted is None:
        processes.send_message(channel, ready, (root_fd,))
    else:
        ready["views"] = mounted.views
        ready["prepared"] = (mounted.folders, mounted.files)
        processes.send_message(channel, ready, (root_fd, mounted.box_fd, *mounted.view_fds))
        mounted.close()
    os.close(root_fd)


def _start(
    base: root_filesystem.BaseLayers, spec: processes.Message, record_fd: int
) -> tuple[StartedSandbox, Mounted | None]:
    mounted = None
    if base.mode == root_filesystem.ROOTLESS:
        leave_processes_to_the_user()
        argv = root_filesystem.rootless(base.shown_etc, base.hidden_etc, base.program_fd, spec)
    else:
        layer = base.layer(spec["rootfs"])
        mounted = mount_root(base, layer, spec)
        mount_views(base, mounted, spec)
        argv = root_filesystem.over_root(
            mounted.merged,
            base.program_fd,
            user_namespace=base.userns_fd is not None,
            has_devices=base.devices is not None,
            memory_mb=spec["memory_mb"],
        )
        if base.userns_fd is not None:
            enter_user_namespace(base.userns_fd)
    try:
        return start_bwrap(argv, base.program_fd, record_fd, spec["boot"]), mounted
    finally:
        os.close(record_fd)


def _obey(channel: socket.socket, started: StartedSandbox, commands: RunningCommands) -> None:
    """Run what the engine asks for until it hangs up or the sandbox's first process is gone."""
    inbox = processes.MessageInbox(channel)
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    bwrap_fd = os.pidfd_open(started.bwrap_pid)
    poller.register(bwrap_fd, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == bwrap_fd:
                return
            if fd != channel.fileno():
                poller.unregister(fd)
                ended = commands.reap(fd)
                if ended["code"] == -signal.SIGKILL and started.is_ending():
                    return  # it was not the command that was killed but the sandbox
                processes.send_message(channel, ended)
                continue
            for message, fds in inbox.receive():
                if message["op"] == "end":
                    signal.pidfd_send_signal(started.first_pidfd, signal.SIGKILL)
                    return
                answer = commands.obey(message, fds)
                if answer is not None and "error" in answer and started.is_ending():
                    return  # nothing starts any more because the sandbox ends
                if answer is not None:
                    processes.send_message(channel, answer)
                elif message["op"] == "exec":
                    poller.register(commands.newest, select.POLLIN)
            if inbox.ended:
                signal.pidfd_send_signal(started.first_pidfd, signal.SIGKILL)
                return


def _report_failure(channel: socket.socket, error: Exception) -> None:
    try:
        processes.send_message(channel, {"event": "failed", "error": str(error)})
    except OSError:
        pass  # the engine is gone; the end of this process is what matters


def _end_children() -> None:
    """Wait until all is dead. Commands are our children: the namespace cannot end before we reap them."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
