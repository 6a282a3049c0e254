"""Write the folder an eval leaves: results, reports, session logs and kept files."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Literal

from valkyrie.artifact_store.disk import disk_errors, remove_parts, whole_file
from valkyrie.benchmarks.eval_spec.snapshots import turn_patches
from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.evals.figures import figures, trial_outcome
from valkyrie.evals.junit import junit_xml
from valkyrie.evals.markdown import markdown
from valkyrie.evals.otlp import span_line
from valkyrie.evals.records import dump_line, to_line, trial_key
from valkyrie.evals.results import Invocation, SpecResult, TrialResult

Key = tuple[str, ...]

LONGEST = 100
"""Bytes; a file system takes 255, and archives of results want room for the rest of the path."""
_DIGEST_STEPS = (8, 16, 64)
_UNFIT = re.compile(r"[^\w.+@=()\[\] -]+")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)


def folder_names(wanted: Mapping[Key, str], *, nameless: str = "unnamed") -> dict[Key, str]:
    """A folder name for each key, as near to the wanted one as can be.

    Names that would meet, also where upper and lower case are the same, are told apart by a digest of their
    key; which keys there are decides, not their order.
    """
    plain = {key: _plain(text) or nameless for key, text in wanted.items()}
    meeting = Counter(map(_folded, plain.values()))
    found: dict[Key, str] = {}
    for length in _DIGEST_STEPS:
        found = {
            key: name if meeting[_folded(name)] == 1 and _fits(name) else _told_apart(name, key, length)
            for key, name in plain.items()
        }
        if len({_folded(name) for name in found.values()}) == len(found):
            return found
    return found


def folder_name(text: str, *, nameless: str = "unnamed") -> str:
    """The same for a name that stands alone."""
    return folder_names({(text,): text}, nameless=nameless)[(text,)]


def _plain(text: str) -> str:
    """Letters, digits and a few signs; nothing that is a path, hidden, or refused by an archive."""
    tidy = unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())
    tidy = _UNFIT.sub("-", tidy).strip(" -" if tidy.strip() else None)
    tidy = tidy.lstrip(".").rstrip(". ")
    return f"{tidy}_" if _RESERVED.fullmatch(tidy) else tidy


def _fits(name: str) -> bool:
    return len(name.encode()) <= LONGEST


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def _told_apart(name: str, key: Key, length: int) -> str:
    digest = sha256("\0".join(key).encode("utf-8", "surrogatepass")).hexdigest()[:length]
    room = LONGEST - length - 1
    return f"{name.encode()[:room].decode(errors='ignore').rstrip('. ')}-{digest}"


# What is kept of each trial's session: metadata.json always, events.jsonl where there is anything.
#
# An agent's own log is hostile: read within bounds, never through a link, and one JSON object per line comes
# out whatever goes in.

METADATA, EVENTS = "metadata.json", "events.jsonl"
MOST_LOG_BYTES = 50 * 1024 * 1024
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
            if size > MOST_LOG_BYTES:
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
        and (document := _document(start + file.read(MOST_LOG_BYTES))) is not None
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
    return _json(data) if len(data) <= MOST_LOG_BYTES else None


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


# The folder an eval leaves: results, reports, session logs and kept files. Written again, it is the same.

RESULTS, REPORT, JUNIT = "results.jsonl", "eval-results.md", "eval-results.junit.xml"
SUMMARY, SPANS = "run-summary.jsonl", "otel-spans.jsonl"
SESSION_LOGS, ARTIFACTS, PATCH = "executor-session-logs", "artifacts", "workspace.patch"
MOST_FILES = 10_000
MOST_BYTES = 1024**3


@dataclass(frozen=True, slots=True)
class WrittenResults:
    """Where things are."""

    folder: Path
    results: Path
    report: Path
    junit: Path | None = None

    def places(self) -> dict[str, Path]:
        """Each by its name."""
        found = {"folder": self.folder, "results": self.results, "report": self.report}
        return found | ({"junit": self.junit} if self.junit else {})


def folder_stamp(now: datetime) -> str:
    """`2025-01-15T10-30-00-005Z`."""
    utc = now.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H-%M-%S}-{utc.microsecond // 1000:03d}Z"


def open_folder(output_dir: Path, now: datetime, name: str | None = None) -> Path:
    """A new folder for one invocation, named after the time unless it has a name; one that is there is never
    taken."""
    with disk_errors(f"write to {output_dir}", "output"):
        if name is not None:
            folder = output_dir / name
            if folder.exists():
                raise UsageError(
                    f"--run-id: there are results at {folder} already; choose another id, or go on with "
                    f"them: --resume {folder}"
                )
            folder.mkdir(parents=True)
            return folder
        output_dir.mkdir(parents=True, exist_ok=True)
        while True:
            folder = output_dir / folder_stamp(now)
            try:
                folder.mkdir()
            except FileExistsError:
                now += timedelta(milliseconds=1)
            else:
                return folder


def write_all(
    invocation: Invocation, *, folder: Path | None = None, junit: bool = False, spans: bool = False
) -> WrittenResults:
    """Write everything into the invocation's folder (or `folder`); each file is there whole or not at all.

    With `spans` its trials are written as OpenTelemetry traces, too.
    """
    place = folder or invocation.folder
    if place is None:
        raise ValueError("an invocation without a folder cannot be written")
    written = WrittenResults(place, place / RESULTS, place / REPORT, place / JUNIT if junit else None)
    with disk_errors(f"write to {place}", "output"):
        remove_parts(place)
        with whole_file(written.results) as file, _spans_file(place, spans) as traces:
            for trial in write_trials(invocation, place):
                record = to_line(trial)
                file.write(dump_line(record).encode() + b"\n")
                if traces is not None:
                    traces.write(dump_line(span_line(record)).encode() + b"\n")
        _write_text(written.report, markdown(invocation))
        if invocation.id is not None:
            _write_text(place / SUMMARY, dump_line(run_summary(invocation)) + "\n")
        if written.junit is not None:
            _write_text(written.junit, junit_xml(invocation))
    return written


@contextmanager
def _spans_file(place: Path, wanted: bool) -> Iterator[IO[bytes] | None]:
    if not wanted:
        yield None
        return
    with whole_file(place / SPANS) as file:
        yield file


def run_summary(invocation: Invocation) -> Json:
    """Return what an eval came to, in one record."""
    evals = [
        {
            "evalName": one.name,
            "evalFile": one.file,
            "variant": one.variant,
            "model": one.model,
            "executor": one.executor,
            "runId": one.run_id,
            "overallScore": figures([one]).score,
            "threshold": one.threshold,
            "scoringApplied": one.graded and one.skipped is None,
            "passed": one.passed,
            "stimuliRun": sum(1 for stimulus in one.stimuli if stimulus.trials),
            "stimuliTotal": len(one.stimuli),
        }
        for one in invocation.evals
    ]
    told = {trial.run_id for one in invocation.evals for trial in one.trials}
    return {
        "type": "run-summary",
        "runId": next(iter(told)) if len(told) == 1 else invocation.id,
        "name": invocation.name,
        "passed": all(one.passed for one in invocation.evals),
        "hadExecutionErrors": any(
            trial.fault is not None and trial.fault.kind == "execution"
            for one in invocation.evals
            for trial in one.trials
        ),
        "evals": evals,
    }


def write_trials(invocation: Invocation, folder: Path) -> Iterator[TrialResult]:
    """Write each trial's session log and kept files; the trial with paths relative to `folder` comes back."""
    below = trial_folders(invocation)
    for result in invocation.evals:
        for stimulus in result.stimuli:
            for trial in stimulus.trials:
                own = below[_trial_key(result, stimulus.name)] / f"trial-{trial.index}"
                threshold = stimulus.threshold if trial.threshold is None else trial.threshold
                yield _write_trial(trial, folder, own, threshold)


