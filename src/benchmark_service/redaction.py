"""Keeps credentials out of texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)


@dataclass(frozen=True)
class Redactor:
    """Keeps credentials we sent out of texts a service sends back."""

    secrets: tuple[str, ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Redactor:
        """Every value of a header or setting whose name sounds secret, with and without its scheme word."""
        values = [str(value) for name, value in settings.items() if _SECRET_NAME.search(name)]
        pieces = {piece for value in values for piece in (value, value.rpartition(" ")[2])}
        return cls(tuple(sorted((p for p in pieces if len(p) >= 4), key=len, reverse=True)))

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text
