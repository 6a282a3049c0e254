"""One line per trial, or per stimulus of a spec: CSV for spreadsheets, JSON for programs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from valkyrie.evals.exporting.protocol import Exported, ExportRequest
from valkyrie.evals.exporting.registry import check_options
from valkyrie.evals.exporting.reports import write_text
from valkyrie.evals.results import Invocation, TrialResult, Verification
from valkyrie.nouns import Json
from valkyrie.report.formats import safe
from valkyrie.report.tables import system_changes
from valkyrie.specs.model import EvalSpec, Stimulus

TRIAL_COLUMNS = (
    "eval",
    "model",
    "executor",
    "variant",
    "stimulus",
    "trial",
    "outcome",
    "passed",
    "score",
    "duration_s",
    "attempts",
    "input_tokens",
    "output_tokens",
    "cost",
    "failed_graders",
    "error_category",
    "error",
    "run_id",
    "confirmed",
    "score_confirmed",
    "verified_in",
    "open_to_tampering",
    "system_files_changed",
    "counted_as_zero",
    "evidence",
    "ingested",
)
STIMULUS_COLUMNS = ("eval", "stimulus", "turns", "prompt", "graders", "tags", "runs", "timeout_s", "file")
_FORMULA = re.compile(r"[\s\ufeff\u200b]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
"""A cell that begins so is a formula to some spreadsheet."""


def export_csv(request: ExportRequest) -> Exported:
    """results.csv, or stimuli.csv for specs."""
    check_options(request.options, (), "csv")
    if request.results is not None:
        rows: Iterable[Json] = map(trial_row, trials_of(request.results))
        return Exported([write_text(request.output / "results.csv", _csv(TRIAL_COLUMNS, rows))])
    rows = ({**one, "tags": json.dumps(one["tags"])} for one in _stimuli(request.specs))
    return Exported([write_text(request.output / "stimuli.csv", _csv(STIMULUS_COLUMNS, rows))])


def export_jsonl(request: ExportRequest) -> Exported:
    """results.jsonl, as `valkyrie eval` writes it, or stimuli.jsonl for specs."""
    from valkyrie.evals.records import dump_line, to_line

    check_options(request.options, (), "jsonl")
    if request.results is not None:
        lines = [dump_line(to_line(trial)) for trial in trials_of(request.results)]
        return Exported([write_text(request.output / "results.jsonl", _joined(lines))])
    lines = [dump_line(_whole(spec, one)) for spec in request.specs for one in spec.stimuli]
    return Exported([write_text(request.output / "stimuli.jsonl", _joined(lines))])


def trials_of(invocation: Invocation) -> Iterator[TrialResult]:
    """All trials of all evals, in order."""
    for one in invocation.evals:
        yield from one.trials


def trial_row(trial: TrialResult) -> Json:
    """One trial as a row of a table."""
    from valkyrie.evals.figures import trial_outcome

    metrics: Json = (trial.transcript or {}).get("metrics") or {}
    tokens: Json = metrics.get("tokenUsage") or {}
    failed = [one.name for one in trial.graders if one.status == "ok" and not one.passed]
    return {
        "eval": trial.eval_name,
        "model": trial.model,
        "executor": trial.executor,
        "variant": trial.variant,
        "stimulus": trial.stimulus,
        "trial": trial.index,
        "outcome": str(trial_outcome(trial)),
        "passed": None if trial.passed is None else str(trial.passed).lower(),
        "score": trial.score,
        "duration_s": round(trial.duration_ms / 1000, 3),
        "attempts": trial.attempts,
        "input_tokens": tokens.get("inputTokens"),
        "output_tokens": tokens.get("outputTokens"),
        "cost": metrics.get("cost"),
        "failed_graders": ", ".join(failed),
        "error_category": trial.fault.category if trial.fault else None,
        "error": trial.fault.message if trial.fault else None,
        "run_id": trial.run_id,
        "ingested": "true" if trial.ingested else None,
        **_verified(trial.verification),
    }


def _verified(found: Verification | None) -> Json:
    """How the score was verified; cells are empty where nothing is known."""
    if found is None:
        return {}
    evidence = found.evidence or {}
    row: Json = {
        "confirmed": None if found.confirmed is None else str(found.confirmed).lower(),
        "score_confirmed": found.score_confirmed,
        "verified_in": evidence.get("mode"),
        "open_to_tampering": str(found.open_to_tampering).lower() if evidence else None,
        "system_files_changed": system_changes(evidence) if evidence else None,
        "counted_as_zero": found.cause,
        "evidence": json.dumps(evidence, ensure_ascii=False) if evidence else None,
    }
    if found.cause:
        row |= {"error_category": found.category, "error": found.message}
    return row


def _stimuli(specs: Sequence[EvalSpec]) -> Iterator[Json]:
    for spec in specs:
        for one in spec.stimuli:
            yield {
                "eval": spec.name,
                "stimulus": one.name,
                "turns": len(one.turns),
                "prompt": one.prompt,
                "graders": ", ".join(grader.label for grader in one.graders),
                "tags": {key: list(values) for key, values in one.tags.items()},
                "runs": spec.defaults.runs if one.runs is None else one.runs,
                "timeout_s": one.timeout or spec.defaults.timeout,
                "file": str(spec.file),
            }


def _whole(spec: EvalSpec, one: Stimulus) -> Json:
    [row] = _stimuli([EvalSpec(spec.name, spec.file, (one,), spec.defaults)])
    return {
        "type": "stimulus",
        **row,
        "turns": list(one.turns),
        "rubric": list(one.rubric),
        "graders": [
            {"type": grader.type, "name": grader.name, "turn": grader.turn, "config": grader.config}
            for grader in one.graders
        ],
    }


def _csv(columns: Sequence[str], rows: Iterable[Json]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        value = safe(value.replace("\0", "\ufffd"), keep_lines=True)
        return f"'{value}" if _FORMULA.match(value) else value
    return value


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
