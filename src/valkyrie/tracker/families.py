"""What is said of the families of a run's tasks before it starts."""

from __future__ import annotations

from collections.abc import Sequence

from valkyrie.nouns import TaskSpec
from valkyrie.plan import family_of
from valkyrie.suggest import did_you_mean

_OURS = ("tags", "warnings", "host_variables", "allowed_hosts", "keywords", "description", "name")
"""Keys of metadata that no author wrote as such."""


def without_family(tasks: Sequence[TaskSpec], key: str | None) -> list[str]:
    """Return the problem that no task says what `--family` asks for."""
    if key is None or not tasks or any(family_of(task, key) is not None for task in tasks):
        return []
    known = {name for task in tasks for name in (*task.metadata, *(task.metadata.get("tags") or {}))}
    known -= set(_OURS)
    hint = did_you_mean(key, known) or (f" There is: {', '.join(sorted(known)[:10])}." if known else "")
    return [f"--family {key}: no task has that key in its metadata.{hint}"]


def family_remarks(tasks: Sequence[TaskSpec], key: str | None) -> list[str]:
    """Say what families there are, and of how many tasks none is known where others have one."""
    found = [family_of(task, key) for task in tasks]
    known = [one for one in found if one is not None]
    if not known:
        return []
    lacking = len(found) - len(known)
    alone = f"; {lacking} of {len(found)} tasks name none, each is its own" if lacking else ""
    count = len(set(known)) + lacking
    few = ": fewer than five say little about others" if count < 5 else ""
    return [f"{count} families of tasks: intervals and tests go over families, not tasks{few}{alone}"]
