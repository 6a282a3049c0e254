"""Watching runs go: live on a terminal, a line per change in a pipe, JSON Lines under --json."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from valkyrie.cli.options import pinned
from valkyrie.cli.output import Output
from valkyrie.report.formats import safe, short_id
from valkyrie.report.live import LiveView, Snapshot, change_line, frame
from valkyrie.report.tables import ended, next_commands, run_rows

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import RunView

DETACHED = 130
_ACTIVE = ("BUILDING", "IN_PROGRESS", "EVALUATING")
_SECONDS_BETWEEN_LINES = 1.0


def connect(tracker: Tracker, ref: str, output: Output) -> int:
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
    import shutil

    shots = [Snapshot(tracker.fetch(ref)) for ref in refs]
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


def _detailed(tracker: Tracker, run: RunView) -> Snapshot:
    from valkyrie.views import TrialFilter

    if ended(run):
        return Snapshot(run)
    active, _ = tracker.trials(run.id, TrialFilter(states=_ACTIVE, sort="started_at"))
    if not run.counts.get("ERROR"):
        return Snapshot(run, active)
    newest = TrialFilter(states=("ERROR",), sort="started_at", descending=True, limit=3)
    return Snapshot(run, active, tracker.trials(run.id, newest)[0])


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
    from valkyrie.views import to_json

    return to_json(run)
