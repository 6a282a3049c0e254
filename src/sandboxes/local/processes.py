"""Identify processes, pass messages with descriptors between ours, and start, reap and kill the commands of
a sandbox."""

# ruff: noqa: PTH116, PTH208
from __future__ import annotations

import array
import errno
import marshal
import os
import select
import signal
import socket
import stat
import struct
import time

from sandboxes.local import mounts

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NoReturn


PF_EXITING = 0x4


class ProcessIdentity:
    """One process of one boot of one machine."""

    __slots__ = ("boot", "pid", "start")

    def __init__(self, pid: int, start: int, boot: str) -> None:
        self.pid = pid
        self.start = start
        self.boot = boot

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The process that has this pid now."""
        start = start_time(pid)
        return None if start is None else cls(pid, start, boot_id())

    def open(self) -> int | None:
        """A pidfd of exactly this process, or None when it is gone."""
        if self.boot != boot_id():
            return None
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        # The pidfd was taken first: if the start time still fits, both speak of the same process.
        if start_time(self.pid) == self.start:
            return pidfd
        os.close(pidfd)
        return None

    def alive(self) -> bool:
        """Return whether exactly this process still runs."""
        pidfd = self.open()
        if pidfd is None:
            return False
        os.close(pidfd)
        return True


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is none or it is a zombie."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_exiting(pid: int) -> bool:
    """Return whether the process is gone, a zombie, or on its way to become one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & PF_EXITING)


def boot_id() -> str:
    """This boot of this machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


# Messages with file descriptors between our own processes, over a unix stream socket.
#
# A message is five bytes (length, number of descriptors) and a marshalled dict. Both ends run this very code
# in the same interpreter, which is what marshal is for; nothing an agent says is ever decoded here.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Message = dict[str, Any]

ENDED_LINE = b'{"ended": true}\n'
"""What a process that ends another one's sandbox adds to its record."""

_HEADER = struct.Struct("!IB")
_MAX_FDS = 64
_FD_SPACE = socket.CMSG_SPACE(_MAX_FDS * 4)


def encode_message(message: Message, fd_count: int = 0) -> bytes:
    """One message as bytes."""
    body = marshal.dumps(message)
    return _HEADER.pack(len(body), fd_count) + body


def send_some_bytes(sock: socket.socket, data: bytes | memoryview, fds: Sequence[int] = ()) -> int:
    """Send what goes now; descriptors travel with the first byte."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    return sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def send_message(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message on a blocking socket."""
    data = memoryview(encode_message(message, len(fds)))
    sent = send_some_bytes(sock, data, fds)
    while sent < len(data):
        sent += send_some_bytes(sock, data[sent:])


class MessageInbox:
    """Puts messages back together from whatever pieces arrive."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()
        self._fds: list[int] = []
        self.ended = False
        self.lacked_files = False
        """It ended because this process could not take the descriptors that came."""

    def receive(self) -> list[tuple[Message, list[int]]]:
        """Take in what is there; the messages that are complete. Raises BlockingIOError like the socket."""
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(1 << 16, _FD_SPACE, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            data, ancillary, flags = b"", [], 0
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._fds.extend(fds)
        if not data or flags & socket.MSG_CTRUNC:
            self.lacked_files = bool(data)
            self.ended = True
            self.close()
            return []
        self._data += data
        return self._complete()

    def _complete(self) -> list[tuple[Message, list[int]]]:
        found: list[tuple[Message, list[int]]] = []
        while len(self._data) >= _HEADER.size:
            length, fd_count = _HEADER.unpack_from(self._data)
            end = _HEADER.size + length
            if len(self._data) < end:
                break
            message = marshal.loads(self._data[_HEADER.size : end])  # noqa: S302 - see above
            del self._data[:end]
            found.append((message, self._fds[:fd_count]))
            del self._fds[:fd_count]
        return found

    def close(self) -> None:
        """Close descriptors that came with a message that never completed."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


# Turning a request into a process: program lookup, working folder, user, and the words for failures.


NOT_FOUND = 127
NOT_RUNNABLE = 126
_RESET_SIGNALS = [
    signal.SIGPIPE,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGXFSZ,
]

Streams = tuple[int, int, int]


