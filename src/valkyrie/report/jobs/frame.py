"""A job as it goes: one screen of text, and one line for a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from valkyrie.report.formats import (
    bar,
    clock,
    duration,
    has_range,
    interval,
    number,
    plural,
    range_text,
    safe,
    short_id,
    state_word,
    trial_name,
)
from valkyrie.report.jobs.decided import standing_lines
from valkyrie.report.jobs.documents import leading_score
from valkyrie.report.jobs.panels import about, job_cost, job_state
from valkyrie.report.jobs.sides import ACTIVE, run_names, seconds, trials_done
from valkyrie.report.layout import PLAIN, Ink, cells, fit, pad
from valkyrie.report.tables import ended, trial_error, trial_seconds

if TYPE_CHECKING:
    from valkyrie.job_views import JobView
    from valkyrie.views import RunView, TrialView

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
    shot: JobSnapshot, ink: Ink = PLAIN, *, now: float, rows: int = 24, hint: str = HINT
) -> list[str]:
    """Title, progress of each agent, scenarios under way, latest failures, footer: as much as has room."""
    lines = [*_head(shot, ink, now), "", *_progress(shot, ink)]
    room = max(0, rows - len(lines) - 2)
    failed = _failed(shot, ink, now, min(_MOST_FAILED, room // 3))
    lines += _active(shot, ink, now, room - len(failed))
    lines += failed
    body = lines[: max(0, rows - 2)]
    return [*body, "", ink.paint(hint, "dim")][-rows:]


def _head(shot: JobSnapshot, ink: Ink, now: float) -> list[str]:
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


def _progress(shot: JobSnapshot, ink: Ink) -> list[str]:
    """A line for each run."""
    width = _name_width(shot)
    lines = [ink.paint("Progress", "bold")] + [
        f"{_mark(run, ink)} {pad(fit(shot.names[run.id], width), width)}  {run_progress(run)}"
        for run in shot.job.runs
    ]
    return [*lines, *(f"  {line}" for line in standing_lines(shot.job))]


def _name_width(shot: JobSnapshot) -> int:
    return min(_NAME_CELLS, max((cells(name) for name in shot.names.values()), default=0))


def _mark(run: RunView, ink: Ink) -> str:
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


def _active(shot: JobSnapshot, ink: Ink, now: float, room: int) -> list[str]:
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


def _failed(shot: JobSnapshot, ink: Ink, now: float, room: int) -> list[str]:
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
    """How a job ended, for a log."""
    done, total = trials_done(job.runs)
    return f"{clock(now)}  job {safe(job.name)}  {job.state}  {done}/{total}"
