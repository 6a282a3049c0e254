"""A run that ended elsewhere, whoever wrote it down, as what this store keeps of one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.errors import UserError
from valkyrie.nouns import Json
from valkyrie.plain_text import safe
from valkyrie.tracker.bounds import LONGEST_TEXT, MOST_TRIALS

if TYPE_CHECKING:
    from valkyrie.store.ingesting import EndedTrial

_SPACE = uuid.UUID("1e4be8c9-33f8-4f6c-9d15-1c5a3c1f8f0e")
"""Ids of ingested runs are made in it: the same results are the same run."""


@dataclass(frozen=True, slots=True)
class ForeignTrial:
    """One trial of such a run."""

    ended: EndedTrial
    keep: Callable[[Path, str], None]
    """Puts its story, its log and its files where those of our own trials are: a folder that is not there
    yet. The text says where they come from."""


@dataclass(frozen=True, slots=True)
class ForeignScore:
    """What whoever made the run says of all of it."""

    final: Json
    """`final_score` and `properties`."""
    graded: float | None
    """Over what was graded only."""


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """One run as some folder has it."""

    file: Path
    """The file that says so; errors name it."""
    identity: str
    """The same for the same run, whatever it says now."""
    digest: str
    """Of everything it says, wherever it stands."""
    label: str
    """For people."""
    benchmark: str
    agent: str
    model: str | None
    trials: Sequence[ForeignTrial]
    dataset: str = "default"
    variant: str = "main"
    run_id: str | None = None
    """What whoever made it calls it."""
    about: Json = field(default_factory=dict)
    """What else is remembered of where it comes from."""
    started_at: float | None = None
    """Where it says so; else when its first trial began."""
    fraction: bool = True
    """Scores are 0..1."""
    score: ForeignScore | None = None
    """None: the mean over its tasks."""
    notices: Sequence[str] = ()
    job: Json | None = None
    """The job it was part of: `id`, `name`, and its `position` in it."""
    sent_as: str | None = None
    """What whoever sent the file calls it, where it was sent here."""

    @property
    def source(self) -> str:
        """The file as people know it."""
        return self.sent_as or str(self.file)

    def id_here(self, org_id: str) -> str:
        """The id it has, or would have, in this store."""
        return str(uuid.uuid5(_SPACE, f"{org_id} {self.identity}"))

    def job_here(self, org_id: str) -> tuple[str, str, int] | None:
        """Return id here, name and position of the job it was part of; None where it was of none."""
        told = self.job or {}
        job_id, name, position = told.get("id"), told.get("name"), told.get("position")
        if not isinstance(job_id, str) or not isinstance(name, str) or not name.strip():
            return None
        place = position if isinstance(position, int) and 0 <= position < MOST_TRIALS else 0
        return str(uuid.uuid5(_SPACE, f"{org_id} job {job_id}")), safe(name)[:LONGEST_TEXT], place

    @property
    def errors(self) -> int:
        """Trials that ended without a grade."""
        return sum(1 for trial in self.trials if trial.ended.category is not None)

    def check(self) -> None:
        """UserError for what no run can have."""
        if len(self.trials) > MOST_TRIALS:
            raise UserError(
                f"{self.source}: {len(self.trials):,} trials; a run can have {MOST_TRIALS:,}.",
                cause="too_large",
            )
        names = (self.benchmark, self.agent, self.model, self.dataset, self.variant, self.run_id)
        for text in (*names, *(trial.ended.task_id for trial in self.trials)):
            if text is not None and (len(text) > LONGEST_TEXT or "\0" in text):
                raise UserError(
                    f"{self.source}: {text[:60]!r}… is no name; one has at most {LONGEST_TEXT:,} characters.",
                    cause="records",
                )


def source_text(text: str, most: int) -> str:
    """A foreign text as it can be stored and shown: bounded, and in characters every database takes."""
    clean = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return clean if len(clean) <= most else f"{clean[:most]}… ({len(clean):,} characters)"
