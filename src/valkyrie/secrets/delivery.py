"""Deliver secret values to executors, and seal those that a store keeps."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from valkyrie.domain import Json
from valkyrie.errors import StoreError, UserError

_HEADER, _PROVIDER, _HOOK, _CLOUD = "header:", "provider:", "hook:", "cloud:"
_SECRETIVE = re.compile("auth|key|token|secret|cookie|passw|cred|signature", re.IGNORECASE)
_LONG = 20


def with_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return _under(_HEADER, headers)


def with_settings(settings: Mapping[str, str]) -> dict[str, str]:
    return _under(_PROVIDER, settings)


def with_hooks(values: Mapping[str, str]) -> dict[str, str]:
    """Return what messages to the outside need (secret name → value) as it is handed over."""
    return _under(_HOOK, values)


def with_credentials(values: Mapping[str, str]) -> dict[str, str]:
    return _under(_CLOUD, values)


def headers_of(handed: Mapping[str, str]) -> dict[str, str]:
    return _below(_HEADER, handed)


def settings_of(handed: Mapping[str, str]) -> dict[str, str]:
    return _below(_PROVIDER, handed)


def hooks_of(handed: Mapping[str, str]) -> dict[str, str]:
    return _below(_HOOK, handed)


def credentials_of(handed: Mapping[str, str]) -> dict[str, str]:
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


# Values encrypted at rest: sealed with a key of the server's own, opened only by who has it.

VARIABLE = "VALKYRIE_SECRET_KEY"
SEALED = "sealed"
"""Cause of the error when no key here opens a value."""
KEY_BYTES = 32
_NONCE_BYTES = 12
_WAY_OUT = "`valkyrie admin secret-key` makes one"


class Sealer:
    """AES-256-GCM. The first key seals; all of them open, so that keys can be replaced one after another.

    What is sealed is bound to what it is about: a row's value cannot be moved to another row.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._ciphers = [AESGCM(key) for key in keys]

    def __repr__(self) -> str:
        return f"Sealer({len(self._ciphers)} keys)"

    def seal(self, values: Mapping[str, str], about: str) -> bytes:
        """Encrypt `values`, bound to `about`."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._ciphers[0].encrypt(nonce, json.dumps(dict(values)).encode(), about.encode())

    def open(self, sealed: bytes, about: str) -> dict[str, str]:
        """Return the values that were sealed about this; StoreError when no key of ours opens them."""
        from cryptography.exceptions import InvalidTag

        for cipher in self._ciphers:
            try:
                plain = cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], about.encode())
            except (InvalidTag, ValueError):
                continue  # another key's, or no such thing at all
            opened: dict[str, str] = json.loads(plain)
            return opened
        raise StoreError(
            f"What is sealed about {about} cannot be opened: {VARIABLE} is not the key it was sealed with.",
            cause=SEALED,
        )


def new_key() -> str:
    return base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode()


def parse_keys(text: str) -> list[bytes]:
    """Keys of the environment variable: one, or several with commas; UserError when one is none."""
    keys = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        try:
            key = base64.urlsafe_b64decode(word)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise UserError(f"{VARIABLE} is no key: 32 bytes in base64 are wanted; {_WAY_OUT}.")
        keys.append(key)
    if not keys:
        raise UserError(f"{VARIABLE} is empty; {_WAY_OUT}.")
    return keys


def find_sealer(key_file: Path | None = None) -> Sealer | None:
    """Return this server's sealer: of the environment's key, else of `key_file` (made when it is absent)."""
    if text := os.environ.get(VARIABLE):
        return Sealer(parse_keys(text))
    return Sealer(parse_keys(_own_key(key_file))) if key_file else None


def _own_key(file: Path) -> str:
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, part = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
        try:
            with open(handle, "w") as opened:
                opened.write(new_key() + "\n")
                opened.flush()
                os.fsync(handle)
            # A link, not a rename: of two servers that start at once, both keep the key of the first.
            with contextlib.suppress(FileExistsError):
                os.link(part, file)
        finally:
            Path(part).unlink()
    if file.stat().st_mode & 0o077:
        raise UserError(f"{file} can be read by others; it is not used. Close it with: chmod 600 {file}")
    return file.read_text()
