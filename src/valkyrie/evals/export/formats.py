"""What exporters are given, and those that write lines and reports."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmark_runner.terminal import printable_json, safe
from valkyrie import plugins
from valkyrie.artifact_store.disk import disk_errors, whole_file
from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.evals.figures import trial_outcome
from valkyrie.evals.junit import junit_xml
from valkyrie.evals.markdown import markdown
from valkyrie.evals.records import dump_line, to_line
from valkyrie.evals.result_folder import JUNIT, REPORT, Key, folder_names
from valkyrie.evals.results import Invocation, ScoreVerification, SpecResult, StimulusResult, TrialResult
from valkyrie.report.tables import system_changes
from valkyrie.specs.model import EvalSpec, Stimulus
from valkyrie.text import did_you_mean
from valkyrie.trajectory.conversion import trajectory_of
from valkyrie.trajectory.records import from_record


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What to export, and where to."""

    output: Path
    """A folder; what is in it already stays unless a file of the same name is written."""
    specs: Sequence[EvalSpec] = ()
    results: Invocation | None = None
    """What an eval came to; then `specs` is empty."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What was said after `--`."""
    grader_plugins: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    written: Sequence[Path]
    """Files, or folders of tasks."""
    warnings: Sequence[str] = ()
    """What could not be taken along, and why."""
    next_step: str = ""
    """The command one needs now."""


Exporter = Callable[[ExportRequest], Exported]
"""Raises UsageError for options it does not know."""


# Exporters by name: built in, of an installed package, or `module:function`.


ENTRY_POINTS = "valkyrie.exporters"
_BUILT_IN = {
    "harbor": "valkyrie.evals.export.harbor:export_harbor",
    "junit": "valkyrie.evals.export.formats:export_junit",
    "markdown": "valkyrie.evals.export.formats:export_markdown",
    "csv": "valkyrie.evals.export.formats:export_csv",
    "jsonl": "valkyrie.evals.export.formats:export_jsonl",
    "atif": "valkyrie.evals.export.formats:export_atif",
}


def names() -> list[str]:
    """Return every exporter that can be named."""
    return [*_BUILT_IN, *plugins.names(ENTRY_POINTS)]


def find_exporter(name: str) -> Exporter:
    """The exporter called so. Raises UsageError with what there is."""
    if name not in names() and not plugins.is_target(name):
        raise UsageError(
            f"unknown exporter {name!r}; there is {', '.join(names())}, or `module:function`."
            f"{did_you_mean(name, names())}"
        )
    found: Exporter = plugins.load(_BUILT_IN.get(name, name), group=ENTRY_POINTS)
    return found


def check_options(given: Mapping[str, str], known: tuple[str, ...], exporter: str) -> None:
    """Refuse options after `--` that nobody reads."""
    for name in given:
        if name not in known:
            what = f"it takes {', '.join(known)}" if known else "it takes none"
            raise UsageError(f"{exporter} has no option {name!r}; {what}.{did_you_mean(name, known)}")


# Export results as CSV, JSON lines, JUnit, Markdown and ATIF.


def export_junit(request: ExportRequest) -> Exported:
    """eval-results.junit.xml; stimuli of a spec that nobody ran are skipped test cases."""
    check_options(request.options, (), "junit")
    found = request.results or _not_run(request)
    return Exported([write_text(request.output / JUNIT, junit_xml(found))])


def export_markdown(request: ExportRequest) -> Exported:
    """eval-results.md."""
    check_options(request.options, (), "markdown")
    if request.results is None:
        raise UsageError("markdown reports results; name a run, a job or a folder with a results.jsonl.")
    return Exported([write_text(request.output / REPORT, markdown(request.results))])


def _not_run(request: ExportRequest) -> Invocation:
    return Invocation([_skipped(spec) for spec in request.specs], name="export")


def _skipped(spec: EvalSpec) -> SpecResult:
    return SpecResult(
        name=spec.name,
        file=str(spec.file),
        model=spec.defaults.model,
        executor=spec.defaults.executor or "",
        stimuli=[StimulusResult(one.name, one.prompt, (), 0) for one in spec.stimuli],
        skipped="exported, not run",
    )


