"""Jobs as panels and tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from valkyrie.nouns import DEFAULT_ORG
from valkyrie.report.formats import (
    NONE,
    agent_name,
    dollars,
    duration,
    moment,
    moment_brief,
    moment_short,
    plural,
    safe,
    short_id,
)
from valkyrie.report.jobs.decided import rule_text
from valkyrie.report.jobs.sides import seconds, sides, trials_done
from valkyrie.report.layout import PLAIN, Column, Ink, Table
from valkyrie.report.tables import shows_rows

if TYPE_CHECKING:
    from valkyrie.job_views import JobView
    from valkyrie.views import PlanView

Rows = list[tuple[str, str]]
_STYLES = {
    "initializing": "cyan",
    "queued": "yellow",
    "running": "blue",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
    "timeout": "red",
}
_MOST_NAMED = 5


def job_state(state: str, ink: Ink = PLAIN) -> str:
    """A job's state in its own colour."""
    return ink.paint(safe(state), _STYLES.get(state))


def about(job: JobView) -> str:
    """What the job is on: a benchmark, or scenarios by name."""
    scenarios = job.source.get("scenario_ids")
    if not isinstance(scenarios, Sequence) or isinstance(scenarios, str):
        several = job.source.get("evals") or job.source.get("benchmark_names")
        named = (
            ", ".join(map(str, several)) if isinstance(several, list) else job.source.get("benchmark_name")
        )
        return safe(named or NONE)
    named = ", ".join(safe(one) for one in scenarios[:_MOST_NAMED])
    more = len(scenarios) - _MOST_NAMED
    return named + (f" and {more} more" if more > 0 else "")


def trials_text(job: JobView) -> str:
    """`96 (2 agents × 12 tasks × 4 trials)`."""
    _, total = trials_done(job.runs)
    compared = sides(job)
    tasks = sum(run.total for run in compared[0].runs) // max(1, job.trials) if compared else 0
    each = (plural(len(compared), "agent"), plural(tasks, "task"), plural(job.trials, "trial"))
    return f"{total} ({' × '.join(each)})"


def timeout_text(job: JobView) -> str:
    """How long an agent may take."""
    from valkyrie.job_views import DEFAULT_TIMEOUT_S

    asked = [(run.arguments.get("settings") or {}).get("agent_timeout") for run in job.runs]
    whose = "" if any(asked) else "the task's own, else "
    stretched = f", times {job.timeout_multiplier:g}" if job.timeout_multiplier != 1.0 else ""
    return f"{whose}{job.agent_timeout or DEFAULT_TIMEOUT_S:g} s{stretched}"


def started_rows(job: JobView, ink: Ink = PLAIN) -> Rows:
    """What was just started, for a panel."""
    rows: Rows = [
        ("Job", ink.paint(job.id, "bold")),
        ("Name", safe(job.name)),
        ("Agents", ", ".join(side.name for side in sides(job))),
        ("Scenarios" if job.source.get("type") == "scenarios" else "Benchmark", about(job)),
        ("Trials", trials_text(job)),
        *shows_rows(next((run.arguments.get("shows") for run in job.runs), None)),
        ("Agent timeout", timeout_text(job)),
        ("Concurrency", f"{plural(job.concurrency, 'trial')} at once"),
        ("State", job_state(job.state, ink)),
    ]
    if job.ends_at is not None:
        rows.append(("Ends by", moment(job.ends_at)))
    if job.stop_rule is not None:
        rows.append(("Stops", rule_text(job.stop_rule)))
    if job.started_by:
        rows.append(("Started by", safe(job.started_by)))
    if job.org != DEFAULT_ORG:
        rows.append(("Organisation", safe(job.org)))
    rows += [("Metadata", f"{safe(key)}={safe(value)}") for key, value in job.metadata.items()]
    notes = dict.fromkeys(safe(run.note) for run in job.runs if run.note)
    return [*rows, *(("Note", ink.paint(note, "yellow")) for note in notes)]