class ExecError(Exception):
    """The command could not be started; the message is for its error output, the code its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def spawn(request: Message, streams: Streams) -> int:
    """Start the program in its own session; its pid."""
    if request["user"] is not None:
        return _fork_as_user(request, streams)
    _enter_folder(request["cwd"])
    program = find_program(request["argv"][0], request["env"].get("PATH", os.defpath))
    try:
        return os.posix_spawn(
            program,
            request["argv"],
            request["env"],
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)],
            setsid=True,
            setsigmask=[],
            setsigdef=_RESET_SIGNALS,
        )
    except OSError as error:
        raise _explained(error, request["argv"][0]) from error
    finally:
        os.chdir("/")


def find_program(name: str, path: str) -> str:
    """The file `name` means, as a shell looks it up."""
    if "/" in name:
        return name
    found_folder = False
    for folder in path.split(":"):
        candidate = f"{folder or '.'}/{name}"
        try:
            mode = os.stat(candidate).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and os.access(candidate, os.X_OK):
            return candidate
        found_folder = True
    reason = "permission denied" if found_folder else "command not found"
    raise ExecError(f"{name}: {reason}", NOT_RUNNABLE if found_folder else NOT_FOUND)


def _enter_folder(path: str) -> None:
    try:
        os.chdir(path)
    except OSError as error:
        raise ExecError(f"cannot enter working folder {path}: {error.strerror}", NOT_FOUND) from error


def _explained(error: OSError, name: str) -> Exception:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ExecError(f"{name}: not found", NOT_FOUND)
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return OSError(error.errno, f"no room for another process in the sandbox ({error.strerror})")
    return ExecError(f"{name}: {error.strerror}", NOT_RUNNABLE)


def _fork_as_user(request: Message, streams: Streams) -> int:
    # posix_spawn cannot change the user, and the folder must be entered with the user's own rights.
    failed_read, failed_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(request, streams, failed_write)
    os.close(failed_write)
    try:
        report = os.read(failed_read, 4096).decode("utf-8", "replace")
    finally:
        os.close(failed_read)
    if not report:
        return pid
    os.waitpid(pid, 0)
    code, _, message = report.partition(" ")
    raise ExecError(message, int(code))


def _become(request: Message, streams: Streams, failed: int) -> None:
    try:
        os.setsid()
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        for number in _RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        uid, gid, groups = request["user"]
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        _enter_folder(request["cwd"])
        program = find_program(request["argv"][0], request["env"].get("PATH", os.defpath))
        os.execve(program, request["argv"], request["env"])  # noqa: S606 - the command, as it was given
    except ExecError as error:
        os.write(failed, f"{error.code} {error}".encode("utf-8", "replace"))
    except OSError as error:
        os.write(failed, f"{NOT_RUNNABLE} {request['argv'][0]}: {error.strerror}".encode("utf-8", "replace"))
    finally:
        os._exit(NOT_RUNNABLE)


# Ending every process of a sandbox but its first, whatever they do about it.
#
# Two blows, in turns. From inside the pid namespace `kill(-1)` hits everyone in one system call, which no
# fork can outrun. With a shifted user namespace nobody inside can touch the one who strikes; without, it can
# be stopped before it does. So the second blow comes from outside, one process at a time, by descriptor. An
# agent has to beat both at once.

_PATIENCE_SECONDS = 10.0
_BLOW_SECONDS = 0.3
_PAUSE_MS = 2
_FIRST = "1"


def kill_everyone(first_pid: int, first_pidfd: int, namespaces: int) -> NoReturn:
    """In a process made for it: exit with 0 once the sandbox's first process is alone."""
    code = 1
    try:
        own_namespace = os.stat("/proc/self/ns/pid").st_ino
        mounts.setns(first_pidfd, namespaces)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while code != 0 and time.monotonic() < deadline:
            code = _blow_inside(own_namespace)
            if code != 0:
                _blow_outside(f"/proc/{first_pid}/root/proc")
    except FileNotFoundError:
        code = 0  # the sandbox itself is gone
    finally:
        os._exit(code)


def _blow_inside(outer_namespace: int) -> int:
    """0 once nobody was left to hit."""
    try:
        pid = os.fork()
    except BlockingIOError:
        return 1  # sandboxes have used up what their user may start; the blow from outside makes room
    if pid == 0:
        _strike(outer_namespace)
    pidfd = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if not poller.poll(int(_BLOW_SECONDS * 1000)):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    return abs(os.waitstatus_to_exitcode(status))


def _strike(outer_namespace: int) -> NoReturn:
    code = 1
    try:
        # "Everyone" must not mean the host.
        if os.stat("/proc/self/ns/pid").st_ino == outer_namespace:
            os._exit(code)
        poller = select.poll()
        while True:
            os.kill(-1, signal.SIGKILL)
            poller.poll(_PAUSE_MS)
    except ProcessLookupError:
        code = 0
    finally:
        os._exit(code)


