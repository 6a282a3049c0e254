"""Which of an agent's changes are its work, and which are changes to the system the tests stand on.

One list for every provider and every benchmark; docs/concepts/verification.md shows it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch

from sandboxes.work import CarryRules, Change, is_below
from valkyrie.nouns import TaskSpec

SYSTEM_FOLDERS = (
    *(
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/usr",
        "/etc",
        "/opt",
        "/boot",
        "/nix",
        "/snap",
    ),
    *("/var/lib", "/var/cache", "/var/spool", "/var/run", "/var/lock"),
)
"""Not carried: programs, libraries, configuration and packages come from the clean side."""

TOOL_FOLDERS = (
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec"),
    *("/usr/local/bin", "/usr/local/sbin", "/usr/local/lib"),
    *("/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/profile"),
    *("/etc/profile.d", "/etc/bash.bashrc", "/etc/environment", "/etc/passwd", "/etc/group", "/etc/shadow"),
    *("/etc/pam.d", "/etc/sudoers", "/etc/sudoers.d", "/etc/nsswitch.conf"),
)
"""Not carried either where a task's working folder is a system folder above one of these."""

HOMES = ("/root", "/home/*")
"""Their hidden entries are read by shells, interpreters and git when they start."""

FORBIDDEN = ("/tests", "/logs/verifier", "/solution", "/proc", "/sys", "/dev", "/run")
"""Where tests, rewards and solutions are, and what is not a file system of the sandbox's own."""

TEST_FOLDERS = ("/tests", "/logs/verifier", "/solution")
"""Those of them a link may lead to so that an answer is what the tests expect."""

AGENT_FOLDERS = ("/bundle",)
"""Where an agent itself is installed."""

_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_PROGRAM_FOLDERS = ("/bin", "/sbin", "/usr/bin", "/usr/sbin")
_PUT_BACK = (
    *("/lib*.so*", "/usr/lib*.so*", "/usr/lib/python3*", "/usr/local/lib/python3*", "/usr/share/perl*"),
    *("/usr/lib/*/perl*", "/etc/ld.so.*", "/etc/profile", "/etc/profile.d/*", "/etc/bash.bashrc"),
    *("/etc/nsswitch.conf", "/etc/pam.d/*"),
    *(
        f"/usr/local/bin/{name}"
        for name in ("python*", "pip*", "node", "npm", "npx", "perl*", "ruby", "bash")
    ),
    *(f"/usr/local/bin/{name}" for name in ("sh", "uv", "uvx", "pytest", "git", "env")),
)
"""Files of the image that a shell, an interpreter, the loader or a test tool is made of."""
_START_UP = (
    *("/etc/ld.so.preload", "*/sitecustomize.py", "*/usercustomize.py"),
    *("/usr/*/python3*/__pycache__/*.pyc", "/etc/gitconfig", "*/.gitconfig", "*/.config/git/*"),
)
"""Files that run by themselves in a program or interpreter of the image, whoever added them."""
_PACKAGE_START_UP = ("*-packages/*.pth",)
"""The same of installed packages: they stay where a task says that its work is the system."""
BLOCKED = ".blocked"
"""The name of no file: to put it back, whatever stands in the place of its folder has to go."""


def _with_folders_above(paths: Iterable[str]) -> frozenset[str]:
    found = set()
    for path in paths:
        parts = path.strip("/").split("/")
        found |= {"/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
    return frozenset(found)


_ABOVE_TOOLS = _with_folders_above(
    (*_PATH, "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc")
)
"""Folders of tools, and those above them: a link in place of one leads to other tools."""

_ABOVE_HOMES = frozenset({"/", "/root", "/home", "/tmp"})

LINK_RULES = CarryRules(forbidden=TEST_FOLDERS)
"""All that changed, and which of its links lead to the tests."""


def tool_folders(path: str, cwd: str) -> tuple[str, ...]:
    """Folders of an image's own tools that are in no system folder, from its PATH.

    With `bin` goes what is beside it: an interpreter has its libraries there.
    """
    found = set()
    for folder in filter(lambda one: one.startswith("/"), path.split(":")):
        place = posixpath.normpath(folder)
        above = posixpath.dirname(place)
        if posixpath.basename(place) in ("bin", "sbin") and above not in _ABOVE_HOMES:
            place = above
        if (
            place not in _ABOVE_HOMES
            and place != cwd
            and not is_below(place, cwd)
            and not is_below(cwd, place)
        ):
            found.add(place)
    return tuple(sorted(found - _ABOVE_TOOLS))


def rules_for(task: TaskSpec, tools: Sequence[str] = ()) -> CarryRules:
    """What of a task's sandbox is carried: all but the system and its tools, the working folder always."""
    return CarryRules(
        carried=("/", *((task.cwd,) if task.cwd != "/" else ()), *task.carry),
        left=(*SYSTEM_FOLDERS, *TOOL_FOLDERS, *AGENT_FOLDERS, *tools),
        homes=HOMES,
        forbidden=FORBIDDEN,
    )


def carries_tools(task: TaskSpec) -> bool:
    """Whether a task carries something its tests may be run by."""
    return any(
        path == tool or is_below(path, tool) or is_below(tool, path)
        for path in task.carry
        for tool in (*TOOL_FOLDERS, *_PROGRAM_FOLDERS, "/lib", "/lib64")
    )


def tampered(changes: Iterable[Change], tools: Sequence[str] = (), *, strict: bool = True) -> list[str]:
    """The image's own tools among the changes, and what runs by itself in every program: to be put back.

    `tools`: folders of tools outside the system. `strict`: start-up files of installed packages as well.
    """
    found = []
    start_up = (*_START_UP, *_PACKAGE_START_UP) if strict else _START_UP
    for change in changes:
        changed = change.kind != "added"
        if changed and change.path in _ABOVE_TOOLS:
            found.append(f"{change.path}/{BLOCKED}")
            continue
        own_program = any(is_below(change.path, folder) for folder in (*_PROGRAM_FOLDERS, *tools))
        own_tool = own_program or any(fnmatch(change.path, pattern) for pattern in _PUT_BACK)
        if (changed and own_tool) or any(fnmatch(change.path, pattern) for pattern in start_up):
            found.append(change.path)
    return found


def shadows(changes: Iterable[Change]) -> dict[str, Sequence[str]]:
    """Programs that were added where PATH looks, each with the places where it may hide one of the image."""
    found: dict[str, Sequence[str]] = {}
    for change in changes:
        folder, _, name = change.path.rpartition("/")
        if change.kind == "added" and folder in _PATH:
            found[change.path] = [f"{other}/{name}" for other in _PATH if other != folder]
    return found
