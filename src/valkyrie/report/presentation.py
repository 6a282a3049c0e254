"""Rows of the store as the views people see."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Literal

from valkyrie import views
from valkyrie.artifact_store.protocol import run_prefix
from valkyrie.domain import DEFAULT_ORG, SECOND_TRIES, Category, JobState, Json, RunState, TrialState
from valkyrie.report.statistics.intervals import counted_interval, mean_interval
from valkyrie.report.statistics.power import spread_json
from valkyrie.schedule.policy import policy_for
from valkyrie.store.counters import RunScores, run_scores, state_counts
from valkyrie.store.schema import ERROR_COUNTERS
from valkyrie.views import (
    AttemptView,
    CostView,
    ErrorGroup,
    HookView,
    RunView,
    ScoreView,
    TokensView,
    TrialView,
    UsageView,
)

if TYPE_CHECKING:
    from valkyrie.store.rows import AttemptRow, JobRow, RunRow, ViewedTrialRow

ALIKE = 0.75
COMPARED = 160
"""Characters of a message that are looked at: what it says, it says at the beginning."""
MOST_COMPARISONS = 1_000
"""Of all messages of one kind; beyond them only messages that begin alike are taken for alike."""
BEGINNING = 40

_VARIES = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # UUIDs
    r"|\b[0-9a-f]{12,64}\b"  # digests, container ids
    r"|\b[a-z]+[-_](?=[0-9a-z]*\d)[0-9a-z]{6,}\b"  # sandbox ids: sbx-4f9a2c
    r"|(?<![\w·])/[^\s:'\"]+"  # paths
    r"|\d+(?:\.\d+)?",
    re.IGNORECASE,
)


def shape(message: str, task_id: str) -> str:
    """A message without what differs from trial to trial."""
    said = message[: 4 * COMPARED]
    if task_id and task_id in said:
        said = re.sub(rf"(?<!\w){re.escape(task_id)}(?!\w)", "·", said)
    return " ".join(_VARIES.sub("·", said).split())[:COMPARED]


def alike(shapes: Sequence[str]) -> list[int]:
    """For each shape the number of the group it belongs to; groups are numbered as they appear."""
    groups: dict[str, int] = {}
    beginnings: dict[str, int] = {}
    examples: list[str] = []
    budget = MOST_COMPARISONS
    for one in dict.fromkeys(shapes):
        found, spent = _find_alike(one, examples, budget)
        budget -= spent
        if found is None and budget <= 0:
            found = beginnings.get(one[:BEGINNING])
        if found is None:
            found = len(examples)
            examples.append(one)
        beginnings.setdefault(one[:BEGINNING], found)
        groups[one] = found
    return [groups[one] for one in shapes]


def _find_alike(one: str, examples: Sequence[str], budget: int) -> tuple[int | None, int]:
    """The first example that says nearly the same, and how many comparisons that took."""
    matcher = SequenceMatcher(b=one, autojunk=False)
    spent = 0
    for number, example in enumerate(examples):
        if spent >= budget:
            break
        matcher.set_seq1(example)
        spent += 1
        if matcher.real_quick_ratio() < ALIKE or matcher.quick_ratio() < ALIKE:
            continue
        if matcher.ratio() >= ALIKE:
            return number, spent
    return None, spent


# Where else a run can be looked at.


def run_links(place: Json | None, run_id: str) -> dict[str, str]:
    """Return where a person finds a run's artifacts and logs, besides the machine it ran on."""
    found: dict[str, str] = {}
    artifacts: Json = (place or {}).get("artifacts") or {}
    logs: Json = (place or {}).get("logs") or {}
    if artifacts.get("kind") == "s3":
        below = "/".join(filter(None, (artifacts.get("prefix"), run_prefix(run_id))))
        found["artifacts"] = f"s3://{artifacts['bucket']}/{below}"
    elif artifacts.get("folder"):
        found["artifacts"] = f"{artifacts['folder']}/{run_prefix(run_id)}"
    if logs.get("group"):
        found["logs"] = f"{logs['group']}/{run_id}"
    elif logs.get("folder"):
        found["logs"] = f"{logs['folder']}/{run_id}"
    for name, kept in (("artifacts_url", artifacts), ("logs_url", logs)):
        if page := kept.get("page"):
            found[name] = str(page)
    return found


