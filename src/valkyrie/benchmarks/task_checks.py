"""Mistakes of a task's author that are told when a run is planned: names, links and users."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote

from sandboxes.contents import LEFTOVERS
from valkyrie.benchmarks.task_toml import StepTable, TaskToml, VerifierTable
from valkyrie.permissions import outside

MOST_LINKS_TOLD = 5
_HIGHEST_ID = 2**32 - 2


def env_problems(config: TaskToml) -> Iterator[str]:
    """Variables that no process can have."""
    tables = {
        "environment.env": config.environment.env,
        "verifier.env": config.verifier.env,
        "solution.env": config.solution.env,
        **{f"step {step.name!r}: verifier.env": step.verifier.env for step in config.steps},
    }
    for where, env in tables.items():
        for name, value in env.items():
            if not name or "=" in name or "\0" in name:
                yield f"{where}: {name!r} is no name a variable can have; it is empty or holds `=` or NUL"
            elif "\0" in value:
                yield f"{where}: the value of {name} holds NUL, which no variable can"


def stray_problem(path: Path, root: Path, allowed: Sequence[Path] = ()) -> str | None:
    """Return why a file or folder of a task may not be read: it is a link that leaves the benchmark's folder.

    `root` is the folder the user named, `allowed` what else they allow.
    """
    if not os.path.lexists(path) or (real := outside(path, root, *allowed)) is None:
        return None
    shown = os.fsencode(real).decode("utf-8", "backslashreplace")
    way = f"put a copy in its place, or allow it with --allow-path {quote(shown)}"
    return f"leads out of {root} (to {shown}); {way}"


def link_problems(folder: Path) -> Iterator[tuple[Path, str]]:
    """Links in `folder` that cannot be brought into a sandbox with it."""
    top, told = os.path.realpath(folder), 0
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFTOVERS)
        for name in sorted([*folders, *files]):
            path = Path(place, name)
            if not path.is_symlink() or name in LEFTOVERS:
                continue
            if problem := _link_problem(path, top):
                told += 1
                if told > MOST_LINKS_TOLD:
                    yield folder, f"more links in {folder.name}/ cannot be brought into a sandbox"
                    return
                yield path, problem


def _link_problem(path: Path, top: str) -> str | None:
    target = os.path.realpath(path)
    if target != top and not target.startswith(f"{top}/"):
        where = os.fsencode(path.readlink()).decode("utf-8", "backslashreplace")
        return f"is a link that leaves its folder (to {where}); put a copy in its place"
    return None


def user_problems(config: TaskToml) -> Iterator[str]:
    """Users that cannot exist anywhere."""
    for where, user in _users(config).items():
        if _is_number(user):
            if not 0 <= int(user) <= _HIGHEST_ID:
                yield f"{where} = {user!r} is no number a user can have"
        elif not str(user).strip() or str(user).startswith("-") or set(str(user)) & set("\0\n:/ \t"):
            yield f"{where} = {user!r} is no name a user can have"


def unknown_users(config: TaskToml) -> list[str]:
    """Users that this host does not have, and with it no sandbox made of its files."""
    return [
        f"{where} = {user!r}: there is no such user, and nothing in the task makes one; add it in "
        "environment/setup.sh (useradd), or give a number"
        for where, user in _users(config).items()
        if not _is_number(user) and not _exists(str(user))
    ]


def _is_number(user: str | int) -> bool:
    return isinstance(user, int) or (user.isascii() and user.lstrip("-").isdigit())


def _users(config: TaskToml) -> Mapping[str, str | int]:
    tables: list[tuple[str, TaskToml | StepTable]] = [("", config)]
    tables += [(f"step {step.name!r}: ", step) for step in config.steps]
    found: dict[str, str | int | None] = {}
    for prefix, table in tables:
        found[f"{prefix}agent.user"] = table.agent.user
        verifier: VerifierTable = table.verifier
        found[f"{prefix}verifier.user"] = verifier.user
        for number, one in enumerate(verifier.collect):
            found[f"{prefix}verifier.collect[{number}].user"] = one.user
    return {where: user for where, user in found.items() if user is not None}


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
