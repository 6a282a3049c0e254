"""The keeper: one small process per provider that owns the mounts and forks a warden per sandbox.

It is a fresh program with a clean environment. When the engine goes, even by kill -9, its socket ends
and the keeper ends every sandbox before it leaves.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys

from sandboxes.local import mounts, processes, restrictions, root_filesystem, warden
from sandboxes.local.processes import ENDED_LINE
from sandboxes.local.restrictions import CgroupFolders

_PAUSE_MS = 1
_RESTARTED = "VALKYRIE_KEEPER_RESTARTED"


class Keeper:
    """Serves one engine over one socket."""

    def __init__(
        self, engine: socket.socket, base: root_filesystem.BaseLayers, state_fd: int, groups: CgroupFolders
    ) -> None:
        self._engine = engine
        self._base = base
        self._state_fd = state_fd
        self._groups = groups
        self._wardens: dict[int, processes.Message] = {}
        self._killers: dict[int, tuple[int, list[str]]] = {}
        self._pidfds: dict[int, int] = {}
        self._poller = select.poll()

    def run(self) -> None:
        """Serve until the engine hangs up, then end everything."""
        inbox = processes.MessageInbox(self._engine)
        self._poller.register(self._engine, select.POLLIN)
        while not inbox.ended:
            for fd, _ in self._poller.poll():
                if fd in self._pidfds:
                    self._reap(fd)
                    continue
                for message, fds in inbox.receive():
                    self._obey(message, fds)
        self._end_all()

    def _watch(self, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        self._pidfds[pidfd] = pid
        self._poller.register(pidfd, select.POLLIN)

    def _obey(self, message: processes.Message, fds: list[int]) -> None:
        operation = message["op"]
        if operation == "create":
            self._create(message, fds[0])
        elif operation == "kill_all":
            self._kill_all(message, fds[0])
        elif operation == "lower":
            self._send_lower(message)
        elif operation == "end":
            for pid, spec in self._wardens.items():
                if spec["id"] == message["id"]:
                    os.kill(pid, signal.SIGKILL)

    def _create(self, spec: processes.Message, channel_fd: int) -> None:
        with socket.socket(fileno=channel_fd) as channel:
            try:
                if self._base.mode != root_filesystem.ROOTLESS:
                    self._base.layer(spec["rootfs"])
                    for source, *_ in spec["mounts"]:
                        self._base.shown(source)
                    for source, *_ in spec["views"]:
                        self._base.viewed(source)
                pid = os.fork()
            except OSError as error:
                processes.send_message(channel, {"event": "failed", "error": str(error)})
                self._clear(spec)
                return
            if pid == 0:
                self._engine.close()
                warden.serve(self._base, spec, channel, self._state_fd, self._groups)
        self._wardens[pid] = spec
        self._watch(pid)

    def _send_lower(self, message: processes.Message) -> None:
        """Hand out the lower layers of sandboxes with that root, to compare theirs with."""
        layer = self._base.layer(message["rootfs"])
        paths = [layer.root, *(path for _, path in layer.trees)]
        fds = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in paths]
        names = [name for name, _ in layer.trees]
        try:
            processes.send_message(self._engine, {"event": "lower", "n": message["n"], "trees": names}, fds)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the engine left; the loop sees it next
        finally:
            for fd in fds:
                os.close(fd)

    def _kill_all(self, message: processes.Message, first_pidfd: int) -> None:
        """Kill everything in a sandbox but its first process.

        By a child of this process, outside the sandbox's cgroup: a full sandbox cannot keep it out.
        """
        self._groups.make_way(message["groups"])
        try:
            helper = os.fork()
        except OSError:
            os.close(first_pidfd)
            self._groups.restore(message["groups"])
            self._tell({"event": "killed", "n": message["n"], "code": 1})
            return
        if helper == 0:
            self._engine.close()
            # Root stays out of the user namespace: there it is nobody the sandbox could signal.
            user = mounts.CLONE_NEWUSER if self._base.mode == root_filesystem.ROOTLESS else 0
            processes.kill_everyone(message["first"], first_pidfd, mounts.CLONE_NEWPID | user)
        os.close(first_pidfd)
        self._killers[helper] = message["n"], message["groups"]
        self._watch(helper)

    def _reap(self, pidfd: int) -> None:
        self._poller.unregister(pidfd)
        os.close(pidfd)
        pid, status = os.waitpid(self._pidfds.pop(pidfd), 0)
        if pid in self._killers:
            number, groups = self._killers.pop(pid)
            self._groups.restore(groups)
            self._tell({"event": "killed", "n": number, "code": os.waitstatus_to_exitcode(status)})
            return
        spec = self._wardens.pop(pid)
        if status != 0:
            self._kill_orphans()
        self._clear(spec)

    def _clear(self, spec: processes.Message) -> None:
        """A sandbox and its warden are gone: so goes what is left of it outside."""
        outside = self._groups.starved_from_outside(spec["groups"]) or self._was_ended(spec["record_name"])
        for group in spec["groups"]:
            self._groups.remove(group)
        try:
            os.unlink(spec["record_name"], dir_fd=self._state_fd)
        except FileNotFoundError:
            pass  # it failed before it was written
        self._tell({"event": "gone", "id": spec["id"], "outside": outside})

    def _was_ended(self, record_name: str) -> bool:
        """Return whether another process of ours noted that it ends this sandbox."""
        try:
            fd = os.open(record_name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._state_fd)
        except FileNotFoundError:
            return False
        with open(fd, "rb") as file:
            return file.read().endswith(ENDED_LINE)

    def _tell(self, event: processes.Message) -> None:
        try:
            processes.send_message(self._engine, event)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the engine left; the loop sees it next

    def _kill_orphans(self) -> None:
        """A warden that was killed leaves its bubblewrap to us, and that its first process."""
        own = {*self._wardens, *self._killers}
        poller = select.poll()
        while orphans := [pid for pid in _children() if pid not in own]:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                # Without waiting: a first process can go only after the others have been reaped.
                os.waitpid(pid, os.WNOHANG)
            poller.poll(_PAUSE_MS)

    def _end_all(self) -> None:
        # Each warden's own channel ended too, and it is ending its sandbox; this is for those that hang.
        for pid in self._wardens:
            os.kill(pid, signal.SIGKILL)
        while self._wardens:
            pid, _ = os.waitpid(-1, 0)
            if pid in self._wardens:
                spec = self._wardens.pop(pid)
                self._kill_orphans()
                self._clear(spec)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def main() -> None:
    """Entry. Arguments: mode, the engine's socket, folders as `descriptor:path`, the records' first."""
    mode, socket_fd, state, *groups = sys.argv[1:]
    if mode == root_filesystem.PLAIN:
        _restart_read_only()
    engine = socket.socket(fileno=int(socket_fd))
    engine.set_inheritable(False)
    state_fd, _ = _folder(state)
    parents = {path: fd for fd, path in map(_folder, groups)}
    if mode != root_filesystem.ROOTLESS:
        restrictions.hide_memory()
    restrictions.adopt_orphans()
    try:
        base = root_filesystem.prepare_layers(mode)
        if mode != root_filesystem.ROOTLESS:
            restrictions.install_seccomp(mounting=True)
    except OSError as error:
        processes.send_message(engine, {"event": "failed", "error": str(error)})
        return
    userns = [] if base.userns_fd is None else [base.userns_fd]
    processes.send_message(engine, {"event": "hello", "owner": base.owner}, userns)
    gc.collect()
    gc.freeze()
    gc.disable()
    Keeper(engine, base, state_fd, CgroupFolders(parents)).run()


def _folder(argument: str) -> tuple[int, str]:
    fd, _, path = argument.partition(":")
    os.set_inheritable(int(fd), False)
    return int(fd), path


def _restart_read_only() -> None:
    """Run this program again from mounts nobody can write through.

    Without a user namespace, commands are the machine's root. For a moment they are this very program,
    and a link inside may name its file (`/proc/self/exe`): it must not be theirs to change.
    """
    if _RESTARTED in os.environ:
        return
    mounts.unshare(mounts.CLONE_NEWNS)
    mounts.make_private()
    mounts.make_read_only()
    os.execve(sys.executable, sys.orig_argv, {_RESTARTED: "1"})  # noqa: S606 - itself


if __name__ == "__main__":
    main()
