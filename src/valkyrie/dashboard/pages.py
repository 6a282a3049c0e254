"""What each page shows, read with the verbs of the tracker and the functions that the commands print with."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast, get_args
from urllib.parse import quote, urlencode

from benchmark_runner.terminal import safe
from valkyrie.compare.pairs import ScoredTrials
from valkyrie.compare.summary import summarise
from valkyrie.compare.tables import agent_score_cell, by_rank, notes, tables
from valkyrie.compare.views import AgentSummary, Metric, Summary
from valkyrie.compare.words import sentence
from valkyrie.dashboard import charts
from valkyrie.domain import RunState
from valkyrie.errors import UnknownError, UsageError
from valkyrie.report.formats import (
    agent_name,
    dollars,
    duration,
    elapsed,
    interval,
    number,
    plural,
    score_cell,
    score_rows,
    short_id,
    size,
)
from valkyrie.report.run_details import (
    advice,
    alarms,
    error_rows,
    executor_table,
    queue_sentence,
    queue_table,
)
from valkyrie.report.tables import (
    ended,
    list_notes,
    next_commands,
    run_rows,
    trial_exit,
    trial_notes,
    trial_seconds,
    trial_why,
)
from valkyrie.report.trial_details import attempt_table, evidence_tables, trial_commands, trial_rows
from valkyrie.store.layout import encode_task_id
from valkyrie.tracker.local import LocalTracker
from valkyrie.tracker.protocol import each_trial
from valkyrie.trajectory.model import ContentPart, Step
from valkyrie.trajectory.records import FILES, GRADING_FOLDER, AgentAccount, read_accounts
from valkyrie.views import OutputsWanted, RunFilter, RunView, TrialFilter, TrialView
from valkyrie.views.jobs import JobFilter, JobView

RUNS_AT_ONCE = 50
TRIALS_AT_ONCE = 100
STEPS_AT_ONCE = 50
"""So many steps of a trajectory are on one page."""
LOG_TAIL = 64 << 10
"""Characters of a log that a page shows; the whole of it can be downloaded."""
LONGEST_TEXT = 20_000
"""Characters of one message or result on a page."""
MOST_COMPARED = 12
"""Runs beside each other on one page."""
MOST_SQUARES = 2_000
"""Tasks of the grid of a comparison."""
RUN_STATES = tuple(state.value for state in RunState)
TRIAL_STATES = ("PENDING", "BUILDING", "IN_PROGRESS", "EVALUATING", "FINISHED", "ERROR", "STOPPED", "SKIPPED")
SORTS = ("position", "task_id", "started_at", "duration", "status", "score")


class Page(NamedTuple):
    """A template, and what it is filled with."""

    template: str
    values: Mapping[str, Any]


def run_path(run_id: str) -> str:
    """Return the address of a run's page."""
    return f"/runs/{quote(run_id, safe='')}"


def trial_path(run_id: str, task_id: str, k: int = 0) -> str:
    """Return the address of a trial's page."""
    return f"{run_path(run_id)}/trial?{urlencode({'task': task_id, **({'k': k} if k else {})})}"


def with_query(path: str, query: Mapping[str, Any]) -> str:
    """Return an address with the parts of a query that say something."""
    said = {name: value for name, value in query.items() if value not in (None, "", False, ())}
    return f"{path}?{urlencode(said, doseq=True)}" if said else path


