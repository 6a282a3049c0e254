"""Stable content digests: the same inputs give the same digest, on any machine, in any order of keys."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def content_digest(value: Any) -> str:
    """sha256 over the canonical JSON form of plain data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
