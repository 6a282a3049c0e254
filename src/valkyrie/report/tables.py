"""Views as panels and tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmark_runner.terminal import PLAIN, Column, Table, TerminalStyle, cells, fit, pad, safe
from valkyrie.domain import Json
from valkyrie.report.formats import (
    DAGGER,
    INGESTED_NOTE,
    NONE,
    OPEN,
    agent_name,
    clock,
    counts_line,
    duration,
    elapsed,
    has_range,
    interval,
    moment,
    moment_brief,
    moment_short,
    number,
    plural,
    progress,
    run_exits_text,
    run_mark,
    score_cell,
    score_rows,
    score_sentence,
    short_id,
    state_word,
    tampering_text,
    trial_name,
)
from valkyrie.report.run_details import (
    Rows,
    alarm_rows,
    cost_rows,
    cost_text,
    gaps_text,
    hook_rows,
    link_rows,
    owner_rows,
)

if TYPE_CHECKING:
    from valkyrie.views import RunView, TrialView

STAR_NOTE = (
    "* score_graded: over graded trials only, because the run goes on or an infrastructure error is open"
)
RANGE_NOTE = "a to b: the score if all ungraded trials had failed, and if all had passed"
OPEN_NOTE = f"{DAGGER} some tasks are graded in the sandbox the agent left: {OPEN}"
_ENDED = ("FINISHED", "STOPPED", "ERROR")
_REASONS = 5


_GRADED = {"sandbox": "sandbox the agent leaves", "text": "agent's text answer"}


def _or_none(value: object) -> str:
    return NONE if value in (None, "") else safe(value)


def ended(run: RunView) -> bool:
    """Nothing more happens unless a person asks."""
    return run.state in _ENDED


def run_rows(
    run: RunView, ink: TerminalStyle = PLAIN, now: float | None = None, alarms: Sequence[str] = ()
) -> Rows:
    """Everything one wants to know of a run, for a panel."""
    now = time.time() if now is None else now
    benchmark = safe(run.benchmark) + ("" if run.dataset == "default" else f" ({safe(run.dataset)})")
    rows: Rows = [
        ("Run", ink.paint(run.id, "bold")),
        ("Agent", agent_name(run.agent, run.model)),
        ("Benchmark", benchmark),
        ("State", ink.state(run.state) + (f"  {safe(run.error)}" if run.error else "")),
        *_origin_rows(run, ink),
        ("Progress", progress(run)),
        ("Trials", counts_line(run.counts)),
    ]
    rows += score_rows(run.score, ended=ended(run))
    if said := run_exits_text(run):
        rows.append(("Exits", ink.paint(said, "yellow")))
    rows += [*cost_rows(run), *_time_rows(run, now), *owner_rows(run)]
    rows += [("Concurrency", str(run.concurrency)), *_sandbox_rows(run), *_limit_rows(run)]
    if run.label:
        rows.append(("Label", safe(run.label)))
    rows += [*_folder_rows(run), *link_rows(run), *hook_rows(run.hooks, ink)]
    if run.note:
        rows.append(("Note", ink.paint(safe(run.note), "yellow")))
    return [*rows, *alarm_rows(alarms, ink)]


def _origin_rows(run: RunView, ink: TerminalStyle) -> Rows:
    """Return where a run comes from whose trials ran elsewhere."""
    if not run.ingested:
        return []
    file = (run.arguments.get("ingested") or {}).get("file")
    said = f"from {safe(file)}: " if file else ""
    return [("Ingested", ink.paint(f"{said}{INGESTED_NOTE.removeprefix('ingested: ')}", "yellow"))]


def started_rows(run: RunView, ink: TerminalStyle = PLAIN) -> Rows:
    """Return what was just started, for a panel."""
    rows: Rows = [
        ("Run", ink.paint(run.id, "bold")),
        ("Agent", agent_name(run.agent, run.model)),
        ("Benchmark", f"{safe(run.benchmark)} ({safe(run.dataset)})"),
        ("State", ink.state(run.state)),
        ("Started", moment(run.started_at or run.created_at)),
        ("Concurrency", str(run.concurrency)),
        ("Trials", str(run.total)),
        *shows_rows(run.arguments.get("shows")),
        *cost_rows(run),
        *owner_rows(run),
        *_sandbox_rows(run),
        *_folder_rows(run),
        *link_rows(run),
    ]
    if run.note:
        rows.append(("Note", ink.paint(safe(run.note), "yellow")))
    return rows


def shows_rows(found: Mapping[str, Any] | None) -> Rows:
    """Return what a run can show, for a panel."""
    if not found:
        return []
    return [("Can show", gaps_text(found))]


def _folder_rows(run: RunView) -> Rows:
    return [("Folder", safe(run.folder))] if run.folder else []


def _time_rows(run: RunView, now: float) -> Rows:
    if run.started_at is None:
        return [("Created", moment(run.created_at))]
    took = duration(elapsed(run, now))
    rows = [("Started", moment(run.started_at))]
    if run.finished_at is None:
        return [*rows, ("Running for", took)]
    return [*rows, ("Finished", f"{moment(run.finished_at)}  (took {took})")]


def _service_rows(run: RunView) -> Rows:
    """The benchmark service a run is on, if it is on one."""
    service = run.arguments.get("service")
    if not service:
        return []
    version = service["versions"].get("service_version")
    said = f", version {safe(version)}" if version else ""
    return [("Service", f"{safe(service['url'])}, grades the {_GRADED[service['grading']]}{said}")]


def _sandbox_rows(run: RunView) -> Rows:
    rows = [*_service_rows(run), ("Sandbox", safe(run.provider))]
    if isolation := run.enforcement.get("isolation"):
        rows.append(("Isolation", safe(isolation)))
    return rows


def _limit_rows(run: RunView) -> Rows:
    limits = [f"{safe(k)}: {safe(v)}" for k, v in run.enforcement.items() if k != "isolation"]
    return [("Limits", " · ".join(limits))] if limits else []


def next_commands(run: RunView, *, everything: bool = False) -> Rows:
    """Ready to paste: what one may want to do with this run now, or with `everything` later on."""
    errors = bool(run.counts.get("ERROR"))
    going = run.state in ("IN_PROGRESS", "STOPPING")
    wanted = {
        "Track": going,
        "Errors": errors,
        "Logs": bool(run.exit_codes),
        "Tasks": not going,
        "Results": everything or not going,
        "Stop": run.state == "IN_PROGRESS",
        "Resume": everything or run.state in ("STOPPED", "ERROR") or (going and run.executor == "none"),
        "Retry": everything or errors,
        "Outputs": everything or not going,
    }
    run_id = short_id(run.id)
    flags = {"Track": f"fetch {run_id} --connect"}
    said = {name: flags.get(name, f"{name.lower()} {run_id}") for name, shown in wanted.items() if shown}
    return [(name, f"valk run {words}") for name, words in said.items()]


def run_table(runs: Sequence[RunView], ink: TerminalStyle = PLAIN, *, whole_ids: bool = True) -> Table:
    """Many runs, one line each; what is confirmed has a column only where something is not."""
    now = time.time()
    unconfirmed = any(run.score.unconfirmed for run in runs)
    table = Table(
        [
            Column("ID"),
            Column("Benchmark", shrink=True),
            Column("Agent", shrink=True),
            Column("Model", shrink=True, optional=True),
            Column("Status"),
            Column("Score", "right"),
            *([Column("Confirmed", "right")] if unconfirmed else []),
            Column("Graded", "right"),
            Column("Errors", "right"),
            Column("Created"),
            Column("Started By", shrink=True, optional=True),
            Column("Progress", "right", optional=True),
            Column("Took", "right", optional=True),
            Column("Label", shrink=True, optional=True),
            Column("Dataset", shrink=True, optional=True),
        ]
    )
    for run in runs:
        errors = sum(run.score.errors.values())
        table.rows.append(
            [
                run.id if whole_ids else short_id(run.id),
                safe(run.benchmark),
                safe(run.agent),
                _or_none(run.model),
                ink.state(run.state) + (" (no executor)" if _nobody(run) else "") + run_mark(run),
                score_cell(run.score),
                *([_confirmed(run)] if unconfirmed else []),
                f"{run.score.graded}/{run.score.planned}",
                ink.paint(str(errors), "red" if errors else None),
                moment_short(run.created_at) if whole_ids else moment_brief(run.created_at, now),
                _or_none(run.started_by),
                f"{int(100 * run.done / run.total) if run.total else 0} %",
                duration(elapsed(run, now)),
                _or_none(run.label),
                safe(run.dataset) if whole_ids or run.dataset != "default" else NONE,
            ]
        )
    return table


def score_table(runs: Sequence[RunView], ink: TerminalStyle = PLAIN) -> Table:
    """Runs beside each other, by what they scored."""
    unconfirmed = any(run.score.unconfirmed for run in runs)
    table = Table(
        [
            Column("Agent", shrink=True),
            Column("Score", "right"),
            *([Column("Confirmed", "right")] if unconfirmed else []),
            Column("95 % interval", "right"),
            Column("Passed", "right"),
            Column("Errors", "right"),
            Column("Trials", "right"),
            Column("Time", "right"),
        ]
    )
    now = time.time()
    for run in runs:
        errors = sum(run.score.errors.values())
        name = agent_name(run.agent, run.model) + run_mark(run)
        table.rows.append(
            [
                ink.paint(name, "bold"),
                score_cell(run.score),
                *([_confirmed(run)] if unconfirmed else []),
                interval(run.score),
                f"{run.score.passed}/{run.score.planned}",
                ink.paint(str(errors), "red" if errors else None),
                str(run.total),
                duration(elapsed(run, now)),
            ]
        )
    return table


def _confirmed(run: RunView) -> str:
    return number(run.score.score_confirmed, fraction=run.score.fraction)


def list_notes(runs: Sequence[RunView]) -> list[str]:
    """Return what must be said below a list of runs: signs at scores, and how runs nobody works on go on."""
    notes = [STAR_NOTE] if any("*" in score_cell(run.score) for run in runs) else []
    if any(has_range(run.score) for run in runs):
        notes.append(RANGE_NOTE)
    if any(run.score.open_to_tampering for run in runs):
        notes.append(OPEN_NOTE)
    if any(run.ingested for run in runs):
        notes.append(INGESTED_NOTE)
    notes += [f"{short_id(run.id)} {safe(run.note)}" for run in runs if run.note and run.state == "STOPPED"][
        :_REASONS
    ]
    orphans = [run for run in runs if _orphan(run)]
    if orphans:
        command = f"valk run resume {short_id(orphans[0].id)}"
        notes.append(f"{plural(len(orphans), 'run')} without an executor; {command} goes on")
    if away := sum(run.executor == "away" and not ended(run) for run in runs):
        notes.append(f"{plural(away, 'run')} without an executor; the tracker goes on as soon as one is back")
    return notes


def _nobody(run: RunView) -> bool:
    return run.executor != "alive" and not ended(run)


def _orphan(run: RunView) -> bool:
    return run.executor == "none" and not ended(run)


def trial_table(trials: Sequence[TrialView], ink: TerminalStyle = PLAIN, *, fraction: bool = True) -> Table:
    """Trials of a run, one line each; what is confirmed has a column only where something is not."""
    unconfirmed = any(map(is_unconfirmed, trials))
    table = Table(
        [
            Column("Task", shrink=True),
            Column("Status"),
            Column("Score", "right"),
            *([Column("Confirmed", "right")] if unconfirmed else []),
            Column("Attempts", "right"),
            Column("Took", "right"),
            Column("Exit", optional=True),
            Column("Why", shrink=True, optional=True),
        ]
    )
    now = time.time()
    for trial in trials:
        table.rows.append(
            [
                trial_name(trial),
                ink.state(trial.state),
                number(trial.score, fraction=fraction) + (DAGGER if is_open(trial) else ""),
                *([number(trial.score_confirmed, fraction=fraction)] if unconfirmed else []),
                str(trial.attempts),
                duration(trial_seconds(trial, now)),
                trial_exit(trial),
                trial_why(trial, now),
            ]
        )
    return table


def is_open(trial: TrialView) -> bool:
    """Return whether the agent could have changed what its tests ran with."""
    return trial.state == "FINISHED" and bool((trial.evidence or {}).get("open_to_tampering"))


def is_unconfirmed(trial: TrialView) -> bool:
    """Return whether the sandbox the agent left gave a better score than a fresh one."""
    if trial.state != "FINISHED" or trial.confirmed is not False:
        return False
    return bool(trial.passed) or (trial.score or 0.0) > (trial.score_confirmed or 0.0)


def system_changes(evidence: Json | None) -> int:
    """Return how many system files the agent added, changed or removed."""
    system = (evidence or {}).get("system") or {}
    return sum(system.get(kind) or 0 for kind in ("added", "changed", "removed"))


def needs_a_look(trial: TrialView) -> bool:
    """Return whether a reader should not take its score as it is."""
    odd = is_unconfirmed(trial) or is_open(trial) or trial.counts_as_zero
    return odd or system_changes(trial.evidence) > 0


@dataclass(slots=True)
class TrialNotes:
    """What must be said below a table of trials: which scores a reader should not take as they are."""

    trials: int = 0
    repeated: bool = False
    open_to_tampering: int = 0
    unconfirmed: int = 0
    changed_system: int = 0

    def watch(self, trials: Iterable[TrialView]) -> Iterator[TrialView]:
        """Yield the trials, and count them."""
        for trial in trials:
            self.trials += 1
            self.repeated |= trial.k > 0
            self.open_to_tampering += is_open(trial)
            self.unconfirmed += bool(trial.passed) and trial.confirmed is False
            self.changed_system += system_changes(trial.evidence) > 0
            yield trial

    def lines(self) -> list[str]:
        """Return the notes about those that were watched."""
        notes = []
        if count := self.open_to_tampering:
            notes.append(f"{DAGGER} {tampering_text(count, self.trials, tasks=not self.repeated)}")
        if count := self.unconfirmed:
            seen = f"{plural(count, 'pass', 'passes')} {'was' if count == 1 else 'were'} only seen"
            notes.append(f"{seen} in the sandbox the agent left: unconfirmed")
        if count := self.changed_system:
            notes.append(f"agents changed system files in {plural(count, 'trial')}; valk run show lists them")
        return notes


def trial_notes(trials: Iterable[TrialView]) -> list[str]:
    """Return the notes about all of these."""
    found = TrialNotes()
    for _ in found.watch(trials):
        pass
    return found.lines()


def trial_seconds(trial: TrialView, now: float) -> float | None:
    """Return how long its last attempt took, or has taken."""
    return None if trial.started_at is None else (trial.finished_at or now) - trial.started_at


def trial_exit(trial: TrialView) -> str:
    """`TIMEOUT`, `OS_KILLED`, or the code when it is not 0."""
    return _or_none(trial.exit_reason or (trial.exit_code if trial.exit_code else None))


def trial_why(trial: TrialView, now: float) -> str:
    """Return why it has no full score: its error, or what its grader said last."""
    if trial.cause is not None or not trial.reason:
        return trial_error(trial, now)
    return safe(trial.reason)


def trial_error(trial: TrialView, now: float) -> str:
    """`infrastructure/sandbox_failed: …`, and when it is tried again, or how it counts all the same."""
    if trial.cause is None:
        return NONE
    then = ""
    if trial.counts_as_zero:
        then = " (counted as 0)"
    elif trial.state == "FINISHED":
        then = " (graded)"
    elif trial.retry_at and trial.retry_at > now:
        then = f" (again in {duration(trial.retry_at - now)})"
    return f"{_or_none(trial.category)}/{safe(trial.cause)}{then}: {_or_none(trial.message)}"


# A run that is watched: frames of a live view, and lines for a log.


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """What a frame is drawn from."""

    run: RunView
    active: Sequence[TrialView] = ()
    failed: Sequence[TrialView] = ()
    """Latest errors first."""


def frame(shot: RunSnapshot, ink: TerminalStyle = PLAIN, *, now: float, height: int = 24) -> list[str]:
    """One run: progress, counts, score, active trials with phase and time, latest errors."""
    run = shot.run
    title = f"{agent_name(run.agent, run.model)} on {safe(run.benchmark)}"
    took = duration(elapsed(run, now))
    lines = [
        f"{ink.paint(title, 'bold')}  {ink.paint(short_id(run.id), 'dim')}  {ink.paint(took, 'dim')}",
        ink.state(run.state, progress(run)),
        counts_line(run.counts),
        score_sentence(run.score, ended=ended(run)),
    ]
    if run.cost:
        lines.append(f"cost {cost_text(run.cost)}")
    if run.note:
        lines.append(ink.paint(safe(run.note), "yellow"))
    room = max(2, height - len(lines) - 4)
    failed = list(shot.failed)[: min(3, room // 2)]
    lines += _active_lines(shot.active, ink, now, room - len(failed))
    if failed:
        lines += ["", ink.paint("Latest errors", "bold")]
        lines += [ink.paint(f"  {trial_name(trial)}  {trial_error(trial, now)}", "red") for trial in failed]
    return lines


def _active_lines(active: Sequence[TrialView], ink: TerminalStyle, now: float, room: int) -> list[str]:
    if not active:
        return []
    shown = active[: max(1, room)]
    name_room = min(40, max(cells(trial_name(trial)) for trial in shown))
    lines = [""]
    for trial in shown:
        again = f" (attempt {trial.attempts})" if trial.attempts > 1 else ""
        name = pad(fit(trial_name(trial), name_room), name_room)
        word = ink.state(trial.state, pad(state_word(trial.state), 11))
        lines.append(f"  {name}  {word}  {duration(trial_seconds(trial, now))}{again}")
    if len(active) > len(shown):
        lines.append(ink.paint(f"  … and {len(active) - len(shown)} more", "dim"))
    return lines


def change_line(run: RunView, now: float) -> str:
    """One line for a log: what a pipe gets instead of the live view."""
    name = f"{safe(run.agent)} on {safe(run.benchmark)}"
    score = score_sentence(run.score, ended=ended(run))
    return f"{clock(now)}  {name}  {run.state}  {run.done}/{run.total}  {counts_line(run.counts)}  {score}"