# Runs and jobs.


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run as a line of a list."""

    run: RunView
    path: str
    agent: str
    score: str
    interval: str
    bar: str
    took: str
    cost: str


def _line(run: RunView, now: float) -> RunLine:
    return RunLine(
        run,
        run_path(run.id),
        agent_name(run.agent, run.model),
        score_cell(run.score),
        interval(run.score),
        charts.state_bar(run.counts, run.score.passed),
        duration(elapsed(run, now)),
        dollars(run.cost.total) if run.cost else "",
    )


def runs_page(tracker: LocalTracker, query: Mapping[str, str]) -> Page:
    """Show runs, newest first, with the filters of the address."""
    state = query.get("state") or None
    if state is not None and state not in RUN_STATES:
        raise UsageError(f"{state[:40]!r} is no state of a run: {', '.join(RUN_STATES)}.")
    people = tuple(name.strip() for name in query.get("started_by", "").split(",") if name.strip())
    wanted = RunFilter(
        agent=query.get("agent") or None,
        benchmark=query.get("benchmark") or None,
        model=query.get("model") or None,
        label=query.get("label") or None,
        job=query.get("job") or None,
        state=state,
        started_by=people,
        newest_first=query.get("order") != "asc",
        limit=RUNS_AT_ONCE,
        cursor=query.get("cursor") or None,
    )
    found, now = tracker.list(wanted), time.time()
    filters = {name: query.get(name, "") for name in _RUN_FILTERS}
    return Page(
        "runs.html",
        {
            "title": "Runs",
            "lines": [_line(run, now) for run in found.runs],
            "total": found.total,
            "filters": filters,
            "filtered": any(filters.values()),
            "states": RUN_STATES,
            "notes": list_notes(found.runs),
            "first": None if not wanted.cursor else with_query("/", filters),
            "next": None if not found.cursor else with_query("/", {**filters, "cursor": found.cursor}),
        },
    )


_RUN_FILTERS = ("agent", "model", "benchmark", "label", "job", "started_by", "state", "order")


def jobs_page(tracker: LocalTracker, query: Mapping[str, str]) -> Page:
    """Show jobs, newest first."""
    found = tracker.list_jobs(JobFilter(limit=RUNS_AT_ONCE, cursor=query.get("cursor") or None))
    return Page(
        "jobs.html",
        {
            "title": "Jobs",
            "jobs": [(job, charts.state_bar(_counts(job), _passed(job))) for job in found.jobs],
            "first": "/jobs" if query.get("cursor") else None,
            "next": with_query("/jobs", {"cursor": found.cursor}) if found.cursor else None,
        },
    )


def _counts(job: JobView) -> dict[str, int]:
    states = {state for run in job.runs for state in run.counts}
    return {state: sum(run.counts.get(state, 0) for run in job.runs) for state in states}


def _passed(job: JobView) -> int:
    return sum(run.score.passed for run in job.runs)


def job_page(tracker: LocalTracker, ref: str, query: Mapping[str, str]) -> Page:
    """Show a job: its runs, and how they compare."""
    job, now = tracker.fetch_job(ref), time.time()
    values: dict[str, Any] = {
        "title": safe(job.name),
        "job": job,
        "bar": charts.state_bar(_counts(job), _passed(job), long=True),
        "lines": [_line(run, now) for run in job.runs],
    }
    if len(job.runs) > 1:
        values |= _compared(tracker, job.runs[:MOST_COMPARED], query)
    return Page("job.html", {**values, "live": not job.ended})


# One run.


def run_page(tracker: LocalTracker, ref: str, query: Mapping[str, str]) -> Page:
    """Show a run: how it stands, what went wrong, and its trials with the filters of the address."""
    run, now = tracker.fetch(ref), time.time()
    groups = tracker.errors(run.id) if run.counts.get("ERROR") or not ended(run) else []
    wanted = _trial_filter(query)
    trials, total = tracker.trials(run.id, wanted)
    path = run_path(run.id)
    kept = {name: query.get(name, "") for name in _TRIAL_FILTERS}
    pages = _page_links(path, kept, wanted, total)
    return Page(
        "run.html",
        {
            "title": f"{agent_name(run.agent, run.model)} on {safe(run.benchmark)}",
            "run": run,
            "path": path,
            "bar": charts.state_bar(run.counts, run.score.passed, long=True),
            "scores": score_rows(run.score, ended=ended(run)),
            "facts": _facts(run, now),
            "details": [row for row in run_rows(run, now=now) if row[0] not in SHOWN_ELSEWHERE],
            "commands": next_commands(run, everything=True),
            "alarms": alarms(run, (), now),
            "groups": [(group, error_rows(group)) for group in groups[:20]],
            "more_groups": max(0, len(groups) - 20),
            "advice": advice(run.id, groups),
            "trials": [trial_line(run, trial, now) for trial in trials],
            "total": total,
            "notes": trial_notes(trials),
            "filters": kept,
            "states": TRIAL_STATES,
            "sorts": SORTS,
            "pages": pages,
            "live": not ended(run),
            "can_stop": run.state == "IN_PROGRESS",
            "can_resume": run.state in ("STOPPED", "ERROR") or (not ended(run) and run.executor == "none"),
            "can_retry": bool(run.counts.get("ERROR")) and ended(run),
        },
    )


SHOWN_ELSEWHERE = ("Progress", "Trials", "State")
"""Rows of a run's panel that its page shows in another way."""
_TRIAL_FILTERS = ("status", "failed", "search", "sort", "order")


