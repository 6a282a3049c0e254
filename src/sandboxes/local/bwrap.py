"""The bubblewrap command line of a sandbox."""

# Without pathlib, which would be copied into every warden's memory.
# ruff: noqa: PTH110, PTH112, PTH114, PTH115, PTH208
from __future__ import annotations

import os

from sandboxes.local import layout, pid1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandboxes.local import wire

INFO_FD = 5

_MB = 1 << 20
_RUN_MB = 64
_SHM_MB = 256
# Beside 3/4 for the disk, so that all file systems together cannot use up a sandbox's memory.
_RUN_SHARE = 16
_SHM_SHARE = 8

_KERNEL_SWITCHES = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "asound")
"""Parts of /proc the machine's root may write to."""
_KERNEL_SECRETS = ("kcore", "keys", "key-users", "kpagecount", "kpageflags", "kpagecgroup", "timer_list")

_LOCAL = ("bin", "etc", "include", "lib", "sbin", "share", "src")
"""What /usr/local starts with."""

_ISOLATION = (
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"),
    *("--hostname", layout.HOSTNAME),
)


def _devices(memory_mb: int | None) -> list[str]:
    # /dev itself is a file system without a size: read-only closes that hole in the quota, and the
    # devices, /dev/pts and /dev/shm are mounts of their own which stay as they are.
    return [
        *("--dev", "/dev", "--proc", "/proc"),
        *("--size", str(_part(memory_mb, _RUN_SHARE, _RUN_MB) * _MB), "--tmpfs", "/run"),
        *("--perms", "1777", "--size", str(_part(memory_mb, _SHM_SHARE, _SHM_MB) * _MB)),
        *("--tmpfs", "/dev/shm"),
        *("--remount-ro", "/dev"),
    ]


def _part(memory_mb: int | None, share: int, most: int) -> int:
    return most if memory_mb is None else max(1, min(most, memory_mb // share))


def _ending(program_fd: int | None) -> list[str]:
    return [
        *("--clearenv", "--cap-drop", "ALL", "--new-session", "--as-pid-1", "--die-with-parent"),
        *("--chdir", "/", "--info-fd", str(INFO_FD), "--", *pid1.argv(program_fd)),
    ]


def over_root(
    merged: str, program_fd: int | None, *, user_namespace: bool, has_devices: bool, memory_mb: int | None
) -> list[str]:
    """Arguments for a sandbox whose root is the folder `merged`, started by root of whatever namespace.

    `has_devices`: its /dev is mounted already. The mounts carry their own restrictions.
    """
    if has_devices:
        argv = ["bwrap", "--dev-bind", merged, "/", "--proc", "/proc"]
    else:
        argv = ["bwrap", "--bind", merged, "/", *_devices(memory_mb)]
    if not user_namespace:
        argv += _closed_kernel()
    return [*argv, *_ISOLATION, *_ending(program_fd)]


def _usr() -> list[str]:
    """/usr one folder at a time, for /usr/local is to be on the sandbox's own file system."""
    argv = ["--perms", "0755", "--dir", "/usr"]
    for name in sorted(os.listdir("/usr")):
        if name != "local":
            argv += _shown(f"/usr/{name}")
    for name in ("", *_LOCAL):
        argv += ["--perms", "0755", "--dir", f"/usr/local/{name}"]
    return argv


def _shown(path: str) -> list[str]:
    if os.path.islink(path):
        return ["--symlink", os.readlink(path), path]
    return ["--ro-bind", path, path] if os.path.isdir(path) else []


def _closed_kernel() -> list[str]:
    argv: list[str] = []
    for name in _KERNEL_SWITCHES:
        if os.path.exists(f"/proc/{name}"):
            argv += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    for name in _KERNEL_SECRETS:
        if os.path.exists(f"/proc/{name}"):
            argv += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return argv


def rootless(
    etc: Sequence[str], hidden: Sequence[str], program_fd: int | None, spec: wire.Message
) -> list[str]:
    """Arguments for an ordinary user's sandbox: the host's system read-only, the rest private.

    One file system of `disk_mb` is the root; folders made on it share that quota. `etc` is shown, but what
    `hidden` names below it.
    """
    disk_mb: int = spec["disk_mb"]
    argv = ["bwrap", "--unshare-user", "--uid", "0", "--gid", "0", "--disable-userns"]
    argv += ["--size", str(disk_mb * _MB), "--tmpfs", "/"]
    for path in ("/etc", "/var", "/var/lib"):
        argv += ["--perms", "0755", "--dir", path]
    for name in layout.SYSTEM_TREES:
        argv += _usr() if name == "usr" else _shown(f"/{name}")
    for path in etc:
        argv += ["--ro-bind", path, path]
    for path in hidden:
        argv += (
            ["--tmpfs", path, "--remount-ro", path]
            if os.path.isdir(path)
            else ["--ro-bind", "/dev/null", path]
        )
    for name in layout.PRIVATE_FOLDERS:
        argv += ["--dir", f"/{name}"]
    argv += ["--perms", "0700", "--dir", "/root", "--dir", "/sys", "--dir", "/var/log"]
    argv += ["--perms", "1777", "--dir", "/tmp", "--perms", "1777", "--dir", "/var/tmp"]
    argv += ["--symlink", "/run", "/var/run"]
    for path in spec["separate"]:
        argv += ["--size", str(disk_mb * _MB), "--tmpfs", path]
    for source, target, _ in spec["mounts"]:
        argv += ["--ro-bind", source, target]
    return [*argv, *_devices(spec["memory_mb"]), *_ISOLATION, *_ending(program_fd)]
