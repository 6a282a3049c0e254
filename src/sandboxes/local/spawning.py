"""Turning a request into a process: program lookup, working folder, user, and the words for failures."""

# Without pathlib, which would be copied into every warden's memory.
# ruff: noqa: PTH116
from __future__ import annotations

import errno
import os
import signal
import stat

from sandboxes.local import wire

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


def spawn(request: wire.Message, streams: Streams) -> int:
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


def _fork_as_user(request: wire.Message, streams: Streams) -> int:
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


def _become(request: wire.Message, streams: Streams, failed: int) -> None:
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