def write_text(path: Path, text: str) -> Path:
    """Write a file, whole or not at all."""
    return write_lines(path, (text,))


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Write a file as its lines come, whole or not at all."""
    with disk_errors(f"write to {path.parent}", "output"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.writelines(line.encode("utf-8", "replace") for line in lines)
    return path


# One line per trial, or per stimulus of a spec: CSV for spreadsheets, JSON for programs.

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
    "cached_tokens",
    "output_tokens",
    "cost",
    "exit_code",
    "exit_reason",
    "reason",
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
        return Exported([write_lines(request.output / "results.csv", _csv(TRIAL_COLUMNS, rows))])
    rows = ({**one, "tags": json.dumps(one["tags"])} for one in _stimuli(request.specs))
    return Exported([write_lines(request.output / "stimuli.csv", _csv(STIMULUS_COLUMNS, rows))])


def export_jsonl(request: ExportRequest) -> Exported:
    """results.jsonl, as `valkyrie eval` writes it, or stimuli.jsonl for specs."""
    check_options(request.options, (), "jsonl")
    if request.results is not None:
        lines = (f"{dump_line(to_line(trial))}\n" for trial in trials_of(request.results))
        return Exported([write_lines(request.output / "results.jsonl", lines)])
    lines = (f"{dump_line(_whole(spec, one))}\n" for spec in request.specs for one in spec.stimuli)
    return Exported([write_lines(request.output / "stimuli.jsonl", lines)])


def trials_of(invocation: Invocation) -> Iterator[TrialResult]:
    """Yield all trials of all evals, in order, without holding those of a store."""
    for one in invocation.evals:
        yield from one.each_trial()


def trial_row(trial: TrialResult) -> Json:
    """One trial as a row of a table."""
    metrics = trial.metrics
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
        "cached_tokens": tokens.get("cacheReadTokens"),
        "output_tokens": tokens.get("outputTokens"),
        "cost": metrics.get("cost"),
        "exit_code": trial.exit_code,
        "exit_reason": trial.exit_reason,
        "reason": trial.reason,
        "failed_graders": ", ".join(failed),
        "error_category": trial.fault.category if trial.fault else None,
        "error": trial.fault.message if trial.fault else None,
        "run_id": trial.run_id,
        "ingested": "true" if trial.ingested else None,
        **_verified(trial.verification),
    }


def _verified(found: ScoreVerification | None) -> Json:
    """Return how the score was verified; cells are empty where nothing is known."""
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


def _csv(columns: Sequence[str], rows: Iterable[Json]) -> Iterator[str]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        cells = map(row.get, columns)
        writer.writerow([_cell(value) if isinstance(value, str) else value for value in cells])
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def _cell(value: str) -> str:
    value = safe(value.replace("\0", "\ufffd") if "\0" in value else value, keep_lines=True)
    return f"'{value}" if not value[:1].isalnum() and _FORMULA.match(value) else value


# What agents did in each trial, as ATIF: one file per trial, for whatever reads that format.


def export_atif(request: ExportRequest) -> Exported:
    """`<eval>-<model>-<stimulus>-trial-N.json` for every trial that has a trajectory."""
    check_options(request.options, (), "atif")
    if request.results is None:
        raise UsageError(
            "atif exports results; name a run, a job or a results folder instead of --eval-spec."
        )
    trials = list(trials_of(request.results))
    names = folder_names({_key(one): "-".join(part for part in _key(one)[:-1] if part) for one in trials})
    written = [
        write_text(request.output / f"{names[_key(one)]}.json", _atif(one))
        for one in trials
        if one.transcript
    ]
    without = [
        f"{one.stimulus}, trial {one.index}: it has no trajectory" for one in trials if not one.transcript
    ]
    return Exported(written, without)


def _key(trial: TrialResult) -> Key:
    """Return which trial it is; of a job that has several agents, also whose."""
    agent = "" if trial.job is None else trial.executor or ""
    named = (trial.variant, trial.eval_name, agent, trial.model or "", trial.stimulus, f"trial-{trial.index}")
    return (*named, trial.run_id or "")


def _atif(trial: TrialResult) -> str:
    document = trajectory_of(from_record(trial.transcript or {})).to_json()
    if trial.ingested:
        document["extra"] = {**(document.get("extra") or {}), "ingested": True}
    return printable_json(json.dumps(document, ensure_ascii=False, indent=1)) + "\n"
