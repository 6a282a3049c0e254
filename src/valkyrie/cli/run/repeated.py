"""`run start --count N`: the same run several times, each on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from valkyrie.cli.output import Output
from valkyrie.errors import InfrastructureError
from valkyrie.report.formats import plural, short_id
from valkyrie.report.tables import started_rows

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import RunRequest, StartedRun

MOST_RUNS = 10


def start_repeatedly(opened: Tracker, request: RunRequest, count: int, output: Output) -> int:
    """Start one after another; the first that fails ends it, and what was started is told and goes on."""
    started: list[StartedRun] = []
    try:
        while len(started) < count:
            started.append(opened.start(request))
    except BaseException as error:
        if started:
            # A broken connection does not tell whether the last one was taken.
            sure = isinstance(error, Exception) and not isinstance(error, InfrastructureError)
            _show(started, count, "partial" if sure else "uncertain", output)
        raise
    _show(started, count, "in_progress", output)
    return 0


def _show(started: Sequence[StartedRun], requested: int, outcome: str, output: Output) -> None:
    from valkyrie.views import to_json

    notices = list(dict.fromkeys(notice for one in started for notice in one.notices))
    runs = [one.run for one in started]
    output.notices(notices)
    output.emit(
        "runs",
        event="launch",
        outcome=outcome,
        requested=requested,
        attempted=len(runs) if outcome == "in_progress" else len(runs) + 1,
        confirmed=len(runs),
        runs=[to_json(run) for run in runs],
        notices=notices,
    )
    ids = [(f"Run {number}", output.ink.paint(run.id, "bold")) for number, run in enumerate(runs, 1)]
    shared = [row for row in started_rows(runs[0], output.ink) if row[0] not in ("Run", "Folder", "Note")]
    title = (
        f"{plural(requested, 'run')} started"
        if len(runs) == requested
        else f"{len(runs)} of {requested} started"
    )
    output.panel(title, [*ids, *shared])
    track = [("Track", f"valk run fetch {short_id(run.id)} --connect") for run in runs]
    output.panel("Next", [*track, ("All", f"valk run list --limit {len(runs)}")])