# Rows of the store as the views people see.

ByTask = Mapping[str, Sequence[float | None]]
"""What every trial counts, by task; None: nothing."""
FoundInterval = tuple[tuple[float, float] | None, str | None]
Families = Mapping[str, str] | None
"""An interval, and how it was found."""


def run_view(
    row: Any,
    *,
    executor: Literal["alive", "away", "none"],
    folder: str,
    scores: ByTask | None = None,
    families: Families = None,
    org: str = DEFAULT_ORG,
    hooks: Sequence[HookView] = (),
    links: Mapping[str, str] | None = None,
) -> RunView:
    """One run; `scores` by task, where given, allow an interval for partial credit, `families` one over them.

    `folder` is empty where a tracker keeps it.
    """
    counts = state_counts(row)
    return RunView(
        id=row.id,
        benchmark=row.benchmark,
        dataset=row.dataset,
        agent=row.agent,
        model=row.model,
        label=row.label,
        provider=row.provider,
        state=row.state,
        counts=counts,
        total=sum(counts.values()),
        concurrency=row.concurrency,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        started_by=row.started_by,
        score=score_view(row, scores, families),
        error=row.error,
        note=_note(row, executor, embedded=bool(folder)),
        executor=executor,
        folder=folder,
        arguments=row.arguments,
        enforcement=row.enforcement,
        version=row.version,
        org=org,
        priority=row.priority,
        cost=_cost(row),
        links=dict(links or {}),
        hooks=list(hooks),
        job_id=row.job_id,
        tokens=_tokens(row),
        exit_codes=dict(row.exit_codes or {}),
        worked_s=row.worked_s if row.worked_s or row.working_since else None,
        working_since=row.working_since,
    )


def _tokens(row: RunRow) -> TokensView | None:
    found = TokensView(row.input_tokens, row.cached_tokens, row.output_tokens)
    return found if found.input or found.output else None


def _cost(row: RunRow) -> CostView | None:
    """Return what agents reported; also when none did yet, where a limit is set."""
    if not row.n_costed and row.max_cost is None:
        return None
    return CostView(total=row.cost_sum, reports=row.n_costed, limit=row.max_cost)


def _note(row: RunRow, executor: str, *, embedded: bool) -> str | None:
    note: str | None = row.note or row.stop_reason
    if note is not None or executor == "alive" or RunState(row.state).terminal:
        return note
    if embedded:
        return f"no executor is at work; `valk run resume {row.id[:8]}` goes on"
    return "no executor is at work; it goes on as soon as one is (`valkyrie executor`, `valkyrie serve`)"


def needs_scores(row: RunRow) -> bool:
    """Return whether its intervals are found from every single score."""
    return not _is_counted(row)


def _is_counted(row: RunRow) -> bool:
    """Return every task simply passed or failed, once: counts say all there is."""
    simple = row.n_partial == 0 and int(row.arguments.get("trials", 1)) == 1
    return bool(row.fraction) and bool(simple) and not row.arguments.get("family")


def score_view(row: RunRow, scores: ByTask | None, families: Families = None) -> ScoreView:
    """The four numbers. While a run goes on, they are those of what counts so far."""
    found = run_scores(row)
    errors = {category.value: getattr(row, name) for category, name in ERROR_COUNTERS.items()}
    interval, method = _graded_interval(row, found, scores, families)
    final_interval, final_method = _final_interval(row, found, scores, families)
    return ScoreView(
        final_score=found.final_score,
        score_graded=found.score_graded,
        graded=found.graded,
        planned=found.planned,
        coverage=found.coverage,
        errors={name: number for name, number in errors.items() if number},
        provisional=errors[Category.INFRASTRUCTURE] > 0,
        fraction=bool(row.fraction),
        passed=row.n_passed,
        interval=interval,
        interval_method=method if interval else None,
        score_confirmed=found.score_confirmed,
        confirmed=found.confirmed,
        unconfirmed=found.unconfirmed,
        ungraded=found.ungraded,
        score_low=found.score_low,
        score_high=found.score_high,
        open_to_tampering=found.open_to_tampering,
        final_interval=final_interval,
        final_interval_method=final_method if final_interval else None,
        second_tries=int(row.arguments.get(SECOND_TRIES, 0)),
        spread=_spread(row, scores),
    )


