"""`run fetch`, `run list`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from valkyrie.cli.options import Capitals, WholeNumber, run_argument, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.report.run_details import ACTIVE, ENDED, LAST_ENDED, alarms
from valkyrie.report.tables import ended, list_notes, next_commands, run_rows, run_table
from valkyrie.views import RunFilter, RunPage, TrialFilter, to_json

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import RunView, TrialView


# `run fetch`, `run list`.

RUN_STATES = ["IN_PROGRESS", "STOPPING", "STOPPED", "FINISHED", "ERROR"]
_WATCHED = 100


@verb(
    "fetch",
    examples="valk run fetch latest\n"
    "valk run fetch nightly/claude-code --connect\n"
    "valk run fetch 3f2a --json | jq .run.score",
)
@run_argument
@click.option("--connect", "-f", is_flag=True, help="Watch it live; Ctrl+C detaches with exit code 130.")
def fetch(output: Output, *, ref: str, connect: bool) -> int:
    """Show a run as it stands, or watch it live.

    RUN is a run's id or a unique prefix of it, `latest` (the one you started last), the name of a job of
    one run, or JOB/AGENT; so it is in every command. The exit code says whether the run could be shown, not
    how it ended; `run wait` does that. Alarms say what looks wrong: a trial under way for more than 30 min,
    room that is not used while trials wait, or more errors of late than before.
    """
    with tracker() as opened:
        if connect:
            from valkyrie.cli.run_watch import watch_until_end as watch_run

            return watch_run(opened, ref, output)
        run = opened.fetch(ref)
        now = time.time()
        found = alarms(run, _trials_to_watch(opened, run), now)
    output.emit("run", event="snapshot", run=to_json(run), alarms=found)
    output.panel("Run Details", run_rows(run, output.ink, now, found))
    output.panel("Next", next_commands(run))
    return 0


def _trials_to_watch(opened: Tracker, run: RunView) -> list[TrialView]:
    """The trials that have been under way longest, the first that are pending where there is room, and,
    where some failed, the last that ended."""
    if ended(run):
        return []
    longest = TrialFilter(states=ACTIVE, sort="started_at", limit=_WATCHED)
    active = sum(run.counts.get(state, 0) for state in ACTIVE)
    trials = [*opened.trials(run.id, longest)[0]] if active else []
    if run.counts.get("PENDING") and active < run.concurrency:
        trials += opened.trials(run.id, TrialFilter(states=("PENDING",), limit=_WATCHED))[0]
    if run.counts.get("ERROR"):
        last = TrialFilter(states=ENDED, sort="started_at", descending=True, limit=LAST_ENDED)
        trials += opened.trials(run.id, last)[0]
    return trials


@verb(
    "list",
    examples="valk run list --agent-name my-agent --status FINISHED\n"
    "valk run list --started-by ann,bob --label nightly\n"
    "valk run list --job nightly\n"
    "valk run list --all --json",
)
@click.option("--agent-name", metavar="NAME", help="Only runs of this agent.")
@click.option("--benchmark-name", metavar="NAME", help="Only runs on this benchmark.")
@click.option("--model", metavar="MODEL", help="Only runs with this model.")
@click.option("--dataset", metavar="NAME", help="Only runs on this dataset.")
@click.option("--label", "-l", metavar="LABEL", help="Only runs with this label.")
@click.option("--job", metavar="JOB", help="Only runs of this job, by name or id.")
@click.option("--started-by", metavar="A,B,…", help="Only runs these people started, comma-separated.")
@click.option("--status", type=Capitals(RUN_STATES), help="Only runs in this state.")
@click.option(
    "--order-by",
    type=Capitals(["ASC", "DESC"]),
    default="DESC",
    show_default=True,
    help="Oldest or newest first.",
)
@click.option(
    "--limit",
    type=WholeNumber(min=1),
    metavar="N",
    help="At most this many [default: all on a terminal, paged; else 50].",
)
@click.option("--all", "everything", is_flag=True, help="Every run that matches.")
def list_runs(
    output: Output,
    *,
    agent_name: str | None,
    benchmark_name: str | None,
    started_by: str | None,
    status: str | None,
    order_by: str,
    limit: int | None,
    everything: bool,
    **same: Any,
) -> int:
    """List runs, newest first.

    On a terminal the list is paged: h previous, l next, q quit. The score is `final_score`; while
    the run goes on or an infrastructure error is open it is `score_graded`, with a star.
    """
    query = RunFilter(
        agent=agent_name,
        benchmark=benchmark_name,
        started_by=_names(started_by),
        state=status and status.upper(),
        newest_first=order_by.upper() == "DESC",
        **same,
    )
    if limit and everything:
        raise click.UsageError("--limit and --all exclude each other.")
    with tracker() as opened:
        if output.interactive and output.redraws and not (limit or everything):
            return _browse(opened, query, output)
        page = collect_runs(opened, query, None if everything else limit or 50)
    if output.json:
        return _emit_page(page, output)
    if not page.runs:
        output.line(_nothing(query))
        return 0
    output.table(run_table(page.runs, output.ink, whole_ids=not output.terminal))
    output.lines(output.ink.paint(note, "dim") for note in list_notes(page.runs))
    if len(page.runs) < page.total:
        output.note(f"{len(page.runs)} of {page.total} runs; --all shows the rest.")
    return 0


def _names(said: str | None) -> tuple[str, ...]:
    """Names between commas; one must be there if any were asked for."""
    if said is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in said.split(",") if name.strip()))
    if not names:
        raise click.UsageError("--started-by names nobody; leave it out for everyone's runs.")
    return names


def _nothing(query: RunFilter) -> str:
    if query == RunFilter(newest_first=query.newest_first):
        return "No runs yet. Start one: valk run start --agent oracle --benchmark quickstart --connect"
    return "No run matches."


def collect_runs(opened: Tracker, query: RunFilter, limit: int | None) -> RunPage:
    """Pages of the tracker, put together up to `limit`."""
    page = opened.list(replace(query, limit=min(limit or 500, 500)))
    runs = list(page.runs)
    while page.cursor and (limit is None or len(runs) < limit):
        room = 500 if limit is None else min(500, limit - len(runs))
        page = opened.list(replace(query, limit=room, cursor=page.cursor))
        runs += page.runs
    return RunPage(runs, page.total, page.cursor)


def _emit_page(page: RunPage, output: Output) -> int:
    output.emit("run_list", runs=[to_json(run) for run in page.runs], total=page.total, cursor=page.cursor)
    return 0


def _browse(opened: Tracker, query: RunFilter, output: Output) -> int:
    """Page by page on a terminal, fetching each page when it is turned to."""
    from valkyrie.cli.run_watch import browse, page_rows

    rows = page_rows()
    cursors: list[str | None] = [None]

    def load(index: int) -> tuple[list[str], bool]:
        page = opened.list(replace(query, limit=rows, cursor=cursors[index]))
        if page.cursor and len(cursors) == index + 1:
            cursors.append(page.cursor)
        if not page.runs:
            return [_nothing(query)], False
        lines = run_table(page.runs, output.ink, whole_ids=False).lines(output.ink, output.width)
        lines += [output.ink.paint(note, "dim") for note in list_notes(page.runs)]
        return lines, page.cursor is not None

    browse(load, output.ink)
    return 0
