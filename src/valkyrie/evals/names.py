"""Names people chose as names of folders: readable, on any file system, never two in one place."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256

Key = tuple[str, ...]

LONGEST = 100
"""Bytes; a file system takes 255, and archives of results want room for the rest of the path."""
_DIGEST_STEPS = (8, 16, 64)
_UNFIT = re.compile(r"[^\w.+@=()\[\] -]+")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)


def folder_names(wanted: Mapping[Key, str], *, nameless: str = "unnamed") -> dict[Key, str]:
    """A folder name for each key, as near to the wanted one as can be.

    Names that would meet, also where upper and lower case are the same, are told apart by a digest of their
    key; which keys there are decides, not their order.
    """
    plain = {key: _plain(text) or nameless for key, text in wanted.items()}
    meeting = Counter(map(_folded, plain.values()))
    found: dict[Key, str] = {}
    for length in _DIGEST_STEPS:
        found = {
            key: name if meeting[_folded(name)] == 1 and _fits(name) else _told_apart(name, key, length)
            for key, name in plain.items()
        }
        if len({_folded(name) for name in found.values()}) == len(found):
            return found
    return found


def folder_name(text: str, *, nameless: str = "unnamed") -> str:
    """The same for a name that stands alone."""
    return folder_names({(text,): text}, nameless=nameless)[(text,)]


def _plain(text: str) -> str:
    """Letters, digits and a few signs; nothing that is a path, hidden, or refused by an archive."""
    tidy = unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())
    tidy = _UNFIT.sub("-", tidy).strip(" -" if tidy.strip() else None)
    tidy = tidy.lstrip(".").rstrip(". ")
    return f"{tidy}_" if _RESERVED.fullmatch(tidy) else tidy


def _fits(name: str) -> bool:
    return len(name.encode()) <= LONGEST


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def _told_apart(name: str, key: Key, length: int) -> str:
    digest = sha256("\0".join(key).encode("utf-8", "surrogatepass")).hexdigest()[:length]
    room = LONGEST - length - 1
    return f"{name.encode()[:room].decode(errors='ignore').rstrip('. ')}-{digest}"