_EVALS = {"eval": "eval", "experiment": "experiment run"}
"""Jobs that go on in the foreground, by what they are about."""


def next_commands(job: JobView, *, everything: bool = False, summary: bool = True) -> Rows:
    """Ready to paste: what one may want to do with this job now, or with `everything` later on."""
    going = not job.ended
    errors = any(run.counts.get("ERROR") for run in job.runs)
    stopped = any(run.counts.get("STOPPED") for run in job.runs)
    orphan = going and any(run.executor == "none" for run in job.runs)
    wanted = {
        "Track": going,
        "Fetch": summary,
        "Results": everything or not going,
        "Logs": everything or not going,
        "Stop": going,
        "Resume": stopped or orphan,
        "Retry": errors and not going,
    }
    job_id = short_id(job.id)
    flags = {"Track": f"fetch {job_id} --connect"}
    words = {name: flags.get(name, f"{name.lower()} {job_id}") for name, shown in wanted.items() if shown}
    said = {name: f"valk job {word}" for name, word in words.items()}
    failed = [run for run in job.runs if run.score.passed < run.score.planned]
    if failed and not going:
        said["Failed"] = f"valk run tasks {short_id(failed[-1].id)} --failed"
    if command := _EVALS.get(str(job.source.get("type"))):
        said |= {name: f"valk {command} --resume {job_id}" for name in ("Resume", "Retry") if name in said}
    return list(said.items())


def job_table(jobs: Sequence[JobView], ink: Ink = PLAIN, *, whole_ids: bool = True) -> Table:
    """Many jobs, one line each."""
    now = time.time()
    table = Table(
        [
            Column("ID"),
            Column("Name", shrink=True),
            Column("Status"),
            Column("Agents", shrink=True),
            Column("Benchmark", shrink=True),
            Column("Progress", "right"),
            Column("Errors", "right"),
            Column("Created"),
            Column("Took", "right", optional=True),
            Column("Cost", "right", optional=True),
            Column("Started By", shrink=True, optional=True),
        ]
    )
    for job in jobs:
        done, total = trials_done(job.runs)
        errors = sum(run.counts.get("ERROR", 0) for run in job.runs)
        table.rows.append(
            [
                job.id if whole_ids else short_id(job.id),
                safe(job.name),
                job_state(job.state, ink),
                ", ".join(side.name for side in sides(job)),
                about(job),
                f"{done}/{total}",
                ink.paint(str(errors), "red" if errors else None),
                moment_short(job.created_at) if whole_ids else moment_brief(job.created_at, now),
                duration(seconds(job.runs, now)),
                job_cost(job),
                safe(job.started_by) if job.started_by else NONE,
            ]
        )
    return table


def job_cost(job: JobView) -> str:
    """What all its agents said they cost."""
    known = [run.cost for run in job.runs if run.cost and run.cost.reports]
    return dollars(sum(cost.total for cost in known)) if known else NONE


def plan_table(plans: Sequence[PlanView], ink: Ink = PLAIN) -> Table:
    """What would run, a line for each run."""
    table = Table(
        [
            Column("Agent", shrink=True),
            Column("Benchmark", shrink=True),
            Column("Tasks", "right"),
            Column("Trials", "right"),
            Column("Sandbox"),
            Column("Secrets", shrink=True, optional=True),
        ]
    )
    for plan in plans:
        dataset = "" if plan.dataset == "default" else f" ({safe(plan.dataset)})"
        table.rows.append(
            [
                ink.paint(agent_name(plan.agent, plan.model), "bold"),
                safe(plan.benchmark) + dataset,
                str(len({task for task, _, _ in plan.trials})),
                str(len(plan.trials)),
                safe(plan.provider),
                ", ".join([*map(safe, plan.secrets), *(f"{safe(name)} (tasks)" for name in plan.variables)])
                or NONE,
            ]
        )
    return table
