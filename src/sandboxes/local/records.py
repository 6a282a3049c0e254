"""What is known on disk about each sandbox, so that a later process can end what an earlier one left.

A record has a line written before anything starts (id, labels, cgroup, the keeper in charge) and a line
written after (the first process).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxes.local.marks import ProcessMark

SUFFIX = ".sandbox"


@dataclass(frozen=True)
class Record:
    """What the lines of one record say."""

    id: str
    name: str
    labels: dict[str, str]
    created_at: float
    cgroup: str
    keeper: ProcessMark
    first: ProcessMark | None = None
    ended: bool = False
    """Another process of ours ends it."""

    def opening(self) -> str:
        """The line written before the start."""
        keeper = {"pid": self.keeper.pid, "start": self.keeper.start, "boot": self.keeper.boot}
        fields = {
            "id": self.id,
            "name": self.name,
            "labels": self.labels,
            "created_at": self.created_at,
            "cgroup": self.cgroup,
            "keeper": keeper,
        }
        return json.dumps(fields) + "\n"


def load(folder: Path) -> list[Record]:
    """Every record that can be read; one whose first line is torn never started anything."""
    found = [read(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    return [record for record in found if record is not None]


def read(path: Path) -> Record | None:
    """One record, or None when it is gone or its first line is torn."""
    fields: dict[str, Any] = {}
    try:
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                fields.update(json.loads(line))
    except (FileNotFoundError, ValueError):
        return None
    if "id" not in fields:
        return None
    for role in ("keeper", "first"):
        if role in fields:
            fields[role] = ProcessMark(**fields[role])
    return Record(**fields)
