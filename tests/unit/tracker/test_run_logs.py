"""Logs of many trials: read once, followed, searched, cut; from scripts of what happens, and from a store."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from valkyrie.domain import Outcome, TrialState
from valkyrie.store import Store, journal, leases, runs
from valkyrie.store.journal import Finish
from valkyrie.store.layout import RunFolder
from valkyrie.store.leases import Room, Tick
from valkyrie.tracker.results import (
    LONGEST_LINE,
    NEVER,
    LogChanges,
    LogKey,
    StoredLogs,
    TrialNow,
    read_run_logs,
)
from valkyrie.views import LogQuery

A = TrialNow("a", 0, 0, 1, active=True, ended=False)
B = TrialNow("b", 0, 1, 1, active=True, ended=False)
DONE = {"active": False, "ended": True}


class Script:
    """A run that goes on step by step, each time somebody pauses."""

    def __init__(self, *steps: tuple[list[TrialNow], dict[LogKey, bytes]], ends: bool = True) -> None:
        self._steps = steps
        self._now = 0
        self._ends = ends
        self._logs: dict[LogKey, bytes] = {}
        self._write()

    def _write(self) -> None:
        for which, more in self._steps[self._now][1].items():
            self._logs[which] = self._logs.get(which, b"") + more

    def look(self, version: int) -> LogChanges:
        changed = self._steps[self._now][0] if self._now != version else []
        last = self._now == len(self._steps) - 1
        return LogChanges(self._now, changed, last and self._ends)

    def read(self, which: LogKey, offset: int, *, last: bool) -> Iterator[bytes]:
        yield self._logs.get(which, b"")[offset:]

    def pause(self) -> None:
        self._now += 1
        self._write()


def texts(source: Script, query: LogQuery) -> list[tuple[str, int, str]]:
    return [(line.task_id, line.attempt, line.text) for line in read_run_logs(source, query)]


def test_each_trials_last_attempt_in_the_order_of_the_run() -> None:
    trials = [replace(B, attempts=2), A, TrialNow("c", 0, 2, 0, active=False, ended=False)]
    logs = {LogKey("a", 0, 1): b"one\ntwo", LogKey("b", 0, 1): b"old\n", LogKey("b", 0, 2): b"new\r\n\nend\n"}
    said = texts(Script((trials, logs)), LogQuery())
    assert said == [("a", 1, "one"), ("a", 1, "two"), ("b", 2, "new"), ("b", 2, ""), ("b", 2, "end")]
    assert texts(Script((trials, logs)), LogQuery(attempt=1, task_ids=["b"])) == [("b", 1, "old")]
    assert texts(Script((trials, logs)), LogQuery(attempt=9)) == []
    assert texts(Script((trials, logs)), LogQuery(k=1)) == []


def test_search_knows_no_case() -> None:
    log = {LogKey("a", 0, 1): "Rate LIMIT hit\nfine\nGRÖSSE\n".encode()}
    assert texts(Script(([A], log)), LogQuery(search="rate limit")) == [("a", 1, "Rate LIMIT hit")]
    assert texts(Script(([A], log)), LogQuery(search="größe")) == [("a", 1, "GRÖSSE")]


def test_following_shows_lines_once_whole_and_new_attempts_until_the_end() -> None:
    first, second = LogKey("a", 0, 1), LogKey("a", 0, 2)
    script = Script(
        ([A, B], {first: b"begin\nhal", LogKey("b", 0, 1): b"b\n"}),
        ([], {first: b"f a line\n\xc3"}),
        ([replace(A, attempts=2)], {first: b"\xa9!", second: b"again\n"}),
        ([replace(A, attempts=2, **DONE)], {second: b"the end"}),
        ([replace(B, **DONE)], {}),
    )
    said = texts(script, LogQuery(follow=True))
    assert [text for task, _, text in said if task == "a"] == [
        "begin",
        "half a line",
        "é!",
        "again",
        "the end",
    ]
    assert said[0] == ("a", 1, "begin") and ("b", 1, "b") in said and ("a", 2, "the end") == said[-1]


def test_following_begins_with_attempts_that_passed_unseen() -> None:
    script = Script(
        ([A], {LogKey("a", 0, 1): b"1\n"}),
        ([replace(A, attempts=3, **DONE)], {LogKey("a", 0, 2): b"2\n", LogKey("a", 0, 3): b"3\n"}),
    )
    assert texts(script, LogQuery(follow=True)) == [("a", 1, "1"), ("a", 2, "2"), ("a", 3, "3")]


def test_following_some_tasks_ends_with_them_and_not_with_the_run() -> None:
    script = Script(
        ([A, B], {LogKey("a", 0, 1): b"x\n"}),
        ([replace(A, **DONE)], {}),
        ends=False,
    )
    assert texts(script, LogQuery(task_ids=["a"], follow=True)) == [("a", 1, "x")]
    script = Script(([A], {}), ([replace(A, attempts=2)], {LogKey("a", 0, 1): b"x\n"}), ends=False)
    assert texts(script, LogQuery(attempt=1, follow=True)) == [("a", 1, "x")]


def test_a_run_that_is_gone_ends_the_following() -> None:
    script = Script(([A], {LogKey("a", 0, 1): b"cut of"}), ([], {}))
    assert texts(script, LogQuery(follow=True)) == [("a", 1, "cut of")]


def test_endless_lines_come_in_pieces_that_cut_no_character() -> None:
    whole = "é" * LONGEST_LINE + "end"
    said = texts(Script(([A], {LogKey("a", 0, 1): b"x" + whole.encode() + b"\n"})), LogQuery())
    assert len(said) == 3 and "".join(text for _, _, text in said) == "x" + whole
    growing = Script(
        ([A], {LogKey("a", 0, 1): b"y" * (LONGEST_LINE + 1)}),
        ([replace(A, **DONE)], {LogKey("a", 0, 1): b"z\n"}),
    )
    assert [len(text) for _, _, text in texts(growing, LogQuery(follow=True))] == [LONGEST_LINE, 2]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "v.db")
    yield opened
    opened.close()


def add_run(store: Store, tasks: int) -> str:
    run_id = str(uuid.uuid4())
    values = {
        "id": run_id, "agent": "a", "benchmark": "b", "dataset": "default", "provider": "null",
        "concurrency": tasks, "fraction": True, "created_at": time.time(), "arguments": {},
        "agent_frozen": {}, "benchmark_source": {}, "enforcement": {},
    }  # fmt: skip
    with store.writing() as connection:
        runs.create(connection, values, [runs.NewTrial(f"t/{n}", 0, "d", None, None) for n in range(tasks)])
    return run_id


def lease(store: Store, run_id: str) -> list[leases.Leased]:
    with store.writing() as connection:
        tick = Tick("me", time.time(), Room(1e9, 1e9, idle=False), {}, {run_id})
        return list(leases.lease(connection, tick).leased)


def end(store: Store, leased: list[leases.Leased]) -> None:
    with store.writing() as connection:
        journal.record(
            connection,
            [
                Finish(one, TrialState.BUILDING, TrialState.FINISHED, Outcome.GRADED, time.time(), score=1.0)
                for one in leased
            ],
        )


def write_log(folder: RunFolder, one: leases.Leased, text: str) -> None:
    path = folder.log(one.task_id, one.k, one.number)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_a_stored_run_of_thousands_is_read_with_hardly_a_file_open(store: Store, tmp_path: Path) -> None:
    run_id = add_run(store, 2_000)
    folder = RunFolder(tmp_path / run_id)
    leased = lease(store, run_id)
    for one in leased:
        write_log(folder, one, f"hello from {one.task_id}\n")
    before, most, count = len(os.listdir("/proc/self/fd")), 0, 0
    for line in read_run_logs(StoredLogs(store, run_id, folder), LogQuery()):
        assert line.text == f"hello from {line.task_id}"
        most, count = max(most, len(os.listdir("/proc/self/fd"))), count + 1
    assert count == 2_000 and most <= before + 8  # a log, and the database's own


def test_a_stored_run_is_followed_to_its_end(store: Store, tmp_path: Path) -> None:
    run_id = add_run(store, 2)
    folder = RunFolder(tmp_path / run_id)
    source = StoredLogs(store, run_id, folder)
    assert [trial.attempts for trial in source.look(NEVER).trials] == [0, 0]
    first, second = lease(store, run_id)
    write_log(folder, first, "one\n")
    lines = read_run_logs(source, LogQuery(follow=True))
    assert next(lines).text == "one"
    write_log(folder, second, "two\n")
    end(store, [first, second])
    assert [(line.task_id, line.text) for line in lines] == [("t/1", "two")]


def test_nothing_changed_is_told_without_reading_trials(store: Store, tmp_path: Path) -> None:
    run_id = add_run(store, 1)
    source = StoredLogs(store, run_id, RunFolder(tmp_path / run_id))
    look = source.look(NEVER)
    assert len(look.trials) == 1 and source.look(look.version).trials == ()
    assert StoredLogs(store, str(uuid.uuid4()), RunFolder(tmp_path)).look(3) == LogChanges(3, (), True)
