"""What is said of runs beside their progress: owner, cost, alarms, errors, and the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmark_runner.terminal import PLAIN, Column, Table, TerminalStyle, safe
from valkyrie.domain import DEFAULT_ORG, DEFAULT_PRIORITY, Category
from valkyrie.report.formats import (
    NONE,
    dollars,
    duration,
    errors_text,
    ids_preview,
    plural,
    short_id,
    trial_name,
)

if TYPE_CHECKING:
    from valkyrie.views import (
        CostView,
        ErrorGroup,
        ExecutorView,
        HookView,
        QueueEntry,
        QueueView,
        RunView,
        TrialView,
    )


Rows = list[tuple[str, str]]
_KINDS = {"slack": "Slack", "webhook": "Webhook", "lambda": "Lambda", "results": "Upload"}
_STATES = {"pending": "to be done", "done": "done"}


def owner_rows(run: RunView) -> Rows:
    """Return whose run it is, and its place in the queue; what is as always is not said."""
    rows: Rows = []
    if run.started_by:
        rows.append(("Started by", safe(run.started_by)))
    if run.org != DEFAULT_ORG:
        rows.append(("Organisation", safe(run.org)))
    if run.priority != DEFAULT_PRIORITY:
        rows.append(("Priority", f"{run.priority} (0 is first, 4 last)"))
    return rows


def cost_text(cost: CostView) -> str:
    """`$1.23 reported by 5 attempts; limit $10.00`."""
    said = f"{dollars(cost.total)} reported by {plural(cost.reports, 'attempt')}"
    limit = f"; limit {dollars(cost.limit)}" if cost.limit is not None else ""
    return (said if cost.reports else "nothing reported") + limit


def cost_rows(run: RunView) -> Rows:
    """Return what agents said they cost, and the limit."""
    return [("Cost", cost_text(run.cost))] if run.cost else []


def link_rows(run: RunView) -> Rows:
    """Return where else it can be looked at."""
    return [
        (safe(name).capitalize().replace("_url", " URL"), safe(where)) for name, where in run.links.items()
    ]


def hook_rows(hooks: Sequence[HookView], ink: TerminalStyle = PLAIN) -> Rows:
    """Return what was told to others, each with how that went."""
    return [
        (_KINDS.get(hook.kind, safe(hook.kind).capitalize()), _hook_text(hook, ink))
        for hook in sorted(hooks, key=lambda hook: hook.created_at)
    ]


def _hook_text(hook: HookView, ink: TerminalStyle) -> str:
    said = f": {safe(hook.detail)}" if hook.detail else ""
    if hook.state != "failed":
        return f"{_trigger(hook.trigger)}  {_STATES.get(hook.state, safe(hook.state))}{said}"
    tries = f" after {plural(hook.attempts, 'attempt')}" if hook.attempts else ""
    return ink.paint(f"{_trigger(hook.trigger)}  failed{tries}{said}", "red")


def _trigger(trigger: str) -> str:
    """`progress:25` as `at 25 %`, `ended:2` as `at end 2`."""
    kind, _, number = trigger.partition(":")
    if kind == "progress":
        return f"at {safe(number)} %"
    if kind == "ended":
        return "at the end" if number in ("", "1") else f"at end {safe(number)}"
    return safe(trigger)


def alarm_rows(alarms: Sequence[str], ink: TerminalStyle = PLAIN) -> Rows:
    """Return what a person should look at."""
    return [("Alarm", ink.paint(alarm, "yellow")) for alarm in alarms]


# What looks wrong with a run that goes on: slow trials, room that is not used, more errors than before.

LONG_S = 30 * 60.0
SETTLING_S = 60.0
"""A run that was just started has no work in hand yet, and that is no alarm."""
ACTIVE = ("BUILDING", "IN_PROGRESS", "EVALUATING")
ENDED = ("FINISHED", "ERROR")
LAST_ENDED = 20
"""So many trials that ended last are held against all before."""
_NAMED = 3


def alarms(run: RunView, trials: Sequence[TrialView], now: float) -> list[str]:
    """Sentences; none when all is well.

    `trials` are the longest active ones, some that are pending, and the last that ended.
    """
    if run.state != "IN_PROGRESS":
        return []
    return [*_long(run, trials, now), *_idle_room(run, trials, now), *_failing(run, trials)]


def _long(run: RunView, trials: Sequence[TrialView], now: float) -> list[str]:
    late = [
        (now - trial.started_at, trial)
        for trial in trials
        if trial.state in ACTIVE and trial.started_at is not None and now - trial.started_at > LONG_S
    ]
    if not late:
        return []
    late.sort(key=lambda item: -item[0])
    named = ", ".join(f"{trial_name(trial)} ({duration(seconds)})" for seconds, trial in late[:_NAMED])
    shown = sum(trial.state in ACTIVE for trial in trials)
    least = "at least " if len(late) == shown < _active(run) else ""
    more = f" and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
    verb = "is" if len(late) == 1 else "are"
    return [f"{least}{plural(len(late), 'trial')} {verb} under way for more than 30 min: {named}{more}"]


def _idle_room(run: RunView, trials: Sequence[TrialView], now: float) -> list[str]:
    pending, active = run.counts.get("PENDING", 0), _active(run)
    if not pending or run.executor != "alive" or run.note or now - run.created_at < SETTLING_S:
        return []
    seen = [trial for trial in trials if trial.state == "PENDING"]
    if seen and all(trial.retry_at is not None and trial.retry_at > now for trial in seen):
        return []  # each waits for its next attempt
    if not active:
        return [
            f"{plural(pending, 'trial')} pending and none in progress, although an executor is alive; "
            "valk queue status says what the others have"
        ]
    if active < run.concurrency:
        return [
            f"{active} of {run.concurrency} trials at once, although {pending} are pending: there is no room "
            "for more, or runs before it in the queue take it (valk queue status)"
        ]
    return []


def _failing(run: RunView, trials: Sequence[TrialView]) -> list[str]:
    """Say that most of what ended of late failed, and less of what ended before."""
    last = [trial for trial in trials if trial.state in ENDED]
    failed = sum(trial.state == "ERROR" for trial in last)
    if len(last) < LAST_ENDED or 2 * failed < len(last):
        return []
    before = sum(run.counts.get(state, 0) for state in ENDED) - len(last)
    failed_before = max(0, run.counts.get("ERROR", 0) - failed)
    if before > 0 and failed * before <= 2 * failed_before * len(last):
        return []
    earlier = f", {failed_before} of {before} before" if before > 0 else ""
    return [f"{failed} of the last {len(last)} trials that ended failed{earlier}; valk run errors says why"]


def _active(run: RunView) -> int:
    return sum(run.counts.get(state, 0) for state in ACTIVE)


# A run's errors as people read them: each group, the totals, and what to do.


def error_totals(groups: Sequence[ErrorGroup]) -> dict[str, int]:
    """Open errors by category, most first."""
    counted: Counter[str] = Counter()
    for group in _open(groups):
        counted[group.category] += group.count
    return dict(counted.most_common())


def disposition_totals(groups: Sequence[ErrorGroup]) -> dict[str, int]:
    """Open errors by what can be done about them."""
    totals = {"retryable": 0, "chronic": 0, "fix first": 0}
    for group in _open(groups):
        totals[group.disposition] += group.count
    return totals


def error_rows(group: ErrorGroup, ink: TerminalStyle = PLAIN) -> list[tuple[str, str]]:
    """One group of alike errors, for a panel."""
    ways = {
        "retryable": "retryable: trying again may well help",
        "chronic": f"chronic: failed alike in {group.passes} passes",
        "fix first": "fix first: something must be changed before a retry",
        "counted as 0": "counted as 0: graded, because the agent brought this about",
    }
    way = "retrying: tried again by themselves, after a pause" if group.retrying else ways[group.disposition]
    zero = group.category == Category.AGENT and not group.retrying and group.disposition != "counted as 0"
    return [
        ("Trials", ink.paint(str(group.count), "yellow" if group.retrying else "red")),
        ("Message", safe(group.message)),
        ("Tasks", ids_preview(group.task_ids, group.tasks or len(group.task_ids))),
        ("Disposition", way),
        *([("Score", "counted as 0: the agent brought this about")] if zero else []),
    ]


def advice(run_id: str, groups: Sequence[ErrorGroup]) -> list[str]:
    """Return what stands open, and what to do about it: a sentence each."""
    opened = _open(groups)
    if not opened:
        return []
    totals = disposition_totals(groups)
    said = [f"{errors_text(error_totals(groups))}."]
    if totals["retryable"]:
        said.append(f"{totals['retryable']} may go away: {_retry_commands(run_id, opened)}")
    if totals["chronic"]:
        many = "is" if totals["chronic"] == 1 else "are"
        said.append(
            f"{totals['chronic']} {many} chronic, failed alike in two passes or more: a retry alone will not "
            "help, look at their logs."
        )
    if totals["fix first"]:
        needs = "needs" if totals["fix first"] == 1 else "need"
        said.append(f"{totals['fix first']} {needs} something changed first, as the message says.")
    return said


def _retry_commands(run_id: str, opened: Sequence[ErrorGroup]) -> str:
    """The retry that takes only what may go away, as far as categories can tell."""
    retryable = list(dict.fromkeys(group.category for group in opened if group.disposition == "retryable"))
    command = f"valk run retry {short_id(run_id)}"
    if all(group.disposition == "retryable" for group in opened) and len(retryable) > 1:
        return command
    return " and ".join(f"{command} --category {safe(category)}" for category in retryable)


def _open(groups: Sequence[ErrorGroup]) -> list[ErrorGroup]:
    return [group for group in groups if not group.retrying and group.disposition != "counted as 0"]


# The queue as tables: runs in the order they are served, and who works them off.


def queue_table(queue: QueueView, ink: TerminalStyle = PLAIN, *, now: float, whole_ids: bool = True) -> Table:
    """Open runs, the most urgent first."""
    columns = [
        Column("ID"),
        Column("Priority", "right"),
        Column("Status"),
        Column("Pending", "right"),
        Column("Active", "right"),
        Column("Concurrency", "right"),
        Column("Agent", shrink=True),
        Column("Benchmark", shrink=True),
        Column("Age", "right", optional=True),
        Column("Started By", shrink=True, optional=True),
        Column("Note", shrink=True, optional=True),
    ]
    return Table(columns, [_entry(entry, ink, now, whole_ids) for entry in queue.entries])


def _entry(entry: QueueEntry, ink: TerminalStyle, now: float, whole_ids: bool) -> list[str]:
    return [
        entry.run_id if whole_ids else short_id(entry.run_id),
        str(entry.priority),
        ink.state(entry.state),
        str(entry.pending),
        str(entry.active),
        str(entry.concurrency),
        safe(entry.agent),
        safe(entry.benchmark),
        duration(now - entry.created_at),
        safe(entry.started_by) if entry.started_by else NONE,
        ink.paint(safe(entry.note), "yellow") if entry.note else NONE,
    ]


def executor_table(queue: QueueView, *, now: float) -> Table:
    """The executors that live."""
    columns = [
        Column("Executor", shrink=True),
        Column("Host", shrink=True, optional=True),
        Column("PID", "right", optional=True),
        Column("Version"),
        Column("Trials", "right", optional=True),
        Column("Up", "right"),
        Column("Heartbeat", "right"),
    ]
    return Table(columns, [_executor(executor, now) for executor in queue.executors])


def _executor(executor: ExecutorView, now: float) -> list[str]:
    # Of a server others share, host, process and trials are not told: they are empty.
    told = bool(executor.host)
    return [
        safe(executor.id),
        safe(executor.host) if told else NONE,
        str(executor.pid) if executor.pid else NONE,
        safe(executor.version),
        str(executor.active) if told else NONE,
        duration(now - executor.started_at),
        f"{duration(now - executor.heartbeat_at)} ago",
    ]


def queue_sentence(queue: QueueView) -> str:
    """The whole queue in one line."""
    pending, active = sum(e.pending for e in queue.entries), sum(e.active for e in queue.entries)
    executors = plural(len(queue.executors), "executor") if queue.executors else "no executor"
    if not queue.entries:
        return f"The queue is empty; {executors} at work."
    return f"{plural(len(queue.entries), 'run')}: {pending} pending, {active} active; {executors} at work."


# What a run can show before it is run.


def gaps_text(found: Mapping[str, Any]) -> str:
    """`30 tasks × 1 trial: gaps of about 16 to 26 points; 100 tasks: 9 to 14`."""
    more = found["more"]
    each = f"{plural(found['tasks'], 'task')} × {plural(found['trials'], 'trial')}"
    past = found["past_agents"]
    source = f" (from {plural(past, 'agent')} in past runs)" if past else ""
    return f"{each}: gaps of about {_range(found)} points; {more['tasks']:,} tasks: {_range(more)}{source}"


def _range(found: Mapping[str, Any]) -> str:
    low, high = (max(1, round(100 * found[end])) for end in ("low", "high"))
    return str(low) if low == high else f"{low} to {high}"