def _trial_filter(query: Mapping[str, str]) -> TrialFilter:
    state, sort = query.get("status") or "", query.get("sort") or "position"
    if state and state not in TRIAL_STATES:
        raise UsageError(f"{state[:40]!r} is no state of a trial: {', '.join(TRIAL_STATES)}.")
    if sort not in SORTS:
        raise UsageError(f"Trials cannot be sorted by {sort[:40]!r}: {', '.join(SORTS)}.")
    return TrialFilter(
        states=(state,) if state else (),
        search=query.get("search") or None,
        sort=cast(Any, sort),
        descending=query.get("order") == "desc",
        limit=TRIALS_AT_ONCE,
        offset=_whole(query.get("offset"), 0),
        failed=query.get("failed") == "1",
    )


def _whole(said: str | None, default: int) -> int:
    """Read a number of an address; what is none is the default."""
    return int(said) if said and said.isascii() and said.isdecimal() and len(said) < 10 else default


def _page_links(path: str, kept: Mapping[str, str], wanted: TrialFilter, total: int) -> dict[str, Any]:
    before, after = wanted.offset - wanted.limit, wanted.offset + wanted.limit
    return {
        "from": wanted.offset + 1 if total else 0,
        "to": min(after, total),
        "before": with_query(path, {**kept, "offset": max(0, before)}) if wanted.offset else None,
        "after": with_query(path, {**kept, "offset": after}) if after < total else None,
    }


def _facts(run: RunView, now: float) -> list[tuple[str, str]]:
    """The few numbers everyone looks for first."""
    rows = [("Progress", f"{run.done} of {run.total}"), ("Took", duration(elapsed(run, now)))]
    if (left := _left(run, now)) is not None:
        rows.append(("About left", duration(left)))
    if run.cost:
        rows.append(("Cost", dollars(run.cost.total)))
    if run.tokens:
        rows.append(("Tokens", f"{run.tokens.input + run.tokens.output:,}"))
    errors = sum(run.score.errors.values())
    return [*rows, ("Open errors", str(errors)), ("Started by", safe(run.started_by or "—"))]


def _left(run: RunView, now: float) -> float | None:
    """Return about how many seconds are left, at the pace so far; None where nothing tells."""
    took = elapsed(run, now)
    if ended(run) or not took or not run.done or run.executor != "alive":
        return None
    return took / run.done * (run.total - run.done)


@dataclass(frozen=True, slots=True)
class TrialLine:
    """One trial as a line of a table."""

    trial: TrialView
    path: str
    verdict: str
    """`passed`, `failed`, or the state it is in."""
    score: str
    took: str
    ended: str
    why: str
    cost: str


def trial_line(run: RunView, trial: TrialView, now: float) -> TrialLine:
    """Return one trial as a line of a table."""
    return TrialLine(
        trial,
        trial_path(run.id, trial.task_id, trial.k),
        verdict(trial),
        number(trial.score, fraction=run.score.fraction),
        duration(trial_seconds(trial, now)),
        trial_exit(trial),
        trial_why(trial, now),
        dollars(trial.cost) if trial.cost is not None else "",
    )


def verdict(trial: TrialView) -> str:
    """Return `passed` or `failed` of a graded trial, else its state."""
    if trial.state != "FINISHED" or trial.passed is None:
        return trial.state
    return "passed" if trial.passed else "failed"


# One trial.


class StepView(NamedTuple):
    """One step of a trajectory, as text."""

    number: int
    source: str
    about: Sequence[str]
    thinking: str
    message: str
    calls: Sequence[tuple[str, str]]
    results: Sequence[str]


class KeptFile(NamedTuple):
    """A file that was kept of a trial."""

    name: str
    size: str
    path: str


