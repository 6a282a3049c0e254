"""A trial to read: what the agent was told, what it did step by step, and what came of it.

All of it is text of others: it is printed as text, never obeyed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from valkyrie.report.formats import dollars, safe
from valkyrie.report.layout import PLAIN, Ink, wrapped

if TYPE_CHECKING:
    from valkyrie.trajectory.kept import Account
    from valkyrie.trajectory.shape import ContentPart, Step

LONGEST_TEXT = 4000
"""Characters shown of one message or result; `run outputs` has all."""
MOST_LINES = 60
"""Lines shown of what tests printed."""
_INDENT = "  "


def story_lines(accounts: Sequence[Account], ink: Ink = PLAIN, width: int | None = None) -> Iterator[str]:
    """Return the instruction and every step of a trial, ready to print."""
    for one in accounts:
        if one.step:
            yield ink.paint(f"Step {safe(one.step)} of the task", "bold")
        if one.instruction and not _is_told(one):
            yield ink.paint("Instruction", "bold")
            yield from _body(one.instruction, width)
            yield ""
        if one.problem:
            yield ink.paint(safe(one.problem), "yellow")
        steps = one.trajectory.steps if one.trajectory else ()
        for number, step in enumerate(steps, 1):
            yield from _step_lines(step, number, len(steps), ink, width)
            yield ""


def tail_lines(text: str) -> Iterator[str]:
    """Return the last lines of what a program printed."""
    lines = safe(text, keep_lines=True).strip("\n").split("\n")
    if len(lines) > MOST_LINES:
        yield f"{_INDENT}… {len(lines) - MOST_LINES} lines before; valk run outputs has them"
    yield from (f"{_INDENT}{line}" for line in lines[-MOST_LINES:])


def _is_told(account: Account) -> bool:
    """Whether the agent's own account begins with the instruction."""
    steps = account.trajectory.steps if account.trajectory else ()
    said = [_plain(step.message) for step in steps if step.source == "user"]
    return any((account.instruction or "").strip() in text for text in said)


def _step_lines(step: Step, number: int, count: int, ink: Ink, width: int | None) -> Iterator[str]:
    about = [f"Step {number} of {count}", safe(step.source)]
    if step.model_name:
        about.append(safe(step.model_name))
    if step.metrics and step.metrics.prompt_tokens is not None:
        about.append(f"{step.metrics.prompt_tokens} + {step.metrics.completion_tokens or 0} tokens")
    if step.metrics and step.metrics.cost_usd is not None:
        about.append(dollars(step.metrics.cost_usd))
    if step.timestamp:
        about.append(safe(step.timestamp))
    yield ink.paint(" · ".join(about), "bold")
    if step.reasoning_content:
        yield from (ink.paint(line, "dim") for line in _body(step.reasoning_content, width))
    yield from _body(_plain(step.message), width)
    for call in step.tool_calls or ():
        yield f"{_INDENT}{ink.paint('▸ ' + safe(call.function_name), 'cyan')}"
        yield from (f"{_INDENT}{line}" for line in _arguments(call.arguments, width))
    for result in step.observation.results if step.observation else ():
        yield from (ink.paint(f"{_INDENT}{line}", "dim") for line in _body(_plain(result.content), width))


def _arguments(given: Mapping[str, object], width: int | None) -> Iterator[str]:
    for name, value in given.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        yield from _body(f"{name}: {text}", width)


def _plain(content: str | Sequence[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text or f"[{part.type}]" for part in content)


def _body(text: str, width: int | None) -> Iterator[str]:
    """Lines of a text from outside, indented; what is too long is cut with a word."""
    cut = len(text) - LONGEST_TEXT
    shown = text if cut <= 0 else text[:LONGEST_TEXT]
    for line in safe(shown, keep_lines=True).strip("\n").split("\n"):
        room = None if width is None else max(20, width - 2 * len(_INDENT))
        yield from (f"{_INDENT}{part}".rstrip() for part in (wrapped(line, room) if line else [""]))
    if cut > 0:
        yield f"{_INDENT}… {cut} characters more; valk run outputs has them"
