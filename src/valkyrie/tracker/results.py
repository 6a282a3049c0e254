"""Verbs that take what a run left, here or elsewhere: results, outputs, logs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from valkyrie.artifact_store.logs import Transcripts, Which
from valkyrie.artifact_store.protocol import ArtifactStore, LogName, attempt_prefix, results_key
from valkyrie.client.files import OutputsWriter
from valkyrie.domain import Json, RunState, TrialState
from valkyrie.errors import UnknownError, UsageError, UserError
from valkyrie.report.results import document_text, results_document, results_text, told_arguments
from valkyrie.store import regrades, runs, trials
from valkyrie.store.layout import RunFolder, encode_task_id
from valkyrie.tracker.app import CallerContext, pause
from valkyrie.tracker.run_reader import RunReader
from valkyrie.views import LogLine, LogQuery, OutputsWanted, ResultsLink, ResultsWanted

if TYPE_CHECKING:
    from valkyrie.store import Connection, Store
    from valkyrie.tenants import Organisation


# What a run kept: in this machine's data folder, or where its artifacts and logs were put.

FOLLOW_EVERY_S = 0.2
LOG = "attempt.log"
STORY = "agent/transcript.json"
RECORD = "work.json"
"""What was packed of the agent's work: of use to who grades it again (`trial.kept_work`), not to people."""
PIECE = 1 << 16


class Kept:
    """One run's logs and files. Without an organisation only this machine's folder is looked at."""

    def __init__(
        self, folder: RunFolder, organisation: Organisation | None = None, place: Json | None = None
    ) -> None:
        self._folder = folder
        self._organisation = organisation
        self._place = place or {}
        self._run_id = folder.root.name
        self._stories = Transcripts(folder.transcripts)

    @cached_property
    def _artifacts(self) -> ArtifactStore | None:
        place = self._place.get("artifacts")
        return self._organisation.artifacts(place) if self._organisation and place else None

    @property
    def is_elsewhere(self) -> bool:
        """Return whether logs or files were put away anywhere but in this machine's data folder."""
        return bool(self._place)

    def files(self, task_id: str, k: int, number: int) -> Iterator[tuple[str, Iterator[bytes], int]]:
        """Yield every file of an attempt, its log as `attempt.log`: relative name, bytes, their number."""
        folder, log = self._folder.attempt(task_id, k, number), self._folder.log(task_id, k, number)
        if folder.exists() or log.exists() or not self._artifacts:
            yield from self._here(folder, log)
            yield from self._story((task_id, k, number), folder)
            return
        prefix = attempt_prefix(self._run_id, encode_task_id(task_id), k, number)
        for found in self._artifacts.list(prefix):
            if found.key == prefix + RECORD:
                continue
            yield found.key.removeprefix(prefix), self._artifacts.read(found.key), found.size

    def _here(self, folder: Path, log: Path) -> Iterator[tuple[str, Iterator[bytes], int]]:
        if log.exists():
            yield LOG, _read(log), log.stat().st_size
        for path in sorted(folder.rglob("*")) if folder.exists() else ():
            if path.is_file() and not path.is_symlink() and path != folder / RECORD:
                yield path.relative_to(folder).as_posix(), _read(path), path.stat().st_size

    def _story(self, which: Which, folder: Path) -> Iterator[tuple[str, Iterator[bytes], int]]:
        """Yield the agent's transcript as a file of its own; it is kept with those of other attempts."""
        story = self._stories.find(which)
        if story is not None and not (folder / STORY).exists():
            yield STORY, iter((story,)), len(story)

    def log(
        self, task_id: str, k: int, number: int, started_at: float, ended: Callable[[], bool]
    ) -> Iterator[str]:
        """A log piece by piece, until its attempt has ended."""
        path = self._folder.log(task_id, k, number)
        if path.exists() or not self._place:
            return read_log(path, ended)
        return self._log_elsewhere(LogName(self._run_id, task_id, k, number, started_at), path, ended)

    def _log_elsewhere(self, name: LogName, path: Path, ended: Callable[[], bool]) -> Iterator[str]:
        """An executor of another machine has the file; what it put away is read."""
        key = attempt_prefix(name.run_id, encode_task_id(name.task_id), name.k, name.attempt) + LOG
        place = self._place.get("logs")
        keeper = self._organisation.logs(place) if self._organisation and place else None
        shown = 0
        while True:
            last = ended()
            if path.exists():
                yield from read_log(path, ended)
                return
            try:
                if last and self._artifacts:
                    text = b"".join(self._artifacts.read(key)).decode("utf-8", "replace")
                    yield text[shown:]
                    return
            except UnknownError:
                pass  # it printed nothing, or its executor could not put it away
            if keeper:
                text = "".join(keeper.read(name))
                if len(text) > shown:
                    yield text[shown:]
                    shown = len(text)
            if last:
                return
            pause(5 * FOLLOW_EVERY_S)  # it grows on another machine


