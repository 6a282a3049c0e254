"""The values delivered to an executor with a run, which keeps them in memory only, never in the store.

All of it travels in one mapping: the agent's environment variables under their names; headers of a benchmark
service, settings of a sandbox provider, what hooks and the user's cloud need under keys no variable can have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from valkyrie.domain import Json

_HEADER, _PROVIDER, _HOOK, _CLOUD = "header:", "provider:", "hook:", "cloud:"
_SECRETIVE = re.compile("auth|key|token|secret|cookie|passw|cred|signature", re.IGNORECASE)
_LONG = 20


def with_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers as they are handed over."""
    return _under(_HEADER, headers)


def with_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """A provider's settings as they are handed over."""
    return _under(_PROVIDER, settings)


def with_hooks(values: Mapping[str, str]) -> dict[str, str]:
    """Return what messages to the outside need (secret name → value) as it is handed over."""
    return _under(_HOOK, values)


def with_credentials(values: Mapping[str, str]) -> dict[str, str]:
    """Credentials of the user's cloud as they are handed over."""
    return _under(_CLOUD, values)


def headers_of(handed: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that were handed over."""
    return _below(_HEADER, handed)


def settings_of(handed: Mapping[str, str]) -> dict[str, str]:
    """Return the provider's settings that were handed over."""
    return _below(_PROVIDER, handed)


def hooks_of(handed: Mapping[str, str]) -> dict[str, str]:
    """Return what was handed over for messages to the outside."""
    return _below(_HOOK, handed)


def credentials_of(handed: Mapping[str, str]) -> dict[str, str]:
    """Return the cloud credentials that were handed over."""
    return _below(_CLOUD, handed)


def _under(prefix: str, values: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}{name}": value for name, value in values.items()}


def _below(prefix: str, handed: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in handed.items() if key.startswith(prefix)}


def wanted(arguments: Json) -> Sequence[str]:
    """Everything a run must be handed before it can begin, as a run's stored arguments name it.

    What messages to the outside need is not among it: no run waits for a message.
    """
    return [
        *arguments.get("secrets", {}),
        *arguments.get("host_variables", []),
        *with_headers(dict.fromkeys(arguments.get("headers", []), "")),
        *with_settings(dict.fromkeys(arguments.get("provider_settings", []), "")),
        *with_credentials(dict.fromkeys(arguments.get("credentials", []), "")),
    ]


def given_to_benchmark(handed: Mapping[str, str], arguments: Json) -> dict[str, str]:
    """Return what of it the run's benchmark is given: the variables the user allowed its tasks, and headers.

    What the agent alone was given, its keys above all, is no task's to name.
    """
    named = {name: handed[name] for name in arguments.get("host_variables", []) if name in handed}
    return {**named, **with_headers(headers_of(handed))}


def unspeakable(handed: Mapping[str, str]) -> list[str]:
    """Return what no log or file may show: all of it but headers that plainly are no credentials."""
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
    words = (
        (_HEADER, "header "),
        (_PROVIDER, "provider setting "),
        (_HOOK, "hook secret "),
        (_CLOUD, "cloud credential "),
    )
    for before, word in words:
        if key.startswith(before):
            return word + key.removeprefix(before)
    return key
