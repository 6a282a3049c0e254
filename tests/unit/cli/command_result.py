"""What a command line returned and printed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class CommandResult:
    """What a command line returned and printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document

    @property
    def json_error(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.err.splitlines()[-1])
        return document