class LiveResults:
    """The records of trials that have ended so far, appended to `results.jsonl` as they do.

    Whatever ends the eval, the file has what ended before; `write_all` writes it anew in the plan's order.
    """

    def __init__(self, planned: Invocation, folder: Path) -> None:
        """`planned` has every eval and stimulus, as the folders of trials are named after them."""
        self._folder = folder
        self._below = trial_folders(planned)
        self._path = folder / RESULTS

    def begin(self, trials: Iterable[tuple[TrialResult, SpecResult]]) -> list[TrialResult]:
        """Let the file have these trials alone; they come back as it has them."""
        kept = [self._kept(trial, of) for trial, of in trials]
        with disk_errors(f"write to {self._folder}", "output"), whole_file(self._path) as file:
            file.write(b"".join(map(_record_line, kept)))
        return kept

    def write(self, trials: Iterable[tuple[TrialResult, SpecResult]]) -> list[TrialResult]:
        """Append these trials; they come back as the file has them."""
        kept = [self._kept(trial, of) for trial, of in trials]
        with disk_errors(f"write to {self._folder}", "output"), self._path.open("ab") as file:
            file.write(b"".join(map(_record_line, kept)))
        return kept

    def _kept(self, trial: TrialResult, of: SpecResult) -> TrialResult:
        own = self._below[_trial_key(of, trial.stimulus)] / f"trial-{trial.index}"
        threshold = of.threshold if trial.threshold is None else trial.threshold
        return _write_trial(trial, self._folder, own, threshold)


