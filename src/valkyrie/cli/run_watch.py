"""Watch runs live, as lines or as JSON Lines; turn pages on a terminal; `run wait`."""

from __future__ import annotations

import os
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from benchmark_runner.terminal import LiveView, Region, Table, TerminalStyle, printable, safe
from valkyrie.cli.options import Number, pinned, run_argument, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import ends_text, number, plural, run_exits_text, score_sentence, short_id
from valkyrie.report.tables import RunSnapshot, change_line, ended, frame, next_commands, run_rows
from valkyrie.views import TrialFilter, to_json

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import RunView, ScoreView


Page = tuple[list[str], bool]
"""Lines, and whether another page follows."""

_PREVIOUS = {b"h", b"H", b"k", b"\x1b[D", b"\x1b[5~"}
_NEXT = {b"l", b"L", b"j", b" ", b"\r", b"\n", b"\x1b[C", b"\x1b[6~"}
_QUIT = {b"q", b"Q", b"\x1b", b"\x03", b"\x04", b""}
_LINES_AROUND_ROWS = 6


def page_rows() -> int:
    """How many rows of a table one screen takes, with heading, notes and keys around them."""
    return max(3, shutil.get_terminal_size().lines - _LINES_AROUND_ROWS)


def browse(load: Callable[[int], Page], ink: TerminalStyle) -> None:
    """Show page 0; if there are more, turn pages with keys. The last page seen stays on the screen."""
    lines, more = load(0)
    if not more:
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
        return
    region, index = Region(), 0
    with _keys() as read_key:
        while True:
            keys = " · ".join([*(["h previous"] if index else []), *(["l next"] if more else []), "q quit"])
            region.draw([*lines, "", ink.paint(f"Page {index + 1}   {keys}", "dim")])
            step = _step(read_key(), index, more)
            if step is None:
                break
            index += step
            lines, more = load(index)
    region.draw(lines)


def _step(key: bytes, index: int, more: bool) -> int | None:
    if key in _QUIT:
        return None
    if key in _NEXT and more:
        return 1
    return -1 if key in _PREVIOUS and index else 0


