"""The queue as tables: runs in the order they are served, and who works them off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from valkyrie.report.formats import NONE, duration, plural, safe, short_id
from valkyrie.report.layout import PLAIN, Column, Ink, Table

if TYPE_CHECKING:
    from valkyrie.views import ExecutorView, QueueEntry, QueueView


def queue_table(queue: QueueView, ink: Ink = PLAIN, *, now: float, whole_ids: bool = True) -> Table:
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


def _entry(entry: QueueEntry, ink: Ink, now: float, whole_ids: bool) -> list[str]:
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