def _spread(row: RunRow, scores: ByTask | None) -> Json | None:
    if not scores or not RunState(row.state).terminal:
        return None
    return spread_json({task: [one for one in own if one is not None] for task, own in scores.items()})


def _graded_interval(
    row: RunRow, found: RunScores, scores: ByTask | None, families: Families
) -> FoundInterval:
    """Of `score_graded`: over graded trials, and those that ended by the agent's doing.

    None of a run that stopped when its job was decided: `job fetch` has one that holds all the same.
    """
    if not found.counted or row.arguments.get("stop_rule"):
        return None, None
    if _is_counted(row):
        return counted_interval(round(row.score_sum), found.counted)
    if scores is None:
        return None, None
    counted = {task: [score for score in values if score is not None] for task, values in scores.items()}
    return _mean_interval(counted, found.score_graded, families, fraction=row.fraction)


def _final_interval(
    row: RunRow, found: RunScores, scores: ByTask | None, families: Families
) -> FoundInterval:
    """Of `final_score`: over every planned trial, where one without a grade counts 0."""
    if found.final_score is None or not found.counted or row.arguments.get("stop_rule"):
        return None, None
    if _is_counted(row):
        return counted_interval(round(row.score_sum), found.planned)
    if scores is None:
        return None, None
    every = {task: [score or 0.0 for score in values] for task, values in scores.items()}
    return _mean_interval(every, found.final_score, families, fraction=row.fraction)


def _mean_interval(
    by_task: Mapping[str, Sequence[float]], score: float | None, families: Families, *, fraction: bool
) -> FoundInterval:
    """Return where the score is the mean over tasks; what else a benchmark computes has no interval."""
    means = [math.fsum(values) / len(values) for values in by_task.values() if values]
    mean = math.fsum(means) / len(means) if means else None
    if mean is None or score is None or not (fraction or math.isclose(score, mean, abs_tol=1e-9)):
        return None, None
    return mean_interval(by_task, families=families or None)


def reason_of(evidence: object) -> str | None:
    """Return why a grader gave no pass; nothing where it said nothing."""
    said = evidence.get("reason") if isinstance(evidence, dict) else None
    return said if isinstance(said, str) and said else None


def trial_view(row: ViewedTrialRow) -> TrialView:
    """One trial, as `store.trials` reads it."""
    values = list(row[:24])
    values[14], values[16] = values[14] or {}, _usage(values[16])
    values.append(None if row.passed else reason_of(row.evidence))
    return TrialView(*values)


def scores_view(row: Any) -> TrialView:
    """One trial with only what scores are compared by."""
    task_id, k, state, score, passed, category, confirmed, fresh, digest, position, family, is_open = row
    return TrialView(
        task_id,
        k,
        state,
        attempts=0,
        score=score,
        passed=passed,
        category=category,
        cause=None,
        message=None,
        exit_code=None,
        exit_reason=None,
        retry_at=None,
        started_at=None,
        finished_at=None,
        timing={},
        digest=digest,
        confirmed=confirmed,
        score_confirmed=fresh,
        evidence={"open_to_tampering": True} if is_open else None,
        position=position,
        family=family,
    )


def attempt_view(row: AttemptRow, *, current: str, log: str | None, artifacts: str | None) -> AttemptView:
    """One attempt; while it runs its phase is the trial's state."""
    return AttemptView(
        number=row.number,
        outcome=row.outcome,
        phase=row.phase if row.outcome else current,
        category=row.category,
        cause=row.cause,
        message=row.message,
        exit_code=row.exit_code,
        exit_reason=row.exit_reason,
        score=row.score,
        started_at=row.started_at,
        finished_at=row.finished_at,
        timing=row.timing or {},
        log=log,
        artifacts=artifacts,
        usage=_usage(row.usage),
        passed=row.passed,
        confirmed=row.confirmed,
        score_confirmed=row.score_confirmed,
        evidence=row.evidence,
    )


def _usage(found: Json | None) -> UsageView | None:
    return UsageView(**found) if found else None


