"""JSON as the store keeps it: the same on every database."""

from __future__ import annotations

import json
import math
from typing import Any

_encode = json.JSONEncoder(allow_nan=False).encode


def dumps(value: Any) -> str:
    """JSON that any reader takes: what is no finite number becomes null, as JavaScript writes it."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
