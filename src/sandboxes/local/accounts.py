"""Who a command runs as: looked up in the sandbox's own account files, which the agent may have written."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxes.errors import SandboxFileNotFoundError, SandboxUserError
from sandboxes.rooted import RootedFiles

_MAX_BYTES = 1 << 20
_MAX_ID = 65_535
_MAX_GROUPS = 64


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the sandbox."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def look_up(files: RootedFiles, user: str) -> Account:
    """The account of a user name or numeric id. A number without an account is fine, a name is not."""
    for fields in _lines(files, "/etc/passwd", 7):
        name, _, uid, gid, _, home, _ = fields
        if name == user or (user.isdigit() and uid == user):
            return _account(files, name, int(uid), int(gid), home)
    if user.isdigit():
        return _account(files, user, int(user), int(user), "/")
    raise SandboxUserError(
        f"no user {user!r} in the sandbox; add it to /etc/passwd there (useradd) or give a number"
    )


def _account(files: RootedFiles, name: str, uid: int, gid: int, home: str) -> Account:
    if not (0 <= uid <= _MAX_ID and 0 <= gid <= _MAX_ID):
        raise SandboxUserError(f"user {name!r} has an id over {_MAX_ID}, which sandboxes do not have")
    groups = {gid}
    for _, _, number, members in _lines(files, "/etc/group", 4):
        if name in members.split(",") and int(number) <= _MAX_ID:
            groups.add(int(number))
    return Account(name, uid, gid, tuple(sorted(groups)[:_MAX_GROUPS]), home or "/")


def _lines(files: RootedFiles, path: str, count: int) -> list[list[str]]:
    try:
        text = b"".join(files.read(path, max_bytes=_MAX_BYTES)).decode("utf-8", "replace")
    except SandboxFileNotFoundError:
        return []
    split = [line.split(":") for line in text.splitlines()]
    return [fields for fields in split if len(fields) == count and fields[2].isdigit()]
