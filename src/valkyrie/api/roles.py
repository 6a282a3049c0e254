"""Which role of a key each request needs, decided from its method and path before its body is read."""

from __future__ import annotations

import re

from valkyrie.errors import RoleError
from valkyrie.nouns import Identity, Role

_LOOKS = frozenset({"GET", "HEAD"})
_ADMIN = re.compile(r"/v1/organisation(/.*)?|/v1/audit")
_READ_BY_POST = re.compile(r"/v1/runs/[^/]+/(results|outputs|logs)")
"""What is asked for does not fit in an address, so it is posted; nothing is changed."""
_MEMBER_LOOKS = re.compile(r"/v1/runs/[^/]+/shell")
_UNRECORDED = re.compile(r"/v1/(runs|jobs)/plan|/v1/benchmarks/tasks|/v1/uploads/[^/]+")
"""They change nothing, or bring the bytes of a request that is recorded when it comes."""


def needed_role(method: str, path: str) -> Role:
    """Return the least role that may do this; whatever is not known to be a look needs a member."""
    looks = method in _LOOKS or (method == "POST" and _READ_BY_POST.fullmatch(path) is not None)
    if _ADMIN.fullmatch(path) and (not looks or path == "/v1/audit"):
        return Role.ADMIN
    return Role.READER if looks and not _MEMBER_LOOKS.fullmatch(path) else Role.MEMBER


def is_recorded(method: str, path: str) -> bool:
    """Return whether a request changes something, so that who asked for it is written down."""
    looks = method in _LOOKS or _READ_BY_POST.fullmatch(path) or _UNRECORDED.fullmatch(path)
    return not looks


def check_role(identity: Identity, method: str, path: str) -> None:
    """Raise RoleError when the caller's role is not enough for this request."""
    needed = needed_role(method, path)
    if not identity.role.may(needed):
        raise RoleError(
            f"This key has the role {identity.role.value}; {method} {path[:200]} needs {needed.value}. "
            "Whoever runs the tracker makes such keys: "
            f"`valkyrie admin key create --role {needed.value} --person EMAIL`."
        )
