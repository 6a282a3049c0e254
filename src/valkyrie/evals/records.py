"""Trial-result records: one JSON object per line and trial, as results.jsonl and `--output jsonl` have it."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, get_args

from benchmark_runner.terminal import printable_json
from valkyrie.domain import Json
from valkyrie.errors import UserError
from valkyrie.evals.results import ScoreVerification, TrialFault, TrialResult, invocation_of
from valkyrie.grade.protocol import ConstraintResult, GraderResult, Kind, Status

__all__ = ["RecordError", "dump_line", "from_line", "invocation_of", "iter_lines", "read_lines", "to_line"]

TYPE = "trial-result"
LONGEST_LINE = 64 * 1024 * 1024
"""Bytes of one record that is read; a trajectory of that size is a mistake."""
Source = Path | str | IO[bytes] | Iterable[str]
"""A file, or the text itself, or its lines."""
_UNNAMED = "eval"
_DEEPEST = 200
_GRADER_WORDS = {"kind": get_args(Kind), "status": get_args(Status)}
_SLOT = ("runId", "eval", "evalName", "variant", "model", "stimulus")
_PATHS = {
    "sessionLog": "session_log",
    "artifactDir": "artifacts",
    "patch": "patch",
    "log": "log",
    "workspacePath": "workspace",
}
"""Keys of records with paths, and where a result has them."""
_ROUNDED = 1e-9
"""How far a mean of fractions may be off its scale."""
_compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class RecordError(UserError):
    """A line of a results file is no record; the message names the line."""

    default_cause = "records"


def to_line(trial: TrialResult) -> Json:
    """The record of one trial; `dump_line` makes it text."""
    record: Json = {
        **_names(trial),
        **_ending(trial),
        "gradeResult": _grade_result(trial),
        "experiment": trial.experiment,
        "verification": trial.verification.to_json() if trial.verification else None,
        **{key: str(path) for key, name in _PATHS.items() if (path := getattr(trial, name)) is not None},
    }
    return {key: value for key, value in record.items() if value is not None} | {
        "trajectory": trial.transcript
    }


def _names(trial: TrialResult) -> Json:
    """Return which trial of which eval it is."""
    return {
        "type": TYPE,
        "itemId": trial_key(trial),
        "variant": trial.variant,
        "stimulus": trial.stimulus,
        "status": "success" if trial.fault is None or trial.fault.kind == "grader" else "error",
        "durationMs": trial.duration_ms,
        "trialIndex": trial.index,
        "totalTrials": trial.planned,
        "runId": trial.run_id,
        "shardKey": trial_key(trial) if trial.experiment else None,
        "eval": trial.eval_name,
        "evalName": trial.eval_name,
        "evalFile": trial.eval_file,
        "evalFilePath": trial.eval_file,
        "model": trial.model,
        "executor": trial.executor,
    }


def _ending(trial: TrialResult) -> Json:
    """Return how it ended, and what it used."""
    ended: Json = {
        "attempts": trial.attempts,
        "fraction": None if trial.fraction else False,
        "ingested": trial.ingested or None,
        "family": trial.family,
        "reason": trial.reason,
        "exit": _exit(trial),
        "usage": trial.usage,
        "job": trial.job,
    }
    if (fault := trial.fault) is not None:
        ended["error"] = None if fault.kind == "grader" else fault.message
        told = {"kind": fault.kind, "category": fault.category, "cause": fault.cause}
        ended["fault"] = {**told, "message": fault.message}
    return ended


def _exit(trial: TrialResult) -> Json | None:
    if trial.exit_code is None and trial.exit_reason is None:
        return None
    return {"code": trial.exit_code, "reason": trial.exit_reason}


def trial_key(trial: TrialResult) -> str:
    """Return what names a trial in every record of its eval: `evals/a.yaml::main::gpt-5.5::fix::trial-0`."""
    file = (trial.experiment or {}).get("evalFile") or trial.eval_file or trial.eval_name
    model = trial.model or "default"
    return "::".join((str(file), trial.variant, model, trial.stimulus, f"trial-{trial.index}"))


def _grade_result(trial: TrialResult) -> Json | None:
    graded = trial.passed is not None
    if not (graded or trial.graders or (trial.fault and trial.fault.kind == "grader")):
        return None
    found: Json = {
        "name": "aggregate",
        "kind": "code",
        "passed": bool(trial.passed),
        "score": trial.score if graded else 0.0,
        "evidence": _evidence(trial),
        "stimulusName": trial.stimulus,
        "trajectoryId": (trial.transcript or {}).get("id"),
        "timestamp": trial.graded_at,
        "details": [grader.to_json() for grader in trial.graders],
    }
    if trial.constraints:
        found["constraints"] = [one.to_json() for one in trial.constraints]
    if not graded:
        found["status"] = "error"
    if trial.threshold is not None:
        found["threshold"] = trial.threshold
    return found


def _evidence(trial: TrialResult) -> str:
    if trial.fault is not None:
        return trial.fault.message
    if not trial.graders and not trial.constraints and trial.run_id is not None:
        return trial.reason or ("passed" if trial.passed else "not passed")
    failed = [grader.name for grader in trial.graders if grader.status == "ok" and not grader.passed]
    spoken = sum(1 for grader in trial.graders if grader.status == "ok")
    told = [f"{spoken - len(failed)} of {spoken} graders passed"]
    told += [f"failed: {', '.join(failed)}"] if failed else []
    if bounds := trial.constraints:
        told.append(f"constraints: {sum(one.held for one in bounds)} of {len(bounds)} held")
    return "; ".join(told)


def dump_line(record: Json) -> str:
    """One line of text, without its end; whatever an agent put into its trajectory, it is JSON."""
    try:
        text = _compact(record)
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(record, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError, TypeError):
        text = json.dumps(_plain(record), separators=(",", ":"))
    return printable_json(text)


def _plain(value: Any, depth: int = 0) -> Any:
    """The value as strict JSON: no number that is none, nothing too deep, nothing foreign."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth > _DEEPEST:
        return None
    if isinstance(value, dict):
        return {str(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def read_lines(source: Source, *, trajectories: bool = True) -> list[TrialResult]:
    """Return all trial results of a file or text, foreign ones too; records of other types are passed
    over."""
    return list(iter_lines(source, trajectories=trajectories))


def read_results_file(file: Path) -> list[TrialResult]:
    """Read a results.jsonl; UserError names the file besides the line."""
    try:
        return read_lines(file)
    except RecordError as error:
        raise UserError(f"{file}: {error}", cause=error.cause) from error


def iter_lines(source: Source, *, trajectories: bool = True) -> Iterator[TrialResult]:
    """The same one by one; without `trajectories` those are let go of as soon as they are read."""
    seen: Counter[tuple[Any, ...]] = Counter()
    for number, line in _numbered(source):
        record = _parsed(line, number)
        if record.get("type", TYPE) != TYPE:
            continue
        slot = tuple(str(record.get(key)) for key in _SLOT)
        try:
            trial = from_line(record, index=seen[slot], trajectory=trajectories)
        except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
            raise RecordError(f"Line {number} is no trial result: {error}.") from None
        seen[slot] += 1
        yield trial


def _numbered(source: Source) -> Iterator[tuple[int, str]]:
    """Its lines that hold something, numbered from 1; a file is never read whole."""
    if isinstance(source, Path):
        try:
            with source.open("rb") as file:
                yield from _numbered(file)
        except OSError as error:
            raise RecordError(f"{source} cannot be read: {error.strerror or error}.") from None
        return
    if isinstance(source, str):
        source = io.StringIO(source)
    lines: Iterable[str | bytes] = _bounded(source) if isinstance(source, io.BufferedIOBase) else source
    for number, line in enumerate(lines, 1):
        try:
            text = line if isinstance(line, str) else line.decode()
        except UnicodeDecodeError:
            raise RecordError(f"Line {number} is not UTF-8 text.") from None
        text = text.removeprefix("\ufeff").strip() if number == 1 else text.strip()
        if text:
            yield number, text


def _bounded(file: io.BufferedIOBase) -> Iterator[bytes]:
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise RecordError(f"Line {number} is longer than {LONGEST_LINE // 2**20} MiB; no record is.")
        yield line


def _parsed(line: str, number: int) -> Json:
    try:
        record = json.loads(line)
        if "\\ud" in line.lower():
            # Half a character, as a text cut by a program in JavaScript ends with: nothing stores one.
            record = json.loads(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))
    except ValueError:
        raise RecordError(f"Line {number} is not JSON; one JSON object per line is expected.") from None
    except RecursionError:
        raise RecordError(f"Line {number} is nested too deeply.") from None
    if not isinstance(record, dict):
        raise RecordError(f"Line {number} is not a JSON object.")
    return record


def from_line(record: Json, *, index: int = 0, trajectory: bool = True) -> TrialResult:
    """One record, read back; `index` is its trial's where the record names none.

    Raises TypeError, ValueError, OverflowError or KeyError for what cannot be a record. Scores are finite,
    and from 0 to 1 unless the record says that they are on another scale (`"fraction": false`).
    """
    story = _object(record.get("trajectory"))
    return TrialResult(
        **_which(record, story, index),
        **_graded(record),
        **_exit_of(record),
        **_places(record),
        duration_ms=_finite(record.get("durationMs") or 0.0, "durationMs"),
        transcript=story if trajectory else None,
        attempts=int(record.get("attempts") or 1),
        planned=_count(record.get("totalTrials")),
        ingested=record.get("ingested") is True,
        family=_text(record.get("family")),
        reason=_text(record.get("reason")),
        usage=_object(record.get("usage")),
        job=_object(record.get("job")),
    )


def _which(record: Json, story: Json | None, index: int) -> Json:
    """Return which trial of which eval a record is of."""
    about = _object((story or {}).get("metadata")) or {}
    experiment = _object(record.get("experiment"))
    within = experiment or {}
    return {
        "eval_name": _first(record.get("eval"), record.get("evalName"), within.get("name")) or _UNNAMED,
        "eval_file": _first(record.get("evalFile"), record.get("evalFilePath"), within.get("evalFile")),
        "stimulus": _stimulus(record, story),
        "index": index if record.get("trialIndex") is None else int(record["trialIndex"]),
        "model": _first(record.get("model"), about.get("model")),
        "executor": _first(record.get("executor"), about.get("executor")),
        "variant": _text(record.get("variant")) or "main",
        "run_id": _text(record.get("runId")),
        "experiment": experiment,
    }


def _graded(record: Json) -> Json:
    """Return what graders said, or why they did not."""
    grade = _object(record.get("gradeResult"))
    verification = _verification(record)
    fault = _fault(record, grade) or (verification.fault if verification else None)
    fraction = record.get("fraction") is not False
    score, passed = _verdict(grade, fault, fraction=fraction)
    found: Json = {"fault": fault, "verification": verification, "fraction": fraction}
    found |= {"score": score, "passed": passed}
    if grade:
        found["graders"] = _graders(grade)
        found["constraints"] = ConstraintResult.read_all(grade.get("constraints"))
        found["graded_at"] = _text(grade.get("timestamp"))
        found["threshold"] = _number(grade.get("threshold"), "threshold")
    return found


def _places(record: Json) -> Json:
    return {name: _path(record.get(key)) for key, name in _PATHS.items()}


def _exit_of(record: Json) -> Json:
    told = _object(record.get("exit")) or {}
    code = told.get("code")
    whole = isinstance(code, int) and not isinstance(code, bool) and abs(code) < 2**31
    return {"exit_code": code if whole else None, "exit_reason": _text(told.get("reason"))}


def _verdict(
    grade: Json | None, fault: TrialFault | None, *, fraction: bool
) -> tuple[float | None, bool | None]:
    """Return score and verdict. An end that the agent brought about counts as 0, whoever wrote it down and
    whether or not they graded it; any other fault counts nowhere."""
    if fault is not None and not fault.by_agent:
        return None, None
    if grade is None or grade.get("status") == "error":
        return (None, None) if fault is None else (0.0, False)
    passed, score = _flag(grade.get("passed"), "passed"), _number(grade.get("score"), "score")
    if score is None:
        return float(passed), passed
    if fraction and not -_ROUNDED <= score <= 1 + _ROUNDED:
        raise ValueError(
            f"score {score:g} is off the scale from 0 to 1; results on another scale say "
            '"fraction": false in each record'
        )
    return (min(1.0, max(0.0, score)) if fraction else score), passed


def _verification(record: Json) -> ScoreVerification | None:
    told = _object(record.get("verification"))
    if told is None:
        return None
    confirmed = told.get("confirmed")
    counted = told.get("countedAsZero") is True
    return ScoreVerification(
        confirmed=confirmed if isinstance(confirmed, bool) else None,
        score_confirmed=_number(told.get("scoreConfirmed"), "scoreConfirmed"),
        evidence=_object(told.get("evidence")),
        category=_text(told.get("category")) if counted else None,
        cause=(_text(told.get("cause")) or "agent") if counted else None,
        message=_text(told.get("message")) if counted else None,
    )


def _fault(record: Json, grade: Json | None) -> TrialFault | None:
    told = _object(record.get("fault")) or {}
    if told.get("kind") in ("execution", "grader"):
        kind, message = told["kind"], str(told.get("message", ""))
    elif record.get("status") == "error":
        error = record.get("error")
        kind, message = (
            "execution",
            str(error.get("message", error) if isinstance(error, dict) else error or ""),
        )
    elif grade and grade.get("status") == "error":
        kind, message = "grader", str(grade.get("evidence") or "")
    else:
        return None
    category, cause = told.get("category"), told.get("cause")
    if category is None and _ran_out_of_time(record):
        category, cause = "agent", "agent_timeout"
    return TrialFault(
        kind, message or "no reason given", str(category or "infrastructure"), str(cause or "internal")
    )


def _ran_out_of_time(record: Json) -> bool:
    """Return whether a record of another tool says that its agent was ended by the time limit."""
    story = _object(record.get("trajectory")) or {}
    return story.get("endReason") in ("agent_timeout", "timeout")


def _graders(grade: Json) -> tuple[GraderResult, ...]:
    """Its graders; a foreign record without details speaks as one."""
    details = grade.get("details")
    found = [one for one in details if isinstance(one, dict)] if isinstance(details, list) else []
    if not found and grade.get("name") not in (None, "aggregate"):
        found = [{**grade, "details": ()}]
    return tuple(map(grader_of, found))


def grader_of(told: Json) -> GraderResult:
    """Return what a grader found, whoever wrote it down; ValueError for a verdict or a score that is none."""
    details = told.get("details")
    known: Json = {name: told[name] for name in ("kind", "status") if told.get(name) in _GRADER_WORDS[name]}
    return GraderResult(
        name=_text(told.get("name")) or "grader",
        type=_text(told.get("graderType")) or _text(told.get("name")) or "grader",
        passed=_flag(told.get("passed"), "a grader's passed"),
        score=_finite(told.get("score") or 0.0, "a grader's score"),
        evidence=_text(told.get("evidence")) or "",
        weight=_finite(1.0 if told.get("weight") is None else told["weight"], "a grader's weight"),
        details=[one for one in details if isinstance(one, dict)] if isinstance(details, list) else (),
        usage=_object(told.get("usage")),
        **known,
    )


def _stimulus(record: Json, story: Json | None) -> str:
    named = record.get("stimulus") or (story or {}).get("stimulus")
    named = named.get("name") if isinstance(named, dict) else named
    if not isinstance(named, str) or not named:
        raise ValueError("it names no stimulus")
    return named


def _object(value: Any) -> Json | None:
    return value if isinstance(value, dict) else None


def _first(*values: Any) -> str | None:
    """The first that is a text."""
    return next(filter(None, map(_text, values)), None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: Any, what: str) -> float | None:
    return None if value is None else _finite(value, what)


def _finite(value: Any, what: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{what} is {str(value)[:40]!r}, no finite number")
    return float(value)


def _flag(value: Any, what: str) -> bool:
    """Return a verdict; text is none, for `"false"` would pass."""
    if value is None or value in (0, 1):
        return bool(value)
    raise ValueError(f"{what} is {str(value)[:40]!r}, neither true nor false")


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _path(value: Any) -> Path | None:
    return Path(value) if isinstance(value, str) and value else None
