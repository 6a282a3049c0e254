"""A trial of a foreign results.jsonl as the store and a run's folder keep it."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valkyrie.digest import content_digest
from valkyrie.evals.foreign import source_text
from valkyrie.evals.foreign_runner_files import keep_below
from valkyrie.nouns import Category, Json, TrialState
from valkyrie.plain_text import safe
from valkyrie.store.layout import log_of
from valkyrie.trajectory.transcript import TRANSCRIPT
from valkyrie.trial.collect import AGENT, GRADING, OUTPUT_LIMITS

if TYPE_CHECKING:
    from valkyrie.evals.results import TrialFault, TrialResult
    from valkyrie.store.ingesting import EndedTrial

STAMP = "%Y-%m-%dT%H-%M-%S-%fZ"
"""Names of result folders, milliseconds last."""
LONGEST_SPAN_S = 10 * 365 * 86400.0
LONGEST_CAUSE = 200
LONGEST_MESSAGE = 4000
LONGEST_EVIDENCE = 16_000
"""Characters of what is stored; the record itself stays where it is."""
MOST_GRADERS = 200
_LATEST = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
_DEAREST = 1e9
"""US dollars of one trial; what is beyond is no cost."""


@dataclass(frozen=True, slots=True)
class Times:
    """When results came about, where their trials do not say."""

    at: float

    @classmethod
    def of(cls, file: Path) -> Times:
        """By the timestamp that names a folder above the file, else by the file's own time."""
        for folder in file.absolute().parents:
            try:
                return cls(datetime.strptime(folder.name, STAMP).replace(tzinfo=UTC).timestamp())
            except ValueError:
                continue
        return cls(file.stat().st_mtime)


def plain(trial: TrialResult) -> Json:
    """Everything a trial says, as plain data; where its files are is not part of that."""
    from valkyrie.evals.records import dump_line, to_line

    whole: Json = json.loads(dump_line(to_line(trial)))
    return {
        name: value
        for name, value in whole.items()
        if name not in ("sessionLog", "artifactDir", "patch", "log")
    }


def ended_trial(trial: TrialResult, times: Times) -> EndedTrial:
    """As the store has it. A fault becomes an error of its category, never a score of 0."""
    from valkyrie.store.ingesting import EndedTrial

    seconds = min(max(trial.duration_ms / 1000.0, 0.0), LONGEST_SPAN_S)
    started, finished = _span(trial, times, seconds)
    fault = trial.fault
    return EndedTrial(
        task_id=trial.stimulus,
        k=trial.index,
        digest=content_digest(
            {"stimulus": trial.stimulus, "asked": (trial.transcript or {}).get("stimulus")}
        ),
        started_at=started,
        finished_at=finished,
        phase=TrialState.IN_PROGRESS if fault and fault.kind == "execution" else TrialState.EVALUATING,
        score=None if fault else _number(trial.score),
        passed=None if fault else trial.passed,
        category=_category(fault) if fault else None,
        cause=source_text(fault.cause, LONGEST_CAUSE) if fault else None,
        message=source_text(fault.message, LONGEST_MESSAGE) if fault else None,
        result=_result(trial),
        timing={"agent": seconds, "total": max(seconds, finished - started)},
        cost=_cost(trial),
        usage=_usage(trial),
        family=trial.family,
        exit_code=trial.exit_code,
        exit_reason=trial.exit_reason and source_text(trial.exit_reason, LONGEST_CAUSE),
        evidence=_evidence(trial),
    )


def _evidence(trial: TrialResult) -> Json | None:
    """Why it is no pass, as whoever graded it said; how it was verified is not taken from a file."""
    if trial.passed or not trial.reason:
        return None
    return {"reason": safe(source_text(trial.reason, LONGEST_MESSAGE))}


