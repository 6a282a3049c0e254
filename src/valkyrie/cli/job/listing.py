"""`benchmark-job list`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from valkyrie.cli.job.options import output_option
from valkyrie.cli.options import Number, WholeNumber, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.nouns import JobState
from valkyrie.report.jobs.documents import job_document
from valkyrie.report.jobs.panels import job_table

if TYPE_CHECKING:
    from valkyrie.job_views import JobFilter, JobView
    from valkyrie.tracker.protocol import Tracker

_SPELLINGS = {"canceled": "cancelled"}
_DAY_S = 86400.0
_AT_ONCE = 200


@verb(
    "list",
    examples="valk job list\nvalk job list --days 7 --status failed,timeout\nvalk job list --all -o json",
)
@click.option(
    "--days",
    type=Number(min=0, min_open=True),
    metavar="N",
    help="Jobs of the last N days [default: 1].",
)
@click.option("--all", "everything", is_flag=True, help="All jobs, however old.")
@click.option("--status", metavar="A,B,…", help=f"Only these: {', '.join(JobState)}; comma-separated.")
@click.option("--job-name", "-n", "name", metavar="NAME", help="Only jobs of this name.")
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="At most this many.")
@output_option
def list_jobs(
    output: Output,
    *,
    days: float | None,
    everything: bool,
    status: str | None,
    name: str | None,
    limit: int | None,
) -> int:
    """List jobs, newest first.

    Without --days or --all those of the last day. Progress counts trials that came to an
    end, of all agents; stopped ones did not.
    """
    from valkyrie.job_views import JobFilter

    if everything and days is not None:
        raise click.UsageError("--days and --all exclude each other.")
    since = None if everything else time.time() - (1.0 if days is None else days) * _DAY_S
    query = JobFilter(since=since, states=_states(status), name=name)
    with tracker() as opened:
        jobs, more = _collect(opened, query, limit)
    output.emit("job_list", jobs=[job_document(job) for job in jobs], truncated=more)
    if output.json:
        return 0
    if not jobs:
        output.line(_nothing(query, days))
        return 0
    output.table(job_table(jobs, output.ink, whole_ids=not output.terminal))
    if more:
        output.note(f"The newest {len(jobs)} jobs; a higher --limit shows more.")
    return 0


def _states(said: str | None) -> tuple[str, ...]:
    """States between commas, each known."""
    if said is None:
        return ()
    words = [word.strip().lower() for word in said.split(",") if word.strip()]
    if not words:
        raise click.UsageError("--status names no state; leave it out for all.")
    states = tuple(dict.fromkeys(_SPELLINGS.get(word, word) for word in words))
    known = [state.value for state in JobState]
    if unknown := next((state for state in states if state not in known), None):
        from valkyrie.suggest import did_you_mean

        hint = did_you_mean(unknown, known) or f" There are: {', '.join(known)}."
        raise click.UsageError(f"--status: no job state is called {unknown!r}.{hint}")
    return states


def _collect(opened: Tracker, query: JobFilter, limit: int | None) -> tuple[Sequence[JobView], bool]:
    """Pages of the tracker, put together; whether there is more than `limit`."""
    from dataclasses import replace

    jobs: list[JobView] = []
    cursor: str | None = None
    while limit is None or len(jobs) < limit:
        room = _AT_ONCE if limit is None else min(_AT_ONCE, limit - len(jobs))
        page = opened.list_jobs(replace(query, limit=room, cursor=cursor))
        jobs += page.jobs
        cursor = page.cursor
        if cursor is None:
            break
    return jobs, cursor is not None


def _nothing(query: JobFilter, days: float | None) -> str:
    if query.states or query.name:
        return "No job matches." + ("" if query.since is None else " --all also looks at older ones.")
    if query.since is None:
        return "No jobs yet. Start one: valk job start --agent oracle --agent nop --benchmark quickstart"
    span = "day" if days in (None, 1) else f"{days:g} days"
    return f"No jobs in the last {span}. --all shows older ones."
