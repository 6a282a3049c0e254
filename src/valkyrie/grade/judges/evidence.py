"""What a judge is shown of a trial, as titled texts; each is long and hostile until it is fenced."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from valkyrie.errors import GraderError
from valkyrie.trajectory.transcript import Event, Transcript

if TYPE_CHECKING:
    from valkyrie.grade.protocol import GraderInput

OUTPUT = 30_000
_MOST = {"trajectory": 80_000, "diff": 60_000, "repo": 256 * 1024, "golden_patch": 40_000}
"""Characters of each."""
_EVENT = 4_000
_FILE = 32 * 1024
_FILES = 400
_READ = 64 * 1024
_SKIPPED = frozenset(
    {".git", "node_modules", "__pycache__", ".venv", "venv", "site-packages", "vendor", "bower_components"}
)


@dataclass(frozen=True, slots=True)
class EvidencePiece:
    """One piece of evidence."""

    title: str
    text: str
    most: int
    """Characters that are shown at most."""


def gather(given: GraderInput, wanted: Sequence[str] | None) -> list[EvidencePiece]:
    """The final answer, and what is wanted; without a wish, trajectory and diff as far as there are any.

    GraderError where something wanted is not there: silence would look like an agent that did nothing.
    """
    said = given.transcript.output
    pieces = [EvidencePiece("final answer", said if said.strip() else "(the agent said nothing)", OUTPUT)]
    if wanted is None:
        kinds = [kind for kind in ("trajectory", "diff") if _is_there(kind, given)]
    else:
        kinds = list(wanted)
        for kind in kinds:
            if not _is_there(kind, given):
                raise GraderError(
                    f"The judge is to see `{kind}`, but {_absence(kind)}", cause="judge_evidence_missing"
                )
    return pieces + [EvidencePiece(kind, _text(kind, given), _MOST[kind]) for kind in kinds]


@contextmanager
def nothing_done(given: GraderInput) -> Iterator[GraderInput]:
    """The same trial with an agent that was told its task, said nothing and changed nothing."""
    events = [Event("user_message", {"content": text}) for text in given.stimulus.turns]
    with TemporaryDirectory(prefix="valkyrie-judge-") as empty:
        yield replace(
            given,
            transcript=Transcript("", events),
            workspace=Path(empty) if given.workspace is not None else None,
            unseen=(),
            diff=None if given.diff is None else "",
        )


def _is_there(kind: str, given: GraderInput) -> bool:
    match kind:
        case "trajectory":
            return any(True for _ in given.transcript.events)
        case "diff":
            return given.diff is not None
        case "repo":
            return given.workspace is not None and given.workspace.is_dir()
        case _:
            return bool(given.golden_patch or given.stimulus.golden_patch)


def _absence(kind: str) -> str:
    return {
        "trajectory": "this trial has no events: the agent left no trajectory.",
        "diff": "this trial has no diff: no state of its workspace before and after is known.",
        "repo": "the workspace of this trial is not here.",
        "golden_patch": "the stimulus has no golden patch.",
    }[kind]


def _text(kind: str, given: GraderInput) -> str:
    match kind:
        case "trajectory":
            return "\n".join(told(given.transcript.events))
        case "diff":
            return given.diff or "(the workspace was not changed)"
        case "repo":
            assert given.workspace is not None
            return "\n".join(_files(given.workspace, given.unseen))
        case _:
            return given.golden_patch or given.stimulus.golden_patch or ""


def told(events: Sequence[Event]) -> Iterator[str]:
    """Events as a person would read them, one or a few lines each."""
    for event in events:
        data = event.data
        match event.type:
            case "tool_call":
                yield f"[calls {data.get('toolName')}] {_short(data.get('arguments'))}"
            case "tool_result":
                failed = " failed" if data.get("success") is False else ""
                yield f"[result of {data.get('toolName')}{failed}] {_short(data.get('result'))}"
            case "assistant_message" | "user_message" | "reasoning" | "system":
                yield f"[{event.type.removesuffix('_message')}] {_short(data.get('content'))}"
            case "skill_activation":
                yield f"[loads skill {data.get('name')}]"
            case "error":
                yield f"[error] {_short(data.get('message'))}"
            case "turn_start":
                yield "[turn begins]"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _EVENT else f"{text[:_EVENT]}… ({len(text) - _EVENT:,} characters left out)"


def _files(workspace: Path, unseen: Collection[str]) -> Iterator[str]:
    """The files of a workspace: first their names, then what is in the texts among them."""
    found: list[Path] = []
    left_out = {workspace / path for path in unseen}
    for folder, folders, names in os.walk(workspace):
        here = Path(folder)
        folders[:] = sorted(n for n in folders if n not in _SKIPPED and here / n not in left_out)
        found += [here / name for name in sorted(names) if here / name not in left_out]
        if len(found) > _FILES:
            break
    yield f"{min(len(found), _FILES)} files{' (there are more)' if len(found) > _FILES else ''}:"
    for file in found[:_FILES]:
        yield f"  {file.relative_to(workspace)}"
    for file in found[:_FILES]:
        if text := _content(file):
            yield f"\n--- {file.relative_to(workspace)}\n{text}"


def _content(file: Path) -> str:
    """The text of a regular file, within bounds; nothing of links, devices and what is no text."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with open(handle, "rb") as opened:
        import stat

        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            return ""
        data = opened.read(_READ)
    if b"\0" in data:
        return "(not a text)"
    text = data.decode("utf-8", "replace")
    return (
        text
        if len(text) <= _FILE
        else f"{text[:_FILE]}\n(… {len(text) - _FILE:,} characters or more left out)"
    )
