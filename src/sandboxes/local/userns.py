"""Whether an ordinary user may have user namespaces, found out by trying, and the ways out where not."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sandboxes.local import startup

_TRY_SECONDS = 20
_SYSCTLS = Path("/proc/sys")
_NAMESPACES = ("--unshare-user", "--uid", "0", "--gid", "0", "--disable-userns")
_WALLS = (
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
)
_FORK_AS_THE_SECOND = ("prlimit", "--nproc=2", "/bin/sh", "-c", "/bin/true; :")

_APPARMOR_PROFILE = r"abi <abi/4.0>,\nprofile bwrap /usr/bin/bwrap flags=(unconfined) {\n  userns,\n}\n"
_SWITCHES = (
    (
        "kernel.apparmor_restrict_unprivileged_userns",
        "1",
        f"printf '{_APPARMOR_PROFILE}' | sudo tee /etc/apparmor.d/bwrap"
        " && sudo apparmor_parser -r /etc/apparmor.d/bwrap (an AppArmor profile that lets bwrap alone make"
        " them), or sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (lets everyone)",
    ),
    ("kernel.unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    ("user.max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
)
_IN_A_CONTAINER = (
    "in a container start it with --privileged, or with --security-opt seccomp=unconfined --security-opt"
    " apparmor=unconfined --security-opt systempaths=unconfined; elsewhere run as root"
)


def problem(switches: Path = _SYSCTLS) -> str | None:
    """Why bubblewrap cannot make a sandbox for this user, with the way out; None when it can."""
    done = _bwrap(*_NAMESPACES, "--ro-bind", "/", "/", *_WALLS, "--", "/bin/true")
    if done.returncode == 0:
        return None
    said = done.stderr.strip().removeprefix("bwrap: ") or f"exit code {done.returncode}"
    if "nknown option" in said:
        version = _bwrap("--version").stdout.strip() or "this bubblewrap"
        return f"{version} is too old ({said}); install bubblewrap 0.8 or newer, or run as root"
    ways = [f"{name} is {value}: {way}" for name, value, way in restrictions(switches)]
    return f"bubblewrap may not make a sandbox for this user ({said}); {'; '.join(ways) or _IN_A_CONTAINER}"


def restrictions(switches: Path = _SYSCTLS) -> list[tuple[str, str, str]]:
    """The kernel's switches that are set against user namespaces: name, value, way out."""
    found = []
    for name, against, way_out in _SWITCHES:
        try:
            value = (switches / name.replace(".", "/")).read_text().strip()
        except OSError:
            continue  # this kernel does not have it
        if value == against:
            found.append((name, value, way_out))
    return found


def counts_processes() -> bool:
    """Whether the limit on processes counts those of one user namespace only, as it does from Linux 5.14."""
    # The second process of a new namespace, while its user has at least three.
    return _bwrap(*_NAMESPACES, "--ro-bind", "/", "/", "--", *_FORK_AS_THE_SECOND).returncode == 0


def _bwrap(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [startup.BWRAP, *arguments]
    return subprocess.run(argv, env={}, capture_output=True, text=True, timeout=_TRY_SECONDS, cwd="/")
