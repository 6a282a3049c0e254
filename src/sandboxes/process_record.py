"""What is written down about a process sandbox, so that another process can find and end it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from uuid import uuid4

from sandboxes.types import Limits, SandboxCreateRequest


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One sandbox: `record.json` in its folder. It exists exactly as long as the sandbox does."""

    id: str
    name: str
    labels: dict[str, str]
    env: dict[str, str]
    limits: Limits
    created_at: datetime
    creator_pid: int = field(default_factory=os.getpid)

    @classmethod
    def new(cls, request: SandboxCreateRequest) -> Self:
        """The record of a sandbox to be made."""
        sandbox_id = f"process-{uuid4().hex[:16]}"
        return cls(
            id=sandbox_id,
            name=request.name or sandbox_id,
            labels=dict(request.labels),
            env=dict(request.env_vars),
            limits=request.effective_limits,
            created_at=datetime.now(UTC),
        )

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The record in that folder, or None."""
        try:
            raw = json.loads((folder / "record.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls(
            **{
                **raw,
                "limits": Limits(**raw["limits"]),
                "created_at": datetime.fromisoformat(raw["created_at"]),
            }
        )

    @classmethod
    def read_all(cls, root: Path) -> list[Self]:
        """All records below `root`, oldest first."""
        folders = root.iterdir() if root.is_dir() else ()
        records = [record for folder in folders if (record := cls.read(folder)) is not None]
        return sorted(records, key=lambda record: record.created_at)

    def write(self, folder: Path) -> None:
        """Write it whole or not at all. Only the owner may read it: the environment may hold secrets."""
        raw = asdict(self) | {"created_at": self.created_at.isoformat()}
        draft = folder / "record.json.new"
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(raw))
        draft.replace(folder / "record.json")