def _record_line(trial: TrialResult) -> bytes:
    return dump_line(to_line(trial)).encode() + b"\n"


def trial_folders(invocation: Invocation) -> dict[Key, Path]:
    """`executor-session-logs/<eval>/<model>/<stimulus>` of each, by eval, file, variant, model, stimulus."""
    evals = folder_names({_eval_key(result): result.name for result in invocation.evals}, nameless="eval")
    models: dict[Key, dict[Key, str]] = {}
    stimuli: dict[Key, dict[Key, str]] = {}
    for result in invocation.evals:
        eval_key, model = _eval_key(result), result.model or ""
        models.setdefault(eval_key, {})[(model,)] = model
        names = stimuli.setdefault((*eval_key, model), {})
        names.update({(stimulus.name,): stimulus.name for stimulus in result.stimuli})
    found: dict[Key, Path] = {}
    for eval_key, wanted in models.items():
        for model_key, model_folder in folder_names(wanted, nameless="default").items():
            above = Path(SESSION_LOGS, evals[eval_key], model_folder)
            for stimulus_key, name in folder_names(
                stimuli[(*eval_key, *model_key)], nameless="stimulus"
            ).items():
                found[(*eval_key, *model_key, *stimulus_key)] = above / name
    return found


def variant_folders(folder: Path, variants: Iterable[str]) -> dict[str, Path]:
    """Return where the results of each variant are written."""
    names = folder_names({(one,): one for one in variants}, nameless="variant")
    return {one: folder / name for (one,), name in names.items()}


def _eval_key(result: SpecResult) -> Key:
    return (result.name, result.file, result.variant)


def _trial_key(result: SpecResult, stimulus: str) -> Key:
    return (*_eval_key(result), result.model or "", stimulus)


def _write_trial(trial: TrialResult, folder: Path, own: Path, threshold: float | None) -> TrialResult:
    if trial.kept_in == folder:
        return trial
    place = folder / own
    _make(place)
    patch = _keep_file(trial.patch, place / PATCH)
    if trial.patch is not None and patch:
        for source in turn_patches(trial.patch.parent).values():
            _keep_file(source, place / source.name)
    kept, whole = _keep_tree(trial.artifacts, place / ARTIFACTS)
    log = write_session_log(trial, place, {} if whole else {"artifactsTruncated": True})
    return replace(
        trial,
        session_log=own / log.name if log else None,
        artifacts=own / ARTIFACTS if kept else None,
        patch=own / PATCH if patch else None,
        threshold=threshold,
        kept_in=folder,
    )


def _make(place: Path) -> None:
    """A trial's folder, mostly in a new one of its stimulus, in one that is there."""
    try:
        place.parent.mkdir()
        place.mkdir()
    except OSError:
        place.mkdir(parents=True, exist_ok=True)


def _write_text(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode("utf-8", "replace"))


def _keep_file(source: Path | None, target: Path) -> bool:
    """Return whether there was a plain file to copy; whatever else stands there is not followed."""
    if source is None or not _is_plain(source):
        return False
    if not (target.exists() and source.samefile(target)):
        with whole_file(target) as file, source.open("rb") as given:
            shutil.copyfileobj(given, file)
    return True


def _keep_tree(source: Path | None, target: Path) -> tuple[bool, bool]:
    """Copy a folder's plain files in place of an older copy: whether there was one, and whether all fit."""
    if source is None or source.is_symlink() or not source.is_dir():
        return False, True
    if target.exists() and source.samefile(target):
        return True, True
    part = Path(tempfile.mkdtemp(prefix=".artifacts-", dir=target.parent))
    try:
        whole = _copy_plain_files(source, part)
        part.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        part.replace(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True, whole


def _copy_plain_files(source: Path, target: Path) -> bool:
    """Copy within bounds, links and the like left out; False where the bounds were reached."""
    files = size = 0
    for above, folders, names in os.walk(source):
        folders.sort()
        below = target / Path(above).relative_to(source)
        for name in sorted(names):
            given = Path(above, name)
            if not _is_plain(given):
                continue
            status = given.lstat()
            files, size = files + 1, size + status.st_size
            if files > MOST_FILES or size > MOST_BYTES:
                return False
            below.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(given, below / name, follow_symlinks=False)
            (below / name).chmod(0o755 if status.st_mode & stat.S_IXUSR else 0o644)
    return True


def _is_plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