def trial_page(tracker: LocalTracker, ref: str, query: Mapping[str, str]) -> Page:
    """Show a trial: its verdict and the evidence, what the agent did step by step, its log and files."""
    run, now = tracker.fetch(ref), time.time()
    task_id, k = query.get("task", ""), _whole(query.get("k"), 0)
    trial = find_trial(tracker, run, task_id, k)
    attempts = [*tracker.attempts(run.id, task_id, k)]
    accounts, printed = read_kept(tracker, run, trial)
    found, window = _steps(accounts, query)
    path = trial_path(run.id, task_id, k)
    longest = max((sum(one.timing.get(phase) or 0 for phase in charts.PHASES) for one in attempts), default=0)
    return Page(
        "trial.html",
        {
            "title": f"{safe(task_id)} · {agent_name(run.agent, run.model)}",
            "run": run,
            "run_path": run_path(run.id),
            "trial": trial,
            "path": path,
            "rows": trial_rows(run, trial, now=now),
            "attempts": attempt_table(attempts, fraction=run.score.fraction),
            "phases": [(one.number, charts.phases(one.timing, longest)) for one in attempts],
            "evidence": evidence_tables(trial.evidence),
            "instruction": next((one.instruction for one in accounts if one.instruction), None),
            "problems": [one.problem for one in accounts if one.problem],
            "steps": found,
            "window": window,
            "search": query.get("search", ""),
            "printed": _tail(printed),
            "log": _tail("".join(_last_pieces(tracker.logs(run.id, task_id, k=k)))) if attempts else "",
            "files": list_files(tracker, run, trial),
            "commands": trial_commands(run, trial),
            "digest": trial.digest,
            "next_failed": _next_failed(tracker, run, trial),
            "previous_failed": _previous_failed(tracker, run, trial),
            "live": trial.state in ("BUILDING", "IN_PROGRESS", "EVALUATING"),
        },
    )


def find_trial(tracker: LocalTracker, run: RunView, task_id: str, k: int) -> TrialView:
    """Return one trial of a run, or raise UnknownError."""
    for trial in each_trial(tracker, run.id, search=task_id):
        if (trial.task_id, trial.k) == (task_id, k):
            return trial
    raise UnknownError(f"Run {short_id(run.id)} has no trial {k} of task {task_id!r}.")


def read_kept(tracker: LocalTracker, run: RunView, trial: TrialView) -> tuple[list[AgentAccount], str]:
    """Return the agent's account of a trial, and what its tests printed."""
    with TemporaryDirectory(prefix="valkyrie-page-") as name:
        folder = Path(name)
        tests = f"{GRADING_FOLDER}/*test-stdout.txt"
        tracker.outputs(run.id, folder, OutputsWanted([trial.task_id], [*FILES, tests]))
        own = folder / encode_task_id(trial.task_id) / (str(trial.k) if trial.k else "")
        texts = [one.read_text("utf-8", "replace") for one in sorted(own.glob(f"{GRADING_FOLDER}/**/*.txt"))]
        return read_accounts(own), "\n".join(texts)


def _steps(
    accounts: Sequence[AgentAccount], query: Mapping[str, str]
) -> tuple[list[StepView], dict[str, Any]]:
    """Return a window of all steps, or those that contain what is searched for."""
    every = _all_steps(accounts)
    search = query.get("search", "").lower()
    numbered = [
        (place, step) for place, step in enumerate(every, 1) if not search or search in _all_text(step)
    ]
    start = max(0, _whole(query.get("step"), 1) - 1)
    if search:
        start = _whole(query.get("from"), 0)
    shown = numbered[start : start + STEPS_AT_ONCE]
    window = {
        "total": len(every),
        "matching": len(numbered),
        "from": start,
        "size": STEPS_AT_ONCE,
        "before": max(0, start - STEPS_AT_ONCE) if start else None,
        "after": start + STEPS_AT_ONCE if start + STEPS_AT_ONCE < len(numbered) else None,
    }
    return [_step(place, step) for place, step in shown], window


def _all_steps(accounts: Sequence[AgentAccount]) -> list[Step]:
    return [step for one in accounts if one.trajectory for step in one.trajectory.steps]


def each_step(accounts: Sequence[AgentAccount]) -> Iterator[StepView]:
    """Yield all steps of a trial as text."""
    yield from (_step(place, step) for place, step in enumerate(_all_steps(accounts), 1))


def _all_text(step: Step) -> str:
    parts = [_plain(step.message), step.reasoning_content or ""]
    parts += [
        f"{call.function_name} {json.dumps(call.arguments, default=str)}" for call in step.tool_calls or ()
    ]
    parts += [_plain(one.content) for one in (step.observation.results if step.observation else ())]
    return "\n".join(parts).lower()


def _step(place: int, step: Step) -> StepView:
    about = [word for word in (step.model_name, step.timestamp) if word]
    if step.metrics and step.metrics.prompt_tokens is not None:
        about.append(f"{step.metrics.prompt_tokens:,} + {step.metrics.completion_tokens or 0:,} tokens")
    if step.metrics and step.metrics.cost_usd is not None:
        about.append(dollars(step.metrics.cost_usd))
    return StepView(
        place,
        step.source,
        [safe(word) for word in about],
        _text(step.reasoning_content or ""),
        _text(_plain(step.message)),
        [(safe(call.function_name), _arguments(call.arguments)) for call in step.tool_calls or ()],
        [_text(_plain(one.content)) for one in (step.observation.results if step.observation else ())],
    )


