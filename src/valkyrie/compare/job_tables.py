"""Jobs as panels and tables, and as one screen of text while they go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmark_runner.terminal import PLAIN, Column, Table, TerminalStyle, bar, cells, fit, pad, safe
from valkyrie.compare.job_documents import leading_score
from valkyrie.compare.job_sides import (
    ACTIVE,
    rule_text,
    run_names,
    seconds,
    sides,
    standing_lines,
    trials_done,
)
from valkyrie.domain import DEFAULT_ORG
from valkyrie.report.formats import (
    NONE,
    agent_name,
    clock,
    dollars,
    duration,
    has_range,
    interval,
    moment,
    moment_brief,
    moment_short,
    number,
    plural,
    range_text,
    short_id,
    state_word,
    trial_name,
)
from valkyrie.report.tables import ended, shows_rows, trial_error, trial_seconds
from valkyrie.views.jobs import DEFAULT_TIMEOUT_S

if TYPE_CHECKING:
    from valkyrie.views import PlanView, RunView, TrialView
    from valkyrie.views.jobs import JobView


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


def job_state(state: str, ink: TerminalStyle = PLAIN) -> str:
    """A job's state in its own colour."""
    return ink.paint(safe(state), _STYLES.get(state))


def about(job: JobView) -> str:
    """Return what the job is on: a benchmark, or scenarios by name."""
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
    """Return how long an agent may take."""
    asked = [(run.arguments.get("settings") or {}).get("agent_timeout") for run in job.runs]
    whose = "" if any(asked) else "the task's own, else "
    stretched = f", times {job.timeout_multiplier:g}" if job.timeout_multiplier != 1.0 else ""
    return f"{whose}{job.agent_timeout or DEFAULT_TIMEOUT_S:g} s{stretched}"


def started_rows(job: JobView, ink: TerminalStyle = PLAIN) -> Rows:
    """Return what was just started, for a panel."""
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


def job_table(jobs: Sequence[JobView], ink: TerminalStyle = PLAIN, *, whole_ids: bool = True) -> Table:
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
    """Return what all its agents said they cost."""
    known = [run.cost for run in job.runs if run.cost and run.cost.reports]
    return dollars(sum(cost.total for cost in known)) if known else NONE


def plan_table(plans: Sequence[PlanView], ink: TerminalStyle = PLAIN) -> Table:
    """Return what would run, a line for each run."""
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


# A job as it goes: one screen of text, and one line for a log.

HINT = "Ctrl+C stops watching; the job goes on."
_NAME_CELLS = 30
_MOST_FAILED = 5
_WORDS = {
    "IN_PROGRESS": "running",
    "BUILDING": "building",
    "EVALUATING": "scoring",
    "PENDING": "pending",
    "STOPPED": "stopped",
    "SKIPPED": "skipped",
}


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """What a screen is drawn from: the job, and of each run what is under way and what failed last."""

    job: JobView
    active: Sequence[tuple[str, TrialView]] = ()
    """(run id, trial), longest under way first."""
    active_total: int = 0
    failed: Sequence[tuple[str, TrialView]] = ()
    """(run id, trial), latest first."""
    names: dict[str, str] = field(default_factory=dict)


def snapshot(
    job: JobView,
    active: Sequence[tuple[str, TrialView]] = (),
    failed: Sequence[tuple[str, TrialView]] = (),
) -> JobSnapshot:
    """Put in order what was found."""
    under_way = sum(run.counts.get(state, 0) for run in job.runs for state in ACTIVE)
    return JobSnapshot(
        job,
        sorted(active, key=lambda item: item[1].started_at or 0.0),
        max(under_way, len(active)),
        sorted(failed, key=lambda item: -(item[1].finished_at or item[1].started_at or 0.0)),
        run_names(job),
    )


