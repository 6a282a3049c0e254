"""Contract: what an attempt wrote arrives once, whole and in order, whatever happens on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from valkyrie.artifact_store.protocol import LogKeeper, LogName

LINES = "first\n\n  second ☃\ttabs\r\n\x1b[31mred\x1b[0m\nlast without an end"


class LogKeeperContract:
    """A subclass gives a `keeper` fixture that ships often, and `again`, which opens the same place anew."""

    @pytest.fixture
    def keeper(self) -> Iterator[LogKeeper]:
        raise NotImplementedError("give a `keeper` fixture")
        yield

    def again(self, keeper: LogKeeper) -> LogKeeper:
        """The same keeper, opened from its `place` by another program."""
        raise NotImplementedError("open the keeper from keeper.place")

    def test_a_log_arrives_as_it_was_written(self, keeper: LogKeeper, tmp_path: Path) -> None:
        file, name = tmp_path / "log", log_name()
        keeper.follow(name, file)
        file.write_text(LINES)
        keeper.ended(name)
        until(lambda: kept(keeper, name) == LINES)
        keeper.close(60)
        assert kept(keeper, name) == LINES
        assert kept(self.again(keeper), name) == LINES

    def test_it_arrives_while_it_is_written(self, keeper: LogKeeper, tmp_path: Path) -> None:
        file, name = tmp_path / "log", log_name()
        keeper.follow(name, file)
        with file.open("a") as log:
            log.write("one\n")
            log.flush()
            until(lambda: kept(keeper, name) == "one\n")
            log.write("two\nthree")
            log.flush()
            until(lambda: kept(keeper, name) == "one\ntwo\nthree")
            log.write("-and-a-half\n")
        keeper.ended(name)
        keeper.close(60)
        assert kept(keeper, name) == "one\ntwo\nthree-and-a-half\n"

    def test_characters_that_come_in_two_halves(self, keeper: LogKeeper, tmp_path: Path) -> None:
        file, name = tmp_path / "log", log_name()
        keeper.follow(name, file)
        with file.open("ab") as log:
            log.write("snow ☃".encode()[:-1])
            log.flush()
            until(lambda: kept(keeper, name) == "snow ")
            log.write("☃".encode()[-1:])
        keeper.ended(name)
        keeper.close(60)
        assert kept(keeper, name) == "snow ☃"

    def test_big_logs_and_long_lines(self, keeper: LogKeeper, tmp_path: Path) -> None:
        file, name = tmp_path / "log", log_name()
        text = "☃" * 400_000 + "\n" + "x\n" * 30_000 + "y" * 1_200_000 + "\n" + "z" * 10
        file.write_text(text)
        keeper.follow(name, file)
        keeper.ended(name)
        keeper.close(60)
        assert "".join(keeper.read(name)) == text

    def test_every_attempt_has_its_own(self, keeper: LogKeeper, tmp_path: Path) -> None:
        began = time.time()
        names = [
            LogName("r1", "task", 0, 1, began),
            LogName("r1", "task", 0, 2, began + 0.000_002),
            LogName("r1", "task", 1, 1, began),
            LogName("r2", "task", 0, 1, began),
            LogName("r1", "group/ta sk:*%?#[ü]", 0, 1, began),
            LogName("r1", ".", 0, 1, began),
            LogName("r1", "..", 0, 1, began),
            LogName("r1", "x" * 900 + "1", 0, 1, began),
            LogName("r1", "x" * 900 + "2", 0, 1, began),
            LogName("r1", "x" * 900 + "2", 1, 1, began),
            LogName("r1", "雪" * 300, 0, 1, began),
        ]
        for number, name in enumerate(names):
            file = tmp_path / f"log-{number}"
            file.write_text(f"log {number}\n")
            keeper.follow(name, file)
            keeper.ended(name)
        keeper.close(60)
        assert [kept(keeper, name) for name in names] == [f"log {number}\n" for number in range(len(names))]

    def test_an_attempt_that_wrote_nothing_has_none(self, keeper: LogKeeper, tmp_path: Path) -> None:
        for file in (tmp_path / "never-made", tmp_path / "empty"):
            name = log_name(file.name)
            keeper.follow(name, file)
            keeper.ended(name)
        (tmp_path / "empty").touch()
        keeper.close(60)
        assert kept(keeper, log_name("never-made")) == kept(keeper, log_name("empty")) == ""
        assert kept(keeper, log_name("of nobody")) == ""

    def test_a_killed_program_is_followed_by_another(self, keeper: LogKeeper, tmp_path: Path) -> None:
        """Ship nothing again that the first one shipped."""
        file, name = tmp_path / "log", log_name()
        file.write_text("one\ntwo\n")
        keeper.follow(name, file)
        until(lambda: kept(keeper, name) == "one\ntwo\n")
        after = self.again(keeper)
        with file.open("a") as log:
            log.write("three\n")
        keeper.close(0)
        until(lambda: not threads())
        so_far = kept(keeper, name)
        with file.open("a") as log:
            log.write("four\n")
        after.follow(name, file)
        after.ended(name)
        after.close(60)
        assert so_far in ("one\ntwo\n", "one\ntwo\nthree\n")
        assert kept(after, name) == "one\ntwo\nthree\nfour\n"

    def test_many_at_once(self, keeper: LogKeeper, tmp_path: Path) -> None:
        def attempt(number: int) -> tuple[LogName, str]:
            file, name = tmp_path / f"log-{number}", log_name(f"task-{number}")
            keeper.follow(name, file)
            with file.open("a") as log:
                for line in range(50):
                    log.write(f"{number} says {line}\n")
                    log.flush()
            keeper.ended(name)
            return name, file.read_text()

        with ThreadPoolExecutor(8) as pool:
            written = list(pool.map(attempt, range(24)))
        keeper.close(60)
        for name, text in written:
            assert kept(keeper, name) == text

    def test_the_end_waits_for_nobody_for_ever(self, keeper: LogKeeper, tmp_path: Path) -> None:
        keeper.close(0)
        keeper.follow(log_name(), tmp_path / "late")
        keeper.ended(log_name())
        keeper.close(0)
        until(lambda: not threads())
        assert kept(keeper, log_name()) == ""

    def test_the_check_passes_where_logs_can_be_written(self, keeper: LogKeeper) -> None:
        keeper.check()
        assert self.again(keeper).place == keeper.place


def log_name(task_id: str = "task") -> LogName:
    """The log of a task's first attempt."""
    return LogName("run-1", task_id, 0, 1, 1_700_000_000.123456)


def kept(keeper: LogKeeper, name: LogName) -> str:
    """Return all of a log that was shipped."""
    return "".join(keeper.read(name))


def threads() -> list[threading.Thread]:
    """Those that ship logs."""
    return [thread for thread in threading.enumerate() if thread.name == "logs"]


def until(holds: Callable[[], bool], timeout: float = 60) -> None:
    """Return once it holds; what is waited for happens in another thread."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
