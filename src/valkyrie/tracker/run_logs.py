"""The logs of many trials as one stream of lines, read once or followed to the run's end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from valkyrie.domain import RunState, TrialState
from valkyrie.store import runs
from valkyrie.tracker.dispatch import pause
from valkyrie.views import LogLine, LogQuery

if TYPE_CHECKING:
    from valkyrie.store import Store
    from valkyrie.store.layout import RunFolder
    from valkyrie.tracker.kept import Kept

PIECE = 1 << 16
LONGEST_LINE = 1 << 16
"""Bytes; a longer line comes in pieces."""
LOOK_EVERY_S = 0.2
LOOK_ELSEWHERE_EVERY_S = 5.0
"""A log on another machine is fetched whole each time."""
NEVER = -1


class Which(NamedTuple):
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

    def read(self, which: Which, offset: int, *, last: bool) -> Iterator[bytes]:
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
            which = Which(trial.task_id, trial.k, number)
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
        self._tails: dict[Which, _Tail] = {}

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
                which = Which(trial.task_id, trial.k, number)
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

    def __init__(self, which: Which) -> None:
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
        self._started: dict[Which, float] = {}
        self._fetch_at: dict[Which, float] = {}

    def look(self, version: int) -> LogChanges:
        with self._store.reading() as connection:
            now = runs.version(connection, self._run_id)
            if now is None or now == version:
                return LogChanges(version, (), now is None)
            state = RunState(runs.get(connection, self._run_id).state)
            trials = [
                TrialNow(
                    row.task_id,
                    row.k,
                    row.position,
                    row.attempts,
                    TrialState(row.state).active,
                    TrialState(row.state).terminal,
                    row.started_at,
                )
                for row in runs.progress_since(connection, self._run_id, version)
            ]
        for trial in trials if self._elsewhere_kept else ():
            self._started[Which(trial.task_id, trial.k, trial.attempts)] = trial.started_at or 0.0
        return LogChanges(now, trials, state.terminal)

    def read(self, which: Which, offset: int, *, last: bool) -> Iterator[bytes]:
        path = self._folder.log(*which)
        if not path.exists():
            yield from self._elsewhere(which, offset, last=last)
            return
        with path.open("rb") as file:
            file.seek(offset)
            while piece := file.read(PIECE):
                yield piece

    def _elsewhere(self, which: Which, offset: int, *, last: bool) -> Iterator[bytes]:
        now = time.monotonic()
        if not self._elsewhere_kept or (not last and now < self._fetch_at.get(which, now)):
            return
        self._fetch_at[which] = now + LOOK_ELSEWHERE_EVERY_S
        for text in self._elsewhere_kept.log(*which, self._started_at(which), lambda: True):
            piece = text.encode()
            yield piece[offset:]
            offset = max(0, offset - len(piece))

    def _started_at(self, which: Which) -> float:
        if which in self._started:
            return self._started[which]
        with self._store.reading() as connection:
            trial = runs.one_trial(connection, self._run_id, which.task_id, which.k)
            rows = runs.attempts(connection, trial.id)
        return next((row.started_at for row in rows if row.number == which.attempt), 0.0)

    def pause(self) -> None:
        pause(LOOK_EVERY_S)  # files grow in another process