@contextmanager
def _keys() -> Iterator[Callable[[], bytes]]:
    """Keys as they are pressed, not echoed; the terminal is put back as it was."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)
    settings = termios.tcgetattr(descriptor)
    settings[1] = before[1]
    termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
    try:
        yield lambda: os.read(descriptor, 8)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def show_lines(lines: Sequence[str], output: Output) -> None:
    """Show a text: printed in a pipe or when it fits, else in pages."""
    rows = page_rows()
    if not (output.interactive and output.redraws) or len(lines) <= rows:
        output.lines(lines)
        return
    browse(lambda page: (list(lines[page * rows :][:rows]), (page + 1) * rows < len(lines)), output.ink)


def show_table(table: Table, output: Output) -> None:
    """A whole table: printed in a pipe or when it fits, else in pages."""
    rows = page_rows()
    if not (output.interactive and output.redraws) or len(table.rows) <= rows:
        output.table(table)
        return

    def load(index: int) -> Page:
        part = Table(table.columns, table.rows[index * rows : (index + 1) * rows])
        return part.lines(output.ink, output.width), (index + 1) * rows < len(table.rows)

    browse(load, output.ink)


# Watching runs go: live on a terminal, a line per change in a pipe, JSON Lines under --json.

DETACHED = 130
_ACTIVE = ("BUILDING", "IN_PROGRESS", "EVALUATING")
_SECONDS_BETWEEN_LINES = 1.0


def watch_until_end(tracker: Tracker, ref: str, output: Output) -> int:
    """Watch one run to its end, then show it. Ctrl+C detaches: the run goes on, exit code 130."""
    ref = pinned(tracker, ref)
    try:
        runs = watch(tracker, [ref], output)
    except KeyboardInterrupt:
        return _detach(tracker, ref, output)
    run = runs[0]
    if output.json:
        output.emit("run", event="complete", run=_plain(run))
        return 0
    output.panel("Run ended", run_rows(run, output.ink))
    output.panel("Next", next_commands(run))
    return 0


def _detach(tracker: Tracker, ref: str, output: Output) -> int:
    run = tracker.fetch(ref)
    if output.json:
        output.emit("run", event="interrupted", run=_plain(run))
        return DETACHED
    output.line(f"Detached; run {short_id(run.id)} goes on without this window.")
    output.panel("Next", next_commands(run))
    return DETACHED


def watch(tracker: Tracker, refs: Sequence[str], output: Output) -> list[RunView]:
    """Show these runs until all ended; returns them as they ended."""
    if not output.redraws:
        tracker.on_line(lambda lost: output.note(line_text(lost)))
    if output.json:
        return _watch_json(tracker, refs, output)
    if output.redraws:
        return _watch_live(tracker, refs, output)
    return _watch_lines(tracker, refs, output)


def line_text(lost: str | None) -> str:
    """What to say when the line to a tracker is cut, and when it is not any more."""
    if lost is None:
        return "The tracker answers again."
    return f"{safe(lost).rstrip('.')}; trying again. What was started goes on meanwhile."


def _changes(tracker: Tracker, refs: Sequence[str]) -> Iterator[list[RunView]]:
    """All runs again after a change of the one that is waited for; each in turn to its end."""
    views = {ref: tracker.fetch(ref) for ref in refs}
    for followed in refs:
        for view in tracker.follow(followed):
            views[followed] = view
            for other in refs:
                if other != followed and not ended(views[other]):
                    views[other] = tracker.fetch(other)
            yield list(views.values())


def _watch_live(tracker: Tracker, refs: Sequence[str], output: Output) -> list[RunView]:
    shots = [RunSnapshot(tracker.fetch(ref)) for ref in refs]
    lost: str | None = None

    def render(now: float) -> list[str]:
        height = shutil.get_terminal_size().lines // len(shots)
        blocks = [frame(shot, output.ink, now=now, height=height) for shot in shots]
        hint = line_text(lost) if lost else "Ctrl+C stops watching; the run goes on."
        return [line for block in blocks for line in [*block, ""]] + [output.ink.paint(hint, "dim")]

    def tell(why: str | None) -> None:
        nonlocal lost
        lost = why
        live.refresh()

    with LiveView(render) as live:
        tracker.on_line(tell)
        for runs in _changes(tracker, refs):
            shots[:] = [_detailed(tracker, run) for run in runs]
            live.refresh()
    return [shot.run for shot in shots]


def _detailed(tracker: Tracker, run: RunView) -> RunSnapshot:
    if ended(run):
        return RunSnapshot(run)
    active, _ = tracker.trials(run.id, TrialFilter(states=_ACTIVE, sort="started_at"))
    if not run.counts.get("ERROR"):
        return RunSnapshot(run, active)
    newest = TrialFilter(states=("ERROR",), sort="started_at", descending=True, limit=3)
    return RunSnapshot(run, active, tracker.trials(run.id, newest)[0])


def _watch_lines(tracker: Tracker, refs: Sequence[str], output: Output) -> list[RunView]:
    printed: dict[str, str] = {}
    printed_at: dict[str, float] = {}
    runs: list[RunView] = []
    for runs in _changes(tracker, refs):
        for run in runs:
            line, now = change_line(run, time.time()), time.monotonic()
            fresh = line[8:] != printed.get(run.id)
            early = now - printed_at.get(run.id, -1e9) < _SECONDS_BETWEEN_LINES
            if fresh and (not early or ended(run)):
                printed[run.id], printed_at[run.id] = line[8:], now
                output.line(line)
    return runs


def _watch_json(tracker: Tracker, refs: Sequence[str], output: Output) -> list[RunView]:
    seen: dict[str, int] = {}
    runs: list[RunView] = []
    for runs in _changes(tracker, refs):
        for run in runs:
            if seen.get(run.id) != run.version:
                event = "update" if run.id in seen else "snapshot"
                seen[run.id] = run.version
                output.emit("run", event=event, run=_plain(run))
    return runs


def _plain(run: RunView) -> dict[str, object]:
    return to_json(run)


# `run wait`: a run's end as an exit code.

TIMED_OUT = 124


@verb(
    "wait",
    examples="valk run wait 3f2a --timeout 3600 --min-score 0.8 && ./deploy\n"
    "valk run wait 3f2a --min-score 0.8 --sure",
)
@run_argument
@click.option("--timeout", type=Number(min=0), metavar="SECONDS", help="Give up after this long: exit 124.")
@click.option(
    "--min-score",
    type=Number(),
    metavar="SCORE",
    help="Exit 1 when final_score is below this, on the benchmark's own scale (0.8 is 80 %).",
)
@click.option(
    "--sure",
    is_flag=True,
    help="With --min-score: exit 0 only when the whole 95 % interval of final_score reaches it.",
)
@click.option("--connect", "-f", is_flag=True, help="Watch it live meanwhile; Ctrl+C detaches.")
def wait(
    output: Output, *, ref: str, timeout: float | None, min_score: float | None, sure: bool, connect: bool
) -> int:
    """Block until a run ended; the exit code says how.

    \b
    0    FINISHED, every planned trial graded, --min-score reached (--sure: by the whole interval)
    1    ERROR or STOPPED, no trial graded, errors still open, a score below --min-score, or one that
         --sure can't tell
    2    no such run, or a wrong flag
    124  --timeout passed before the end
    130  interrupted; the run goes on
    """
    if sure and min_score is None:
        raise click.UsageError("--sure is about --min-score; give both.")
    if connect and timeout is not None:
        raise click.UsageError("--timeout and --connect exclude each other.")
    with tracker() as opened:
        ref = pinned(opened, ref)
        if connect and watch_until_end(opened, ref, output) == DETACHED:
            return DETACHED
        try:
            run, reasons, code = opened.wait(ref, timeout=timeout), [], 0
            run = opened.fetch(run.id) if sure else run  # what events tell of a run may lack its intervals
        except TimeoutError:
            run, reasons, code = opened.fetch(ref), [f"the run did not end within {timeout:g} s"], TIMED_OUT
    said: dict[str, Any] = {}
    if code == 0:
        reasons = shortcomings(run, None if sure else min_score)
        if sure and min_score is not None:
            outcome, reason = surely_reached(run.score, min_score)
            reasons += [reason] if reason else []
            said = {"sure": outcome}
        code = 1 if reasons else 0
    output.emit("run_wait", passed=code == 0, reasons=reasons, **said, run=to_json(run))
    output.line(
        f"{run.id}  {output.ink.state(run.state)}  {score_sentence(run.score, ended=code != TIMED_OUT)}"
    )
    if (exits := run_exits_text(run)) and not output.json:
        output.note(f"{exits}.")
    if reasons and not output.json:
        output.note(f"Not passed: {'; '.join(reasons)}.")
    return code


@verb("watch", examples="valk run watch 3f2a")
@run_argument
def watch_command(output: Output, *, ref: str) -> int:
    """Same as `run wait --connect`."""
    found = click.get_current_context().invoke(
        wait, ref=ref, connect=True, as_json=output.json, no_color=not output.ink.enabled
    )
    return int(found or 0)


def shortcomings(run: RunView, min_score: float | None = None) -> list[str]:
    """Why an ended run is not a pass; empty when it is."""
    reasons = []
    if run.state != "FINISHED":
        reasons.append(f"the run ended {run.state}" + (f": {safe(run.note)}" if run.note else ""))
    if not run.score.graded:
        reasons.append("no trial was graded")
    errors = sum(run.score.errors.values())
    if errors:
        reasons.append(f"{plural(errors, 'error')} open")
    elif run.score.graded < run.score.planned:
        reasons.append(f"{run.score.graded} of {run.score.planned} planned trials are graded")
    final = run.score.final_score
    if min_score is not None and (final is None or final < min_score):
        wanted = number(min_score, fraction=run.score.fraction)
        reasons.append(f"final_score {number(final, fraction=run.score.fraction)} is below {wanted}")
    return reasons


def surely_reached(score: ScoreView, wanted: float) -> tuple[str, str | None]:
    """Hold the interval of final_score against a number: `reached`, `below` or `can't tell`, and why not."""
    least = number(wanted, fraction=score.fraction)
    if score.final_score is None or score.final_interval is None:
        return "can't tell", f"can't tell whether final_score reaches {least}: it has no interval"
    low, high = score.final_interval
    ends = ends_text(score.final_interval, fraction=score.fraction)
    if low >= wanted:
        return "reached", None
    if high < wanted and not score.ungraded:
        return "below", f"final_score is surely below {least}: its 95 % interval is {ends}"
    final = number(score.final_score, fraction=score.fraction)
    return (
        "can't tell",
        f"can't tell whether final_score {final} reaches {least}: its 95 % interval is {ends}",
    )
