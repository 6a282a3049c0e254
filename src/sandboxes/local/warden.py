"""One small process per sandbox that starts it, runs commands in it, and ends it.

It is forked from the keeper, joins the sandbox's cgroup and namespaces, and stays in the host's pid
namespace: nothing inside can see or signal it, and the exit codes it reports are the kernel's. Commands
start by vfork from here, so entering the sandbox costs nothing per command.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket

from sandboxes.local import processes, restrictions, root_filesystem, startup
from sandboxes.local.processes import RunningCommands
from sandboxes.local.restrictions import CgroupFolders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


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
        startup.enter_sandbox(base, started, spec)
        restrictions.die_with(keeper)
        restrictions.hide_memory()
        root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        _say_ready(channel, started, root_fd, mounted)
        _obey(channel, started, RunningCommands(own_proc, oom_fd, count_fd))
    except (OSError, startup.StartError) as error:
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
    channel: socket.socket, started: startup.StartedSandbox, root_fd: int, mounted: startup.Mounted | None
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
) -> tuple[startup.StartedSandbox, startup.Mounted | None]:
    mounted = None
    if base.mode == root_filesystem.ROOTLESS:
        startup.leave_processes_to_the_user()
        argv = root_filesystem.rootless(base.shown_etc, base.hidden_etc, base.program_fd, spec)
    else:
        layer = base.layer(spec["rootfs"])
        mounted = startup.mount_root(base, layer, spec)
        startup.mount_views(base, mounted, spec)
        argv = root_filesystem.over_root(
            mounted.merged,
            base.program_fd,
            user_namespace=base.userns_fd is not None,
            has_devices=base.devices is not None,
            memory_mb=spec["memory_mb"],
        )
        if base.userns_fd is not None:
            startup.enter_user_namespace(base.userns_fd)
    try:
        return startup.start_bwrap(argv, base.program_fd, record_fd, spec["boot"]), mounted
    finally:
        os.close(record_fd)


def _obey(channel: socket.socket, started: startup.StartedSandbox, commands: RunningCommands) -> None:
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