def keep_files(trial: TrialResult, folder: Path, origin: str, *, source: Path) -> None:
    """Put its story, its log and its files where those of our own trials are; `origin`: said in the log."""
    agent, grading = folder / AGENT, folder / GRADING
    grading.mkdir(parents=True, exist_ok=True)
    if trial.transcript is not None:
        (grading / TRANSCRIPT).write_text(json.dumps(trial.transcript, ensure_ascii=False), encoding="utf-8")
    left: list[str] = []
    if log := beside(trial.session_log, source):
        left += _keep_file(log, agent / log.name)
    if (artifacts := beside(trial.artifacts, source)) and artifacts.is_dir():
        left += keep_below(artifacts, grading / "artifacts")
    if patch := beside(trial.patch, source):
        left += _keep_file(patch, grading / "workspace.patch")
    said = "".join(f"{line}\n" for line in (f"ingested from {origin}", *left))
    if trial.fault:
        said += f"{trial.fault.kind} error: {trial.fault.message}\n"
    for one in trial.graders:
        said += f"{'ok  ' if one.passed else 'FAIL'} {one.name}: {one.evidence}\n"
    if log := beside(trial.log, source):
        said += _log_text(log)
    log_of(folder).write_text(said, encoding="utf-8")


def _log_text(log: Path) -> str:
    """Return the log of the attempt that is ingested, within bounds."""
    if not log.is_file() or log.stat().st_size > OUTPUT_LIMITS.max_bytes:
        return f"{log.name} was left behind\n"
    return log.read_text("utf-8", "replace")


def beside(named: Path | None, source: Path) -> Path | None:
    """The file or folder a record names, where it belongs to the results; nothing else is ever taken."""
    if named is None:
        return None
    home = source.absolute().parent.resolve()
    found = (home / named).resolve()
    return found if found.is_relative_to(home) and found != home else None


def _keep_file(file: Path, target: Path) -> list[str]:
    """Copy one plain file, within bounds; return what the log says where it was left behind."""
    if not file.is_file():
        return []
    if file.stat().st_size > OUTPUT_LIMITS.max_bytes:
        return [f"{file.name} was left behind (too much)"]
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(file, target)
    return []


def _span(trial: TrialResult, times: Times, seconds: float) -> tuple[float, float]:
    """When it began and ended, as its record says, or as near as can be told."""
    about: Json = (trial.transcript or {}).get("metadata") or {}
    started, completed = moment(about.get("startedAt")), moment(about.get("completedAt"))
    finished = moment(trial.graded_at) or completed
    if started is None:
        started = finished - seconds if finished is not None else times.at
    if finished is None or not 0 <= finished - started <= LONGEST_SPAN_S:
        finished = started + seconds
    return started, finished


def moment(said: Any) -> float | None:
    """A point in time, as a number or as ISO text says it; None for one at which nobody ran anything."""
    try:
        if isinstance(said, int | float) and not isinstance(said, bool):
            at = said / 1000.0 if said > 1e11 else float(said)
        else:
            found = datetime.fromisoformat(str(said))
            at = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
    return at if 0 <= at <= _LATEST else None


def _category(fault: TrialFault) -> Category:
    try:
        return Category(fault.category)
    except ValueError:
        return Category.BENCHMARK if fault.kind == "grader" else Category.INFRASTRUCTURE


def _result(trial: TrialResult) -> Json:
    return {
        "graders": [
            one.to_json() | {"evidence": source_text(one.evidence, LONGEST_EVIDENCE)}
            for one in trial.graders[:MOST_GRADERS]
        ],
        "threshold": trial.threshold,
    }


def _usage(trial: TrialResult) -> Json | None:
    """Its tokens, in the words of our own runs."""
    metrics = trial.metrics
    tokens = metrics.get("tokenUsage")
    if not isinstance(tokens, dict) or not any(str(key).endswith("Tokens") for key in tokens):
        return None
    cached = _whole(tokens.get("cacheReadTokens", tokens.get("cacheRead")))
    return {
        "input_tokens": _whole(tokens.get("inputTokens")),
        "cached_tokens": cached,
        "output_tokens": _whole(tokens.get("outputTokens")),
        "cost": _cost(trial),
        "cost_source": "agent" if _cost(trial) is not None else None,
        "model": trial.model,
        "steps": _whole(metrics.get("turnCount")),
    }


def _cost(trial: TrialResult) -> float | None:
    found = trial.metrics.get("cost")
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= _DEAREST:
        return None
    return float(found)


def _whole(value: Any) -> int:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return min(max(int(value), 0), 2**53) if good else 0


def _number(value: float | None) -> float | None:
    """What is no number is not there."""
    return value if value is not None and math.isfinite(value) else None
