"""One trial as people read it: its verdict, where that was verified, and what the agent changed."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from valkyrie.nouns import Json
from valkyrie.report.formats import (
    NONE,
    OPEN,
    duration,
    moment,
    number,
    plural,
    safe,
    short_id,
    size,
    trial_name,
)
from valkyrie.report.layout import PLAIN, Column, Ink, Table
from valkyrie.report.run_details import Rows
from valkyrie.report.tables import (
    counts_as_zero,
    is_open,
    is_unconfirmed,
    system_changes,
    trial_error,
    trial_exit,
    trial_seconds,
)

if TYPE_CHECKING:
    from valkyrie.views import AttemptView, RunView, TrialView

_KINDS = ("added", "changed", "removed")


def trial_rows(run: RunView, trial: TrialView, ink: Ink = PLAIN, now: float | None = None) -> Rows:
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
        return "counted as 0" if counts_as_zero(trial) else "none"
    said = {True: "passed", False: "not passed", None: ""}[trial.passed]
    zero = "counted as 0" if counts_as_zero(trial) else ""
    return ", ".join(word for word in (number(trial.score, fraction=fraction), said, zero) if word)


def _verified(trial: TrialView, *, fraction: bool) -> str:
    if counts_as_zero(trial):
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
    """What was found while it was verified; nothing where nothing was."""
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
    """Every attempt of a trial, one line each."""
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
