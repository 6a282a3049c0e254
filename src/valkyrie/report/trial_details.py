"""One trial as people read it: what the agent did, the verdict, and the evidence behind it."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from benchmark_runner.terminal import PLAIN, Column, Table, TerminalStyle, safe, wrapped
from valkyrie.domain import Json
from valkyrie.report.formats import (
    NONE,
    OPEN,
    dollars,
    duration,
    moment,
    number,
    plural,
    short_id,
    size,
    trial_name,
)
from valkyrie.report.run_details import Rows
from valkyrie.report.tables import (
    is_open,
    is_unconfirmed,
    system_changes,
    trial_error,
    trial_exit,
    trial_seconds,
)

if TYPE_CHECKING:
    from valkyrie.trajectory.model import ContentPart, Step
    from valkyrie.trajectory.records import AgentAccount
    from valkyrie.views import AttemptView, RunView, TrialView


_KINDS = ("added", "changed", "removed")


def trial_rows(run: RunView, trial: TrialView, ink: TerminalStyle = PLAIN, now: float | None = None) -> Rows:
    """The verdict and all that a reader of it should know, for a panel."""
    now = time.time() if now is None else now
    rows: Rows = [
        ("Run", f"{run.id}  {safe(run.agent)} on {safe(run.benchmark)}"),
        ("Task", ink.paint(trial_name(trial), "bold")),
        ("State", ink.state(trial.state)),
        ("Verdict", _verdict(trial, fraction=run.score.fraction)),
    ]
    if trial.state == "FINISHED":
        rows.append(("Verified", _verified(trial, fraction=run.score.fraction)))
    if is_open(trial):
        rows.append(("Caution", ink.paint(_caution(trial.evidence or {}), "yellow")))
    if trial.cause is not None:
        rows.append(("Cause", trial_error(trial, now)))
    elif trial.reason:
        rows.append(("Reason", safe(trial.reason)))
    rows += evidence_rows(trial.evidence)
    if (ended := trial_exit(trial)) != NONE:
        rows.append(("Agent's exit", ended))
    return [*rows, ("Attempts", str(trial.attempts)), ("Took", duration(trial_seconds(trial, now)))]


def _verdict(trial: TrialView, *, fraction: bool) -> str:
    if trial.state != "FINISHED":
        return "counted as 0" if trial.counts_as_zero else "none"
    said = {True: "passed", False: "not passed", None: ""}[trial.passed]
    zero = "counted as 0" if trial.counts_as_zero else ""
    return ", ".join(word for word in (number(trial.score, fraction=fraction), said, zero) if word)


def _verified(trial: TrialView, *, fraction: bool) -> str:
    if trial.counts_as_zero:
        return "no test gave this score; it is 0 because of its cause"
    if trial.confirmed:
        return "in a fresh sandbox, in which no process of the agent ever ran: confirmed"
    if trial.confirmed is None:
        return "not known"
    seen = (trial.evidence or {}).get("fresh")
    fresh = f" (a fresh one gave {number(seen.get('score'), fraction=fraction)})" if seen else ""
    doubt = ": unconfirmed" if is_unconfirmed(trial) else ""
    return f"only in the sandbox the agent left{doubt}{fresh}"


def _caution(evidence: Json) -> str:
    beside = ", beside the agent's processes" if evidence.get("keep_processes") else ""
    return f"its tests ran in the sandbox the agent left{beside}: {OPEN}"


def evidence_rows(evidence: Json | None) -> Rows:
    """Return what was found while it was verified; nothing where nothing was."""
    evidence = evidence or {}
    rows: Rows = []
    if system_changes(evidence):
        counts = (f"{evidence['system'].get(kind) or 0} {kind}" for kind in _KINDS)
        rows.append(("System files", f"{', '.join(counts)} by the agent"))
    if left := (evidence.get("not_carried") or {}).get("count"):
        rows.append(("Not carried", f"{plural(left, 'path')} of the agent's work"))
    if control := evidence.get("control"):
        rows.append(("Control", _control(control)))
    if work := evidence.get("work"):
        kept = "kept" if work.get("kept") else "not kept"
        rows.append(
            ("Work", f"{plural(work.get('files') or 0, 'file')}, {size(work.get('bytes') or 0)}, {kept}")
        )
    return rows


def _control(control: Json) -> str:
    verdict = control.get("verdict")
    if not verdict:
        return "the same tests give no verdict without the agent's work either"
    score = verdict.get("score") if isinstance(verdict, dict) else verdict
    return f"the same tests give a verdict without the agent's work: score {safe(score)}"


def evidence_tables(evidence: Json | None) -> list[tuple[str, Table]]:
    """Paths, each list with its title: system files that differ, and work that stayed behind."""
    evidence = evidence or {}
    found = []
    for title, name, what in (
        ("System files the agent changed", "system", "Change"),
        ("Work that was not carried", "not_carried", "Why"),
    ):
        paths = (evidence.get(name) or {}).get("paths") or []
        if paths:
            table = Table([Column(what), Column("Path", shrink=True)])
            table.rows += [[safe(why), safe(path)] for path, why in paths]
            found.append((title, table))
    return found


def attempt_table(attempts: Sequence[AttemptView], *, fraction: bool) -> Table:
    """Return every attempt of a trial, one line each."""
    table = Table(
        [
            Column("Attempt", "right"),
            Column("Outcome"),
            Column("Score", "right"),
            Column("Started"),
            Column("Cause", shrink=True),
            Column("Log", shrink=True),
        ]
    )
    for one in attempts:
        table.rows.append(
            [
                str(one.number),
                safe(one.outcome or one.phase),
                number(one.score, fraction=fraction),
                moment(one.started_at),
                safe(one.cause) if one.cause else NONE,
                safe(one.log) if one.log else NONE,
            ]
        )
    return table


def trial_commands(run: RunView, trial: TrialView) -> Rows:
    """Ready to paste: what one may want to look at next."""
    run_id, task = short_id(run.id), shlex.quote(safe(trial.task_id))
    repetition = f" -k {trial.k}" if trial.k else ""
    rows = [("Log", f"valk run logs {run_id} {task}{repetition}")]
    if not run.ingested and "variant" not in run.arguments:
        rows.append(("Look inside", f"valk run debug {run_id} {task} --again"))
    if trial.state in ("FINISHED", "ERROR"):
        rows.append(("Outputs", f"valk run outputs {run_id} --task-ids {task}"))
    return rows


# A trial to read: what the agent was told, what it did step by step, and what came of it.
#
# All of it is text of others: it is printed as text, never obeyed.

LONGEST_TEXT = 4000
"""Characters shown of one message or result; `run outputs` has all."""
MOST_LINES = 60
"""Lines shown of what tests printed."""
_INDENT = "  "


def story_lines(
    accounts: Sequence[AgentAccount], ink: TerminalStyle = PLAIN, width: int | None = None
) -> Iterator[str]:
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
        for place, step in enumerate(steps, 1):
            yield from _step_lines(step, place, len(steps), ink, width)
            yield ""


def tail_lines(text: str) -> Iterator[str]:
    """Return the last lines of what a program printed."""
    lines = safe(text, keep_lines=True).strip("\n").split("\n")
    if len(lines) > MOST_LINES:
        yield f"{_INDENT}… {len(lines) - MOST_LINES} lines before; valk run outputs has them"
    yield from (f"{_INDENT}{line}" for line in lines[-MOST_LINES:])


def _is_told(account: AgentAccount) -> bool:
    """Return whether the agent's own account begins with the instruction."""
    steps = account.trajectory.steps if account.trajectory else ()
    said = [_plain(step.message) for step in steps if step.source == "user"]
    return any((account.instruction or "").strip() in text for text in said)


def _step_lines(step: Step, number: int, count: int, ink: TerminalStyle, width: int | None) -> Iterator[str]:
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
