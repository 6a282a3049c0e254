"""What a run's panel says beside its progress: whose it is, what it cost, who was told, what looks wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from valkyrie.nouns import DEFAULT_ORG, DEFAULT_PRIORITY
from valkyrie.report.formats import dollars, plural, safe
from valkyrie.report.layout import PLAIN, Ink

if TYPE_CHECKING:
    from valkyrie.views import CostView, HookView, RunView

Rows = list[tuple[str, str]]
_KINDS = {"slack": "Slack", "webhook": "Webhook", "lambda": "Lambda", "results": "Upload"}
_STATES = {"pending": "to be done", "done": "done"}


def owner_rows(run: RunView) -> Rows:
    """Whose run it is, and its place in the queue; what is as always is not said."""
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
    """What agents said they cost, and the limit."""
    return [("Cost", cost_text(run.cost))] if run.cost else []


def link_rows(run: RunView) -> Rows:
    """Where else it can be looked at."""
    return [
        (safe(name).capitalize().replace("_url", " URL"), safe(where)) for name, where in run.links.items()
    ]


def hook_rows(hooks: Sequence[HookView], ink: Ink = PLAIN) -> Rows:
    """What was told to others, each with how that went."""
    return [
        (_KINDS.get(hook.kind, safe(hook.kind).capitalize()), _hook_text(hook, ink))
        for hook in sorted(hooks, key=lambda hook: hook.created_at)
    ]


def _hook_text(hook: HookView, ink: Ink) -> str:
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


def alarm_rows(alarms: Sequence[str], ink: Ink = PLAIN) -> Rows:
    """What a person should look at."""
    return [("Alarm", ink.paint(alarm, "yellow")) for alarm in alarms]
