"""What was asked and answered, as JSON lines in a task's log folder."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes.masker import Masker

if TYPE_CHECKING:
    from benchmark_runner.models.dialect import Json
    from benchmark_runner.models.endpoint import Endpoint

FILE = "chat.jsonl"


@dataclass(slots=True)
class Exchange:
    """One request, the tries that failed, and what came of it."""

    request: Json
    failed: list[str] = field(default_factory=list)
    response: Json | None = None
    error: str | None = None
    _begun: float = field(default_factory=time.monotonic)
    _at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def append_to(self, folder: Path, endpoint: Endpoint) -> None:
        """Append it to the folder's file, without the key."""
        line: dict[str, Any] = {
            "at": self._at.isoformat(timespec="milliseconds"),
            "seconds": round(time.monotonic() - self._begun, 3),
            "model": endpoint.model,
            "url": endpoint.place,
            "failed_tries": self.failed,
            "request": self.request,
        }
        line |= {"error": self.error} if self.response is None else {"response": self.response}
        text = json.dumps(Masker([endpoint.key or ""]).data(line), ensure_ascii=False)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / FILE).open("ab", buffering=0) as file:
            file.write(f"{text}\n".encode("utf-8", "replace"))
