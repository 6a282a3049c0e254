"""A person's shell in a sandbox, under the restrictions of its commands.

Run by the host's Python and not by tools found inside: those are the agent's to replace, and they would
start with more rights than commands have.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sandboxes.local import mounts, processes, restrictions, root_filesystem, warden
from sandboxes.local.restrictions import CgroupFolders

_SOURCE_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from sandboxes.local.shell import main; main()"


def argv(first_pid: int, groups: Sequence[str], mode: str, env: Mapping[str, str]) -> list[str]:
    """The host command that opens the shell."""
    mark = processes.ProcessIdentity.of(first_pid)
    start = 0 if mark is None else mark.start
    settings = [f"{name}={value}" for name, value in env.items()]
    head = [sys.executable, "-I", "-S", "-c", _BOOT, _SOURCE_ROOT, mode, str(first_pid), str(start)]
    return [*head, str(len(groups)), *groups, *settings]


def main() -> None:
    """Enter the sandbox named by the arguments and run its shell on this terminal."""
    mode, pid, start, count, *rest = sys.argv[1:]
    env = dict(setting.split("=", 1) for setting in rest[int(count) :])
    pidfd = processes.ProcessIdentity(int(pid), int(start), processes.boot_id()).open()
    if pidfd is None:
        sys.exit("The sandbox is gone.")
    joined = rest[: int(count)]
    folders = {str(Path(group).parent) for group in joined}
    parents = CgroupFolders({path: os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in folders})
    for group in joined:
        parents.join(group)
    flags = 0 if mode == root_filesystem.PLAIN else mounts.CLONE_NEWUSER
    last = restrictions.last_capability()
    restrictions.hide_memory()
    warden.enter_namespaces(pidfd, flags)
    warden.restrict(mode, last)
    restrictions.install_seccomp(mounting=False)
    child = os.fork()
    if child == 0:
        with suppress(OSError):  # the folder may be gone; the root will do
            os.chdir(env.get("PWD", "/"))
        program = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
        os.execve(program, [program, "-i"], {**env, "TERM": "xterm"})  # noqa: S606 - a shell is what it is
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)
