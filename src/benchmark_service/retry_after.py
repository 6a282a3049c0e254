"""The `Retry-After` header."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?")


def parse_retry_after_seconds(value: str | None) -> float | None:
    """Seconds to wait, from the numeric form only; a date, or nothing sensible, is None."""
    text = (value or "").strip()
    return float(text) if _NUMBER.fullmatch(text) and text.isascii() else None
