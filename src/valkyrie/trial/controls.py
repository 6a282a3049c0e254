"""What tests say without an agent's work: run once for each task, remembered with the run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from valkyrie.nouns import Json


class Controls:
    """The controls of one run: asked once for each task, and remembered in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, key: str) -> asyncio.Lock:
        """The lock under which one control runs."""
        return self._locks.setdefault(key, asyncio.Lock())

    def read(self, key: str) -> Json | None:
        """What a control found, if it ran."""
        try:
            found: Json = json.loads((self._folder / f"{key}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def write(self, key: str, found: Json) -> None:
        """Remember what a control found; the file appears whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f".{key}.part"
        part.write_text(json.dumps(found), "utf-8")
        part.replace(self._folder / f"{key}.json")