def job_frame(
    shot: JobSnapshot, ink: TerminalStyle = PLAIN, *, now: float, rows: int = 24, hint: str = HINT
) -> list[str]:
    """Title, progress of each agent, scenarios under way, latest failures, footer: as much as has room."""
    lines = [*_head(shot, ink, now), "", *_progress(shot, ink)]
    room = max(0, rows - len(lines) - 2)
    failed = _failed(shot, ink, now, min(_MOST_FAILED, room // 3))
    lines += _active(shot, ink, now, room - len(failed))
    lines += failed
    body = lines[: max(0, rows - 2)]
    return [*body, "", ink.paint(hint, "dim")][-rows:]


def _head(shot: JobSnapshot, ink: TerminalStyle, now: float) -> list[str]:
    job = shot.job
    done, total = trials_done(job.runs)
    share = int(100 * done / total) if total else 0
    title = f"{ink.paint(safe(job.name), 'bold')}  on {about(job)}"
    cost = job_cost(job)
    said = [job_state(job.state, ink), f"{duration(seconds(job.runs, now) or now - job.created_at)} elapsed"]
    if cost != "—":
        said.append(f"cost {cost}")
    lines = [
        f"{title}  {ink.paint(short_id(job.id), 'dim')}",
        "  ·  ".join(said),
        f"[{bar(done, total)}] {done}/{plural(total, 'trial')} ({share}%)  ·  {job.concurrency} at once",
    ]
    notes = dict.fromkeys(safe(run.note) for run in job.runs if run.note)
    return [*lines, *(ink.paint(note, "yellow") for note in notes)]


def _progress(shot: JobSnapshot, ink: TerminalStyle) -> list[str]:
    """A line for each run."""
    width = _name_width(shot)
    lines = [ink.paint("Progress", "bold")] + [
        f"{_mark(run, ink)} {pad(fit(shot.names[run.id], width), width)}  {run_progress(run)}"
        for run in shot.job.runs
    ]
    return [*lines, *(f"  {line}" for line in standing_lines(shot.job))]


def _name_width(shot: JobSnapshot) -> int:
    return min(_NAME_CELLS, max((cells(name) for name in shot.names.values()), default=0))


def _mark(run: RunView, ink: TerminalStyle) -> str:
    if not ended(run):
        return " "
    return ink.paint("✓", "green") if run.state == "FINISHED" else ink.paint("✗", "red")


def run_progress(run: RunView) -> str:
    """`8/12  score 87.5 % (55.2–95.3)  2 running, 1 scoring, 1 error`: on a narrow screen the end is cut."""
    parts = [f"{run.counts[state]} {word}" for state, word in _WORDS.items() if run.counts.get(state)]
    if errors := run.counts.get("ERROR", 0):
        parts.append(plural(errors, "error"))
    return "  ".join([f"{run.done}/{run.total}", _score_so_far(run), *([", ".join(parts)] if parts else [])])


def _score_so_far(run: RunView) -> str:
    score = run.score
    found = leading_score(score)
    if has_range(score):
        return f"score {range_text(score.score_low, score.score_high, score.ungraded)}"
    word = "score" if ended(run) else "score so far"
    said = f"{word} {number(found, fraction=score.fraction)}" if found is not None else "no score yet"
    if not ended(run):
        return said
    if found is not None and score.interval is not None and found == score.score_graded:
        said += f" ({interval(score)})"
    elif found is not None and score.score_graded is not None and found != score.score_graded:
        said += f" of all, {number(score.score_graded, fraction=score.fraction)} of graded"
    return said


def _active(shot: JobSnapshot, ink: TerminalStyle, now: float, room: int) -> list[str]:
    if not shot.active or room < 3:
        return []
    shown = shot.active[: room - 2 - (shot.active_total > room - 2)]
    names = [_scenario(shot, run_id, trial) for run_id, trial in shown]
    width = min(2 * _NAME_CELLS, max((cells(name) for name in names), default=0))
    lines = ["", ink.paint("In progress", "bold")]
    for name, (_, trial) in zip(names, shown, strict=True):
        word = ink.state(trial.state, pad(state_word(trial.state), 11))
        again = f"  attempt {trial.attempts}" if trial.attempts > 1 else ""
        took = duration(trial_seconds(trial, now))
        lines.append(f"  {pad(fit(name, width), width)}  {word}  {took}{again}")
    if shot.active_total > len(shown):
        lines.append(ink.paint(f"  … and {shot.active_total - len(shown)} more", "dim"))
    return lines


def _scenario(shot: JobSnapshot, run_id: str, trial: TrialView) -> str:
    """The scenario, and whose it is where agents are compared."""
    name = trial_name(trial)
    width = _name_width(shot)
    return name if len(shot.names) < 2 else f"{pad(fit(shot.names[run_id], width), width)}  {name}"


def _failed(shot: JobSnapshot, ink: TerminalStyle, now: float, room: int) -> list[str]:
    shown = shot.failed[: max(0, room)]
    if not shown:
        return []
    lines = [
        ink.paint(f"  {_scenario(shot, run_id, trial)}  {trial_error(trial, now)}", "red")
        for run_id, trial in shown
    ]
    return ["", ink.paint("Latest failures", "bold"), *lines]


def change_line(name: str, run: RunView, now: float) -> str:
    """One line for a log: what a pipe gets instead of the screen."""
    return f"{clock(now)}  {name}  {run.state}  {run_progress(run)}"


def end_line(job: JobView, now: float) -> str:
    """Return how a job ended, for a log."""
    done, total = trials_done(job.runs)
    return f"{clock(now)}  job {safe(job.name)}  {job.state}  {done}/{total}"
