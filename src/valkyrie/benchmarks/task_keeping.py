"""What a task.toml wants kept of the sandbox: paths, and commands that gather it first."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from valkyrie.benchmarks.task_toml import Artifact, Collect, StepTable, TaskToml
from valkyrie.nouns import GatherCommand, KeptPath

ARTIFACTS_FOLDER = KeptPath("/logs/artifacts", destination=".", expected=False)
"""Kept of every task: whatever agent and task put there."""
MAIN = "main"


def kept_paths(declared: Sequence[str | Artifact]) -> tuple[KeptPath, ...]:
    """Return those of the sandbox itself."""
    tables = [Artifact(source=one) if isinstance(one, str) else one for one in declared]
    return tuple(
        KeptPath(
            posixpath.normpath(one.source),
            one.destination and one.destination.strip("/"),
            one.exclude,
        )
        for one in tables
        if one.service in (None, MAIN)
    )


def gathering(declared: Sequence[Collect]) -> tuple[GatherCommand, ...]:
    """The commands of the sandbox itself."""
    return tuple(
        GatherCommand(one.command, None if one.user is None else str(one.user), one.timeout_sec)
        for one in declared
        if one.service == MAIN
    )


def elsewhere(config: TaskToml) -> Iterator[str]:
    """What is to come from other containers, and does not."""
    asked: list[str | None] = []
    tables: list[TaskToml | StepTable] = [config, *config.steps]
    for table in tables:
        asked += [one.service for one in table.artifacts if isinstance(one, Artifact)]
        asked += [one.service for one in table.verifier.collect]
    for service in dict.fromkeys(name for name in asked if name not in (None, MAIN)):
        yield f"nothing is collected from the service {service!r}: a task has one sandbox"
