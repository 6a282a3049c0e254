"""`${VAR}` and `${VAR:-default}` in the environment a task declares."""

from __future__ import annotations

import re
from collections.abc import Mapping

from valkyrie.errors import UserError

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def referenced(env: Mapping[str, str]) -> list[str]:
    """Names of the host variables that `env` asks for, in order of appearance."""
    found = (match[1] for value in env.values() for match in _REFERENCE.finditer(value))
    return list(dict.fromkeys(found))


def missing(env: Mapping[str, str], host: Mapping[str, str]) -> list[str]:
    """Names of the host variables without which `expand` would not do."""
    found = (match for value in env.values() for match in _REFERENCE.finditer(value))
    return list(dict.fromkeys(match[1] for match in found if match[2] is None and match[1] not in host))


def expand(env: Mapping[str, str], host: Mapping[str, str], where: str) -> dict[str, str]:
    """`env` with its references filled from the host; nothing the task does not name is ever read.

    What comes out is visible to whatever runs in the sandbox, the agent included. A default stands in
    for a variable that is unset or empty, as in a shell.
    """
    absent: list[str] = []

    def fill(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        value = host.get(name)
        if value or (value is not None and default is None):
            return value
        if default is None:
            absent.append(name)
            return ""
        return default

    filled = {key: _REFERENCE.sub(fill, value) for key, value in env.items()}
    if absent:
        names = ", ".join(dict.fromkeys(absent))
        raise UserError(
            f"{where} asks for {names} from the environment of this machine, where it is not set. "
            f"Export it, or give it a default in the task: ${{{absent[0]}:-value}}",
            cause="missing_variable",
        )
    return filled