def read_log(path: Path, ended: Callable[[], bool]) -> Iterator[str]:
    """A log file piece by piece, until its attempt has ended."""
    position = 0
    while True:
        last = ended()  # asked before reading, so that nothing written in between is missed
        if path.exists():
            with path.open(encoding="utf-8", errors="replace") as file:
                file.seek(position)
                while piece := file.read(65536):
                    yield piece
                position = file.tell()
        if last:
            return
        pause(FOLLOW_EVERY_S)  # the file grows in another process


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


class ResultVerbs:
    """Take what runs left, wherever it is kept."""

    def __init__(self, context: CallerContext, reader: RunReader) -> None:
        self._context = context
        self._reader = reader

    def results(self, ref: str, request: ResultsWanted = ResultsWanted()) -> Json:
        with self._context.store.reading() as connection:
            run_id = self._checked(connection, ref, request.task_ids)
            view = self._reader.view(connection, run_id, detailed=True)
            row = runs.get(connection, run_id)
            view = replace(view, arguments=told_arguments(row))
            rows = trials.each_result(connection, run_id)
            if request.task_ids is None:
                return results_document(view, row.final_evaluation, rows, passes=row.passes)
            wanted = set(request.task_ids)
            chosen = [row for row in rows if row.task_id in wanted]
        from valkyrie.tracker.gradings import rescored

        final, score = rescored(row, chosen, self._context.organisation, request.headers)
        part = replace(view, score=score, cost=None)
        return results_document(part, final, chosen, passes=row.passes, subset=True)

    def results_text(self, ref: str, request: ResultsWanted = ResultsWanted()) -> Iterator[str]:
        if request.task_ids is not None:
            yield document_text(self.results(ref, request)) + "\n"
            return
        with self._context.store.reading() as connection:
            run_id = self._context.resolve(connection, ref)
            view = self._reader.view(connection, run_id, detailed=True)
            row = runs.get(connection, run_id)
        view = replace(view, arguments=told_arguments(row))
        yield from results_text(view, row.final_evaluation, self._each_result(run_id), passes=row.passes)

    def _each_result(self, run_id: str) -> Iterator[Any]:
        """Yield the trials with their results: whoever reads slowly keeps no transaction open."""
        after = -1
        while True:
            with self._context.store.reading() as connection:
                rows = trials.results_behind(connection, run_id, after)
            yield from rows
            if not rows:
                return
            after = rows[-1].position

    def upload_results(self, ref: str, request: ResultsWanted = ResultsWanted()) -> ResultsLink:
        document = self.results(ref, request)
        view = self._reader.fetch(ref)
        with self._context.store.reading() as connection:
            place = runs.get(connection, view.id).place or {}
        artifacts = self._context.organisation.artifacts(place.get("artifacts"))
        if artifacts is None:
            raise UserError(
                "There is no bucket to upload to: `valk config set S3_BUCKET NAME` (or artifacts_folder), "
                "or `valk run results` without --s3 writes a file.",
                cause="artifacts_config",
            )
        chosen = request.task_ids
        subset = hashlib.sha256("\n".join(sorted(chosen)).encode()).hexdigest()[:12] if chosen else None
        key = results_key(view.id, view.benchmark, subset)
        artifacts.put_text(key, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return ResultsLink(artifacts.url(key), artifacts.link(key), artifacts.console_url(key))

    def outputs(
        self, ref: str, destination: Path, request: OutputsWanted = OutputsWanted()
    ) -> Sequence[Path]:
        writer = OutputsWriter(destination)
        for folder, name, pieces, _size in self._output_files(ref, request):
            writer.write(folder, name, pieces)
        return writer.close()

    def output_files(
        self, ref: str, request: OutputsWanted = OutputsWanted()
    ) -> Iterator[tuple[str, Iterator[bytes], int]]:
        """Yield every file kept of each trial's last attempt: its relative name, its bytes, their number."""
        for folder, name, pieces, size in self._output_files(ref, request):
            yield (folder / name).as_posix(), pieces, size

    def _output_files(
        self, ref: str, request: OutputsWanted
    ) -> Iterator[tuple[Path, str, Iterator[bytes], int]]:
        with self._context.store.reading() as connection:
            run_id = self._checked(connection, ref, request.task_ids)
            wanted = None if request.task_ids is None else set(request.task_ids)
            shown = regrades.attempts_shown(connection, run_id)
            rows = [
                (row.task_id, row.k, shown.get((row.task_id, row.k), row.attempts))
                for row in trials.each_result(connection, run_id)
                if wanted is None or row.task_id in wanted
            ]
        kept = self._kept(run_id)
        for task_id, k, number in rows:
            folder = Path(encode_task_id(task_id), str(k) if k else "")
            for name, pieces, size in kept.files(task_id, k, number):
                if request.files is None or any(fnmatchcase(name, one) for one in request.files):
                    yield folder, name, pieces, size

    def _checked(self, connection: Connection, ref: str, task_ids: Sequence[str] | None) -> str:
        run_id = self._context.resolve(connection, ref)
        if task_ids is not None:
            runs.check_tasks(connection, run_id, task_ids)
        return run_id

    def _kept(self, run_id: str) -> Kept:
        with self._context.store.reading() as connection:
            place = runs.get(connection, run_id).place or {}
        return Kept(self._context.data.run(run_id), self._context.organisation, place)

    def logs(
        self, ref: str, task_id: str, *, k: int = 0, attempt: int | None = None, follow: bool = False
    ) -> Iterator[str]:
        found = self._reader.attempts(ref, task_id, k)
        if not found:
            raise UserError(f"Task {task_id!r} has not been attempted yet.")
        numbers = [one.number for one in found]
        number = attempt if attempt is not None else numbers[-1]
        if number not in numbers:
            raise UsageError(f"Task {task_id!r} has attempts {numbers[0]} to {numbers[-1]}, not {number}.")
        with self._context.store.reading() as connection:
            run_id = self._context.resolve(connection, ref)

        def ended() -> bool:
            return not follow or self._reader.attempts(ref, task_id, k)[number - 1].outcome is not None

        return self._kept(run_id).log(task_id, k, number, found[number - 1].started_at, ended)

    def run_logs(self, ref: str, query: LogQuery) -> Iterator[LogLine]:

        with self._context.store.reading() as connection:
            run_id = self._checked(connection, ref, query.task_ids)
        source = StoredLogs(self._context.store, run_id, self._context.data.run(run_id), self._kept(run_id))
        return read_run_logs(source, query)


# The logs of many trials as one stream of lines, read once or followed to the run's end.
LONGEST_LINE = 1 << 16
"""Bytes; a longer line comes in pieces."""
LOOK_EVERY_S = 0.2
LOOK_ELSEWHERE_EVERY_S = 5.0
"""A log on another machine is fetched whole each time."""
NEVER = -1


class LogKey(NamedTuple):
    """Whose log."""

    task_id: str
    k: int
    attempt: int


@dataclass(frozen=True, slots=True)
class TrialNow:
    """A trial as far as its logs are concerned."""

    task_id: str
    k: int
    position: int
    attempts: int
    active: bool
    """Its last attempt is under way."""
    ended: bool
    """No further attempt follows by itself."""
    started_at: float | None = None
    """When its last attempt began."""


@dataclass(frozen=True, slots=True)
class LogChanges:
    """What changed since a version of the run."""

    version: int
    trials: Sequence[TrialNow]
    ended: bool
    """The run came to its end, or is gone."""


class LogSource(Protocol):
    """Where a run's trials and their logs are looked at."""

    def look(self, version: int) -> LogChanges:
        """Trials that changed after `version`; all of them after `NEVER`."""
        ...

    def read(self, which: LogKey, offset: int, *, last: bool) -> Iterator[bytes]:
        """A log's bytes from `offset` to its present end; none if nothing was logged. Leaves no file open.

        `last`: it is not read again.
        """
        ...

    def pause(self) -> None:
        """Return when it is worth looking again."""
        ...


def read_run_logs(source: LogSource, query: LogQuery) -> Iterator[LogLine]:
    """Return every line that is asked for: trial by trial, or with `follow` as they come until nothing more
    will.

    Of each trial the last attempt, and while following the ones after it; or only attempt `query.attempt`.
    Upper and lower case are the same to `query.search`.
    """
    search = (query.search or "").casefold()
    lines = _follow(source, query) if query.follow else _read_once(source, query)
    return (line for line in lines if search in line.text.casefold())


def _wanted(look: LogChanges, query: LogQuery) -> list[TrialNow]:
    ids = None if query.task_ids is None else set(query.task_ids)
    return [
        trial
        for trial in sorted(look.trials, key=lambda trial: trial.position)
        if (ids is None or trial.task_id in ids) and (query.k is None or trial.k == query.k)
    ]


def _read_once(source: LogSource, query: LogQuery) -> Iterator[LogLine]:
    for trial in _wanted(source.look(NEVER), query):
        number = query.attempt or trial.attempts
        if 0 < number <= trial.attempts:
            which = LogKey(trial.task_id, trial.k, number)
            yield from _Tail(which).lines(source.read(which, 0, last=True), last=True)


def _follow(source: LogSource, query: LogQuery) -> Iterator[LogLine]:
    following = _Following(query)
    version = NEVER
    while True:
        look = source.look(version)  # before reading, so that nothing written in between is missed
        version = look.version
        for trial in _wanted(look, query):
            following.take(trial)
        yield from following.read(source, last=look.ended)
        if look.ended or not following.expects_more:
            return
        source.pause()


class _Following:
    """Attempts whose logs still grow, and trials of which more may come."""

    def __init__(self, query: LogQuery) -> None:
        self._only = query.attempt
        self._trials: dict[tuple[str, int], TrialNow] = {}
        self._unsettled: set[tuple[str, int]] = set()
        self._tails: dict[LogKey, _Tail] = {}

    @property
    def expects_more(self) -> bool:
        return bool(self._unsettled)

    def take(self, trial: TrialNow) -> None:
        """A trial as it stands now; attempts it began since the last time are read from their beginning."""
        key = (trial.task_id, trial.k)
        before = self._trials.get(key)
        first = before.attempts + 1 if before else max(1, trial.attempts)
        if self._only and before is None:
            first = 1
        for number in range(first, trial.attempts + 1):
            if self._only in (None, number):
                which = LogKey(trial.task_id, trial.k, number)
                self._tails[which] = _Tail(which)
        self._trials[key] = trial
        settled = trial.ended or (self._only is not None and trial.attempts > self._only)
        (self._unsettled.discard if settled else self._unsettled.add)(key)

    def read(self, source: LogSource, *, last: bool) -> Iterator[LogLine]:
        """Yield what was written since; a log whose attempt has ended is let go."""
        for which, tail in list(self._tails.items()):
            trial = self._trials[which.task_id, which.k]
            complete = last or which.attempt < trial.attempts or not trial.active
            yield from tail.lines(source.read(which, tail.offset, last=complete), last=complete)
            if complete:
                del self._tails[which]


class _Tail:
    """How far one log has been read, and the line it broke off in."""

    __slots__ = ("_held", "_which", "offset")

    def __init__(self, which: LogKey) -> None:
        self._which = which
        self._held = b""
        self.offset = 0

    def lines(self, pieces: Iterable[bytes], *, last: bool) -> Iterator[LogLine]:
        """Whole lines among further pieces; with `last` also what stands after the last line break."""
        for piece in pieces:
            self.offset += len(piece)
            *whole, self._held = (self._held + piece).split(b"\n")
            for line in whole:
                yield from map(self._line, _in_pieces(line))
            *full, self._held = _in_pieces(self._held)
            yield from map(self._line, full)
        if last and self._held:
            yield self._line(self._held)
            self._held = b""

    def _line(self, line: bytes) -> LogLine:
        text = line.decode("utf-8", "replace").removesuffix("\r")
        return LogLine(self._which.task_id, self._which.k, self._which.attempt, text)


def _in_pieces(line: bytes) -> list[bytes]:
    """A line in pieces that are not too long, no character cut in two."""
    pieces = []
    while len(line) > LONGEST_LINE:
        cut = LONGEST_LINE
        while cut > LONGEST_LINE - 4 and line[cut] & 0xC0 == 0x80:
            cut -= 1
        pieces.append(line[:cut])
        line = line[cut:]
    return [*pieces, line]


class StoredLogs:
    """The logs of a run in a store: this machine's files, or what was put away elsewhere."""

    def __init__(self, store: Store, run_id: str, folder: RunFolder, kept: Kept | None = None) -> None:
        self._store = store
        self._run_id = run_id
        self._folder = folder
        self._elsewhere_kept = kept if kept is not None and kept.is_elsewhere else None
        self._started: dict[LogKey, float] = {}
        self._fetch_at: dict[LogKey, float] = {}

    def look(self, version: int) -> LogChanges:
        with self._store.reading() as connection:
            now = runs.version(connection, self._run_id)
            if now is None or now == version:
                return LogChanges(version, (), now is None)
            state = RunState(runs.get(connection, self._run_id).state)
            changed = [
                TrialNow(
                    row.task_id,
                    row.k,
                    row.position,
                    row.attempts,
                    TrialState(row.state).active,
                    TrialState(row.state).terminal,
                    row.started_at,
                )
                for row in trials.progress_since(connection, self._run_id, version)
            ]
        for trial in changed if self._elsewhere_kept else ():
            self._started[LogKey(trial.task_id, trial.k, trial.attempts)] = trial.started_at or 0.0
        return LogChanges(now, changed, state.terminal)

    def read(self, which: LogKey, offset: int, *, last: bool) -> Iterator[bytes]:
        path = self._folder.log(*which)
        if not path.exists():
            yield from self._elsewhere(which, offset, last=last)
            return
        with path.open("rb") as file:
            file.seek(offset)
            while piece := file.read(PIECE):
                yield piece

    def _elsewhere(self, which: LogKey, offset: int, *, last: bool) -> Iterator[bytes]:
        now = time.monotonic()
        if not self._elsewhere_kept or (not last and now < self._fetch_at.get(which, now)):
            return
        self._fetch_at[which] = now + LOOK_ELSEWHERE_EVERY_S
        for text in self._elsewhere_kept.log(*which, self._started_at(which), lambda: True):
            piece = text.encode()
            yield piece[offset:]
            offset = max(0, offset - len(piece))

    def _started_at(self, which: LogKey) -> float:
        if which in self._started:
            return self._started[which]
        with self._store.reading() as connection:
            trial = trials.one_trial(connection, self._run_id, which.task_id, which.k)
            rows = trials.attempts(connection, trial.id)
        return next((row.started_at for row in rows if row.number == which.attempt), 0.0)

    def pause(self) -> None:
        pause(LOOK_EVERY_S)  # files grow in another process
