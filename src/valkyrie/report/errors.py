"""A run's errors as people read them: each group, the totals, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from valkyrie.nouns import Category
from valkyrie.report.formats import errors_text, ids_preview, safe, short_id
from valkyrie.report.layout import PLAIN, Ink

if TYPE_CHECKING:
    from valkyrie.views import ErrorGroup


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


def error_rows(group: ErrorGroup, ink: Ink = PLAIN) -> list[tuple[str, str]]:
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
    """What stands open, and what to do about it: a sentence each."""
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