def _arguments(given: Mapping[str, object]) -> str:
    texts = (
        f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}"
        for name, value in given.items()
    )
    return _text("\n".join(texts))


def _plain(content: str | Sequence[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text or f"[{part.type}]" for part in content)


def _text(text: str) -> str:
    """Return text from outside without control characters, and not too long for a page."""
    cut = len(text) - LONGEST_TEXT
    shown = safe(text[:LONGEST_TEXT] if cut > 0 else text, keep_lines=True)
    return f"{shown}\n… {cut:,} characters more" if cut > 0 else shown


def _last_pieces(pieces: Iterator[str]) -> list[str]:
    """Return the end of a text that comes in pieces, without holding all of it."""
    kept: list[str] = []
    held = 0
    for piece in pieces:
        kept.append(piece)
        held += len(piece)
        while kept and held - len(kept[0]) > LOG_TAIL:
            held -= len(kept.pop(0))
    return kept


def _tail(text: str) -> str:
    cut = len(text) - LOG_TAIL
    said = f"… {cut:,} characters before\n" if cut > 0 else ""
    return said + safe(text[-LOG_TAIL:], keep_lines=True)


def list_files(tracker: LocalTracker, run: RunView, trial: TrialView) -> list[KeptFile]:
    """Return what was kept of a trial's last attempt."""
    found = []
    for name, _pieces, count in _files(tracker, run.id, trial.task_id, trial.k):
        wanted = {"task": trial.task_id, "k": trial.k or None, "name": name}
        found.append(KeptFile(safe(name), size(count), with_query(f"{run_path(run.id)}/file", wanted)))
    return found


def open_file(tracker: LocalTracker, ref: str, query: Mapping[str, str]) -> tuple[str, Iterator[bytes], int]:
    """Return one kept file: its name, its bytes, their number."""
    task_id, k, wanted = query.get("task", ""), _whole(query.get("k"), 0), query.get("name", "")
    for name, pieces, count in _files(tracker, ref, task_id, k):
        if name == wanted:
            return name, pieces, count
    raise UnknownError(f"No file {wanted[:200]!r} was kept of this trial.")


def _files(
    tracker: LocalTracker, ref: str, task_id: str, k: int
) -> Iterator[tuple[str, Iterator[bytes], int]]:
    folder = Path(encode_task_id(task_id), str(k) if k else "").as_posix() + "/"
    others = Path(encode_task_id(task_id)).as_posix() + "/"
    for name, pieces, count in tracker.output_files(ref, OutputsWanted([task_id])):
        own = name.removeprefix(folder)
        if own == name or (not k and own.split("/")[0].isdecimal() and name.startswith(others)):
            continue
        yield own, pieces, count


def _next_failed(tracker: LocalTracker, run: RunView, trial: TrialView) -> str | None:
    behind = TrialFilter(failed=True, after=trial.position, limit=1, detail="scores")
    found, _ = tracker.trials(run.id, behind)
    return trial_path(run.id, found[0].task_id, found[0].k) if found else None


def _previous_failed(tracker: LocalTracker, run: RunView, trial: TrialView) -> str | None:
    """Return the last failed trial before this one: they come newest position first, a page at a time."""
    query = TrialFilter(failed=True, descending=True, limit=1000, detail="scores")
    while True:
        found, total = tracker.trials(run.id, query)
        for one in found:
            if one.position < trial.position:
                return trial_path(run.id, one.task_id, one.k)
        if not found or query.offset + len(found) >= total:
            return None
        query = replace(query, offset=query.offset + len(found))


# Runs beside each other.


def compare_page(tracker: LocalTracker, refs: Sequence[str], query: Mapping[str, str]) -> Page:
    """Show runs beside each other: scores, cost, the sentence about each pair, and a grid of tasks."""
    if len(refs) > MOST_COMPARED:
        raise UsageError(f"At most {MOST_COMPARED} runs are compared on one page; these are {len(refs)}.")
    runs = list({run.id: run for run in map(tracker.fetch, refs)}.values())
    values: dict[str, Any] = {"title": "Compare", "runs": [_line(run, time.time()) for run in runs]}
    if len(runs) > 1:
        values |= _compared(tracker, runs, query)
    return Page("compare.html", {**values, "asked": len(refs)})


class GridRow(NamedTuple):
    """One task over all agents."""

    task_id: str
    cells: Sequence[tuple[str, str, str]]
    """For each agent: the class of its square, what it says, the address behind it."""
    differs: float


def _compared(tracker: LocalTracker, runs: Sequence[RunView], query: Mapping[str, str]) -> dict[str, Any]:
    metric = query.get("metric") or "score"
    if metric not in get_args(Metric):
        raise UsageError(f"Runs are compared by score or pass, not {metric[:40]!r}.")
    trials = [(run, ScoredTrials(each_trial(tracker, run.id, detail="scores"))) for run in runs]
    pairs = [(a, b) for a, b in combinations(range(len(runs)), 2) if _alike(runs[a], runs[b])]
    summary = summarise(trials, metric=cast(Metric, metric), pairs=pairs)
    fraction = all(agent.fraction for agent in summary.agents)
    ranked = by_rank(summary.agents)
    estimates = [
        charts.ScoreRow(
            agent.name,
            agent.scores.infrastructure_excluded.mean,
            agent.scores.infrastructure_excluded.interval,
            agent_score_cell(agent),
        )
        for agent in ranked
    ]
    costs = {run.id: run.cost.total for run in runs if run.cost}
    points = [
        charts.CostPoint(agent.name, costs[agent.run_id], agent.scores.infrastructure_excluded.mean)
        for agent in ranked
        if agent.run_id in costs and agent.scores.infrastructure_excluded.mean is not None
    ]
    curves = {agent.name: agent.repeats.pass_at for agent in ranked if len(agent.repeats.pass_at) > 1}
    return {
        "metric": metric,
        "sentences": [sentence(one) for one in summary.comparisons],
        "forest": charts.forest(estimates, fraction=fraction),
        "against_cost": charts.score_against_cost(points, fraction=fraction) if len(points) > 1 else None,
        "curves": charts.pass_curves(curves) if curves else None,
        "tables": list(tables(summary)),
        "compare_notes": list(notes(summary)),
        "columns": [agent.name for agent in summary.agents],
        **_grid(summary, changed_only=query.get("changed") == "1"),
    }


def _alike(a: RunView, b: RunView) -> bool:
    return (a.benchmark, a.dataset) == (b.benchmark, b.dataset)


def _grid(summary: Summary, *, changed_only: bool) -> dict[str, Any]:
    """Return tasks × agents, those first on which agents differ most."""
    tasks = dict.fromkeys(task for agent in summary.agents for task in agent.tasks)
    rows = [_grid_row(summary.agents, task) for task in tasks]
    differing = sum(row.differs > 0 for row in rows)
    shown = sorted((row for row in rows if row.differs > 0 or not changed_only), key=lambda one: -one.differs)
    return {
        "grid": shown[:MOST_SQUARES],
        "grid_total": len(rows),
        "grid_differing": differing,
        "grid_cut": max(0, len(shown) - MOST_SQUARES),
        "changed_only": changed_only,
    }


def _grid_row(agents: Sequence[AgentSummary], task: str) -> GridRow:
    cells, means = [], []
    for agent in agents:
        found = agent.tasks.get(task)
        if found is None or found.mean is None:
            cells.append(
                ("q-none", (found.why if found else None) or "not run", trial_path(agent.run_id, task))
            )
            continue
        means.append(found.mean)
        level = round(10 * min(max(found.mean, 0.0), 1.0)) if agent.fraction else (10 if found.passed else 0)
        said = f"{number(found.mean, fraction=agent.fraction)}, {plural(found.trials, 'trial')}"
        cells.append((f"q-{level}", said, trial_path(agent.run_id, task)))
    return GridRow(task, cells, max(means) - min(means) if len(means) > 1 else 0.0)


# The machine room.


def queue_page(tracker: LocalTracker) -> Page:
    """Show what waits, what runs and who works, and where the bytes are."""
    queue, now = tracker.queue(), time.time()
    disk = tracker.disk()
    return Page(
        "queue.html",
        {
            "title": "Operate",
            "sentence": queue_sentence(queue),
            "queue": queue_table(queue, now=now, whole_ids=False),
            "executors": executor_table(queue, now=now),
            "disk": [(safe(what), size(count)) for what, count in disk.parts],
            "used": size(disk.total_bytes),
            "free": size(disk.free_bytes),
            "live": True,
        },
    )
