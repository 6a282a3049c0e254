"""The line that says how far a run is."""

from __future__ import annotations

import io
import os

import pytest

from benchmark_runner.console import ProgressLine
from benchmark_runner.task_loop import RunCounts


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_rate_errors_and_the_time_that_is_left(clock: Clock) -> None:
    watch = RunCounts(total=200, done=50)
    shown = ProgressLine(watch, sink=io.StringIO(), clock=clock)
    assert shown.line(clock.now) == f"[{'#' * 6}{' ' * 18}] 50/200  25%  0.0/s  0 running"
    watch.done, watch.worked, watch.generating, watch.evaluating = 70, 20, 3, 1
    watch.generation_errors = 1
    assert shown.line(clock.now + 10).endswith("70/200  35%  2.0/s  4 running  1 error  ETA 1:05")
    watch.eval_errors = 1
    watch.done, watch.worked, watch.generating, watch.evaluating = 200, 150, 0, 0
    assert shown.line(clock.now + 20).endswith("200/200 100%  7.5/s  0 running  2 errors")


def test_slow_runs_are_told_by_the_minute_and_by_the_hour(clock: Clock) -> None:
    watch = RunCounts(total=300, done=1, worked=1)
    shown = ProgressLine(watch, sink=io.StringIO(), clock=clock)
    assert shown.line(clock.now + 20).endswith("3.0/min  0 running  ETA 1:39:40")


def test_the_rate_is_that_of_late(clock: Clock) -> None:
    watch = RunCounts(total=1000)
    shown = ProgressLine(watch, sink=io.StringIO(), clock=clock)
    for second in range(0, 200, 5):
        watch.done = watch.worked = 100 + second if second > 100 else 0
        line = shown.line(clock.now + second)
    assert "1.0/s" in line


def test_on_a_screen_one_line_is_drawn_again_and_taken_away(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen, watch = Screen(), RunCounts(total=2)
    with ProgressLine(watch, sink=screen, clock=clock):
        for done in (1, 2):
            clock.now += 1
            watch.done = watch.worked = done
            watch.changed()
            watch.changed()
    drawn = screen.getvalue().split("\r\x1b[2K")
    assert [line[:40] for line in drawn] == drawn and max(map(len, drawn)) == 39
    assert len(drawn) == 4 and drawn[0] == drawn[-1] == ""
    assert os.linesep not in screen.getvalue()


def test_in_a_pipe_a_line_now_and_then(clock: Clock) -> None:
    pipe, watch = io.StringIO(), RunCounts(total=9)
    with ProgressLine(watch, sink=pipe, clock=clock):
        for done in range(1, 10):
            clock.now += 10
            watch.done = watch.worked = done
            watch.changed()
    assert [line.split("] ")[1][:3] for line in pipe.getvalue().splitlines()] == ["3/9", "6/9", "9/9"]
    assert "\x1b" not in pipe.getvalue()


def test_nothing_where_a_program_listens(clock: Clock) -> None:
    screen, watch = Screen(), RunCounts(total=9)
    with ProgressLine(watch, sink=screen, quiet=True, clock=clock) as shown:
        clock.now += 100
        watch.changed()
        shown.clear()
    assert screen.getvalue() == ""