def group_errors(
    rows: Iterable[Any], passes: Mapping[tuple[str, int], int] | None = None
) -> list[ErrorGroup]:
    """Alike errors together, whatever ids, numbers and paths they name; open ones first, then by number.

    `passes`: in how many passes of the run each (task id, k) failed as it does now. What failed alike in
    two of them stands apart from what failed for the first time.
    """
    passes = passes or {}
    kinds: dict[tuple[str, str, str, bool], list[Any]] = {}
    for row in rows:
        chronic = passes.get((row.task_id, row.k), 1) > 1
        kinds.setdefault((row.category, row.cause, row.state, chronic), []).append(row)
    found: list[ErrorGroup] = []
    for same_kind in kinds.values():
        groups: dict[int, list[Any]] = {}
        numbers = alike([shape(row.message or "", row.task_id) for row in same_kind])
        for number, row in zip(numbers, same_kind, strict=True):
            groups.setdefault(number, []).append(row)
        found += [_error_group(group, passes) for group in groups.values()]
    return sorted(found, key=lambda group: (_last(group), -group.count))


def _last(group: ErrorGroup) -> int:
    """Open errors come first, then what is tried again, then what is no error any more."""
    return 2 if group.disposition == "counted as 0" else int(group.retrying)


def _error_group(rows: Sequence[Any], passes: Mapping[tuple[str, int], int]) -> ErrorGroup:
    first = rows[0]
    most = max(passes.get((row.task_id, row.k), 1) for row in rows)
    retryable = policy_for(Category(first.category), first.cause).retryable
    task_ids = list(dict.fromkeys(row.task_id for row in rows))
    return ErrorGroup(
        category=first.category,
        cause=first.cause,
        message=str(first.message or ""),
        count=len(rows),
        retryable=retryable,
        task_ids=task_ids[:5],
        tasks=len(task_ids),
        retrying=first.state == TrialState.PENDING,
        disposition=_disposition(first, retryable=retryable, chronic=most > 1),
        passes=most,
    )


def _disposition(
    row: Any, *, retryable: bool, chronic: bool
) -> Literal["retryable", "chronic", "fix first", "counted as 0"]:
    if row.state == TrialState.FINISHED:
        return "counted as 0"
    if not retryable:
        return "fix first"  # however often it failed alike: the same will fail in the same way
    return "chronic" if chronic else "retryable"


# A job's rows as the view people see; its state is what its runs say.


def job_view(row: JobRow, runs: Sequence[RunView], *, org: str) -> views.JobView:
    """One job with its runs, in order."""
    asked = row.arguments
    template = asked["template"]
    return views.JobView(
        id=row.id,
        name=row.name,
        state=job_state(runs, row.ends_at).value,
        created_at=row.created_at,
        started_by=row.started_by,
        concurrency=row.concurrency,
        metadata=row.about,
        source=asked["source"],
        trials=template["trials"],
        agent_timeout=template["agent_timeout"] or template["default_agent_timeout"],
        timeout_multiplier=template["timeout_multiplier"],
        ends_at=row.ends_at,
        runs=runs,
        version=row.version + sum(run.version for run in runs),
        org=org,
        digest=asked.get("digest"),
        stop_rule=row.stop_rule,
        decision=row.decision,
    )


def job_state(runs: Sequence[RunView], ends_at: float | None) -> JobState:
    """Return where a job stands, from its runs."""
    states = {RunState(run.state) for run in runs}
    if not states:
        return JobState.CANCELLED  # its runs were deleted one by one
    if not all(state.terminal for state in states):
        begun = any(run.started_at is not None for run in runs)
        return JobState.RUNNING if begun else JobState.QUEUED
    if RunState.ERROR in states:
        return JobState.FAILED
    if RunState.STOPPED in states:
        return JobState.TIMEOUT if _ran_out(runs, ends_at) else JobState.CANCELLED
    return JobState.COMPLETED


def _ran_out(runs: Sequence[RunView], ends_at: float | None) -> bool:
    """Return whether what was stopped ended after the job's time was over."""
    ended = [run.finished_at for run in runs if run.state == RunState.STOPPED and run.finished_at]
    return ends_at is not None and bool(ended) and max(ended) >= ends_at