def _blow_outside(proc: str) -> None:
    folder = os.open(proc, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(folder):
            if name.isdigit() and name != _FIRST:
                kill_entry(folder, name)
    finally:
        os.close(folder)


def kill_entry(proc: int, name: str, tag: int | None = None) -> bool:
    """Kill the process `name` of the /proc folder, if it is in UTS namespace `tag` or that is None."""
    try:
        # A folder of /proc serves as a pidfd, so tag and signal are about the same process.
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    except (FileNotFoundError, ProcessLookupError):
        return False
    try:
        if tag is not None and os.stat("ns/uts", dir_fd=fd).st_ino != tag:
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True


# Commands of one sandbox, as its warden runs them: start, reap, kill with everything they started.
#
# Each command gets a UTS namespace of its own. That is its tag: inherited by every process it starts, and
# not to be shed, since leaving a namespace takes a capability no command has. Sessions, process groups,
# parents and environments an agent can change; this it cannot.

_KILL_SECONDS = 2.0
_OOM_FIRST = b"700"
_OOM_NORMAL = b"0"

OUR_OWN_PIDS = 3
"""Warden, bubblewrap and first process share the sandbox's cgroup."""
OUR_OWN_PIDS_INSIDE = 2
"""In the user namespace of an ordinary user's sandbox are warden and first process."""


class _Running:
    def __init__(self, number: int, pid: int, tag: int) -> None:
        self.number = number
        self.pid = pid
        self.tag = tag


class RunningCommands:
    """The commands that run now, by the pidfd of each one's first process."""

    def __init__(self, own_proc: int, oom_fd: int, count_fd: int | None) -> None:
        self._count_fd = count_fd
        self._own_proc = own_proc
        self._oom_fd = oom_fd
        self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._running: dict[int, _Running] = {}
        self.newest = -1

    def obey(self, message: Message, fds: list[int]) -> Message | None:
        """Do what is asked; the answer, if it is known at once."""
        try:
            if message["op"] == "exec":
                return self._start(message, fds)
            if message["op"] == "count":
                return {"event": "count", "n": message["n"], "alone": self._is_empty()}
            return self._kill(message["n"])
        finally:
            for fd in fds:
                os.close(fd)

    def reap(self, pidfd: int) -> Message:
        """The exit of the command whose pidfd became readable."""
        running = self._running.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(running.pid, 0)
        return {"event": "exit", "n": running.number, "code": os.waitstatus_to_exitcode(status)}

    def _start(self, message: Message, fds: list[int]) -> Message | None:
        try:
            mounts.unshare(mounts.CLONE_NEWUTS)
            tag = os.stat("ns/uts", dir_fd=self._own_proc).st_ino
            # Out of memory, the kernel takes a command before it takes this process or the first one.
            os.pwrite(self._oom_fd, _OOM_FIRST, 0)
            try:
                pid = spawn(message, (self._null, fds[0], fds[1]))
            finally:
                os.pwrite(self._oom_fd, _OOM_NORMAL, 0)
        except ExecError as error:
            os.write(fds[1], f"{error}\n".encode("utf-8", "replace"))
            return {"event": "exit", "n": message["n"], "code": error.code}
        except OSError as error:
            return {"event": "exit", "n": message["n"], "error": str(error)}
        self.newest = os.pidfd_open(pid)
        self._running[self.newest] = _Running(message["n"], pid, tag)
        return None

    def _is_empty(self) -> bool:
        """Return whether no process runs but our own. The kernel's count is exact, forks in flight
        included."""
        return self._count_fd is not None and int(os.pread(self._count_fd, 20, 0)) == OUR_OWN_PIDS

    def _kill(self, number: int) -> Message | None:
        """Kill a command with everything that carries its tag; what escapes the race is for kill_all."""
        tags = [running.tag for running in self._running.values() if running.number == number]
        deadline = time.monotonic() + _KILL_SECONDS
        while tags and self._kill_tagged(tags[0]):
            if time.monotonic() > deadline:
                return {"event": "unkillable", "n": number}
        return None

    def _kill_tagged(self, tag: int) -> int:
        names = [name for name in os.listdir(self._proc) if name.isdigit() and name != "1"]
        return sum(kill_entry(self._proc, name, tag) for name in names)
