"""What is kept of each trial's session: metadata.json always, events.jsonl where there is anything.

An agent's own log is hostile: read within bounds, never through a link, and one JSON object per line comes
out whatever goes in.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from valkyrie.evals.figures import trial_outcome
from valkyrie.evals.records import dump_line, trial_key
from valkyrie.evals.results import TrialResult
from valkyrie.keeping.folders import whole_file
from valkyrie.nouns import Json

METADATA, EVENTS = "metadata.json", "events.jsonl"
MOST_BYTES = 50 * 1024 * 1024
LONGEST_LINE = 1024 * 1024

_a_key_a_line = json.JSONEncoder(separators=(",\n  ", ": ")).encode

LogSource = Literal["native", "raw-event-fallback", "none"]


@dataclass(slots=True)
class _Kept:
    """What was written of a log."""

    source: LogSource = "none"
    events: int = 0
    cut: bool = False


def write_session_log(trial: TrialResult, folder: Path, remarks: Json | None = None) -> Path | None:
    """Write both files of one trial, over older ones; the path of events.jsonl, if there is one."""
    kept = _write_events(trial, folder / EVENTS)
    with whole_file(folder / METADATA) as file:
        file.write(_indented(_metadata(trial, kept) | (remarks or {})))
    return folder / EVENTS if kept.source != "none" else None


def _write_events(trial: TrialResult, target: Path) -> _Kept:
    kept = _Kept()
    native = _open_plain(trial.session_log) if trial.session_log else None
    if native is not None:
        with native:
            _write(_native_objects(native, kept), target, kept, "native")
    if kept.source == "none":
        events = (trial.transcript or {}).get("events")
        if isinstance(events, Sequence) and not isinstance(events, str) and events:
            _write(iter(events), target, kept, "raw-event-fallback")
    if kept.source == "none":
        target.unlink(missing_ok=True)
    return kept


def _write(objects: Iterator[Any], target: Path, kept: _Kept, source: LogSource) -> None:
    """Write objects until there are no more, or too much; an empty log is none."""
    first = next(objects, None)
    if first is None:
        return
    kept.source = source
    with whole_file(target) as file:
        size = 0
        for one in _again(first, objects):
            line = dump_line(one if isinstance(one, dict) else {"type": "raw", "value": one}).encode() + b"\n"
            size += len(line)
            if size > MOST_BYTES:
                kept.cut = True
                return
            file.write(line)
            kept.events += 1


def _again(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _open_plain(path: Path) -> IO[bytes] | None:
    """A regular file, open; None for anything else that stands there."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    return os.fdopen(handle, "rb")


def _native_objects(file: IO[bytes], kept: _Kept) -> Iterator[Any]:
    """A log's objects: of a JSON-lines file, or of one document; text that is neither, line by line."""
    start = file.read(LONGEST_LINE)
    if (
        not _begins_with_a_line_of_json(start)
        and (document := _document(start + file.read(MOST_BYTES))) is not None
    ):
        yield from document if isinstance(document, list) else [document]
        return
    file.seek(0)
    while line := file.readline(LONGEST_LINE):
        whole = line.endswith(b"\n") or len(line) < LONGEST_LINE
        while not whole:
            kept.cut = True
            whole = not (rest := file.readline(LONGEST_LINE)) or rest.endswith(b"\n")
        text = line.decode(errors="replace").strip()
        if text:
            parsed = _json(text)
            yield {"type": "raw", "text": text} if parsed is None else parsed


def _begins_with_a_line_of_json(start: bytes) -> bool:
    first = start.lstrip().partition(b"\n")[0]
    return isinstance(_json(first), dict)


def _document(data: bytes) -> Any:
    return _json(data) if len(data) <= MOST_BYTES else None


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _metadata(trial: TrialResult, kept: _Kept) -> Json:
    story = (trial.transcript or {}).get("metadata")
    story = story if isinstance(story, dict) else {}
    found = {
        "trialId": trial_key(trial),
        "trajectoryId": _short((trial.transcript or {}).get("id")),
        "eval": trial.eval_name,
        "model": trial.model,
        "executor": trial.executor,
        "variant": trial.variant,
        "stimulus": trial.stimulus,
        "trialIndex": trial.index,
        "runId": trial.run_id,
        "sessionID": _short(story.get("sessionID")),
        "startedAt": _short(story.get("startedAt")),
        "completedAt": _short(story.get("completedAt")),
        "endReason": _short((trial.transcript or {}).get("endReason")),
        "status": trial_outcome(trial).value,
        "durationMs": trial.duration_ms,
        "attempts": trial.attempts,
    }
    said: Json = {key: value for key, value in found.items() if value is not None}
    said |= {"logSource": kept.source, "events": kept.events}
    return said | ({"truncated": True} if kept.cut else {})


def _indented(flat: Json) -> bytes:
    """One key a line. `indent=2` would write the same, many times slower."""
    text = _a_key_a_line(flat)
    return f"{{\n  {text[1:-1]}\n}}\n".encode()


def _short(value: Any) -> str | None:
    return value[:500] if isinstance(value, str) else None
