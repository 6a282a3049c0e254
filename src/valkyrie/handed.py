"""What is handed to an executor with a run and kept in its memory only, never in the store.

All of it travels in one mapping: the agent's environment variables under their names, headers of a benchmark
service and settings of a sandbox provider under keys no variable can have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from valkyrie.nouns import Json

_HEADER, _PROVIDER = "header:", "provider:"
_SECRETIVE = re.compile("auth|key|token|secret|cookie|passw|cred|signature", re.IGNORECASE)
_LONG = 20


def with_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers as they are handed over."""
    return {f"{_HEADER}{name}": value for name, value in headers.items()}


def with_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """A provider's settings as they are handed over."""
    return {f"{_PROVIDER}{name}": value for name, value in settings.items()}


def headers_of(handed: Mapping[str, str]) -> dict[str, str]:
    """The headers that were handed over."""
    return {key.removeprefix(_HEADER): value for key, value in handed.items() if key.startswith(_HEADER)}


def settings_of(handed: Mapping[str, str]) -> dict[str, str]:
    """The provider's settings that were handed over."""
    return {key.removeprefix(_PROVIDER): value for key, value in handed.items() if key.startswith(_PROVIDER)}


def wanted(arguments: Json) -> Sequence[str]:
    """Everything a run must be handed before it can begin, as a run's stored arguments name it."""
    return [
        *arguments.get("secrets", {}),
        *arguments.get("host_variables", []),
        *with_headers(dict.fromkeys(arguments.get("headers", []), "")),
        *with_settings(dict.fromkeys(arguments.get("provider_settings", []), "")),
    ]


def unspeakable(handed: Mapping[str, str]) -> list[str]:
    """What no log or file may show: all of it but headers that plainly are no credentials."""
    found = []
    for key, value in handed.items():
        name = key.removeprefix(_HEADER)
        if name != key and not _SECRETIVE.search(name) and len(value) < _LONG:
            continue
        found.append(value)
        _, _, credential = value.partition(" ")
        if name != key and credential:
            found.append(credential.strip())  # `Bearer …` may also be told without its first word
    return found


def described(key: str) -> str:
    """A key as people call what it stands for."""
    for before, word in ((_HEADER, "header "), (_PROVIDER, "provider setting ")):
        if key.startswith(before):
            return word + key.removeprefix(before)
    return key
