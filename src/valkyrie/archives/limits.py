"""How large an archive may be."""

from __future__ import annotations

import os
from dataclasses import dataclass

from valkyrie.errors import UsageError

UPLOAD = "AGENT_UPLOAD_MAX_BYTES"
EXPANDED = "AGENT_ARCHIVE_MAX_EXPANDED_BYTES"
ENTRIES = "AGENT_ARCHIVE_MAX_ENTRIES"


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits of one archive, packed and unpacked."""

    upload_bytes: int = 1024**3
    expanded_bytes: int = 5 * 1024**3
    entries: int = 100_000

    @classmethod
    def from_environment(cls) -> ArchiveLimits:
        """The limits, each overridable by its environment variable."""
        base = cls()
        return cls(
            _number(UPLOAD, base.upload_bytes),
            _number(EXPANDED, base.expanded_bytes),
            _number(ENTRIES, base.entries),
        )

    @property
    def upload_hint(self) -> str:
        """The limit and how to raise it."""
        return f"{self.upload_bytes:,} are allowed (raise it with {UPLOAD})."

    @property
    def expanded_hint(self) -> str:
        """The limit and how to raise it."""
        return f"{self.expanded_bytes:,} bytes unpacked are allowed (raise it with {EXPANDED})."

    @property
    def entries_hint(self) -> str:
        """How to raise the limit."""
        return f"leave out what is not needed, or raise it with {ENTRIES}."


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"{variable}={text!r} must be a whole number above 0.")
    return int(text)
