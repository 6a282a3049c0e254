"""A run that ended elsewhere as what this store keeps of one: the run, its trials, their files."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark_runner.terminal import safe
from valkyrie.domain import Category, Json, TrialState, content_digest
from valkyrie.errors import UserError
from valkyrie.evals.records import dump_line, to_line
from valkyrie.store.ingested_runs import EndedTrial
from valkyrie.store.layout import log_of
from valkyrie.tracker.checks import LONGEST_TEXT, MOST_TRIALS
from valkyrie.trajectory.transcript import TRANSCRIPT
from valkyrie.trial.outputs import AGENT, GRADING, OUTPUT_LIMITS

if TYPE_CHECKING:
    from valkyrie.evals.results import TrialFault, TrialResult


_SPACE = uuid.UUID("1e4be8c9-33f8-4f6c-9d15-1c5a3c1f8f0e")
"""Ids of ingested runs are made in it: the same results are the same run."""


@dataclass(frozen=True, slots=True)
class ForeignTrial:
    """One trial of such a run."""

    ended: EndedTrial
    keep: Callable[[Path, str], None]
    """Puts its story, its log and its files where those of our own trials are: a folder that is not there
    yet. The text says where they come from."""


@dataclass(frozen=True, slots=True)
class ForeignScore:
    """What whoever made the run says of all of it."""

    final: Json
    """`final_score` and `properties`."""
    graded: float | None
    """Over what was graded only."""


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """One run as some folder has it."""

    file: Path
    """The file that says so; errors name it."""
    identity: str
    """The same for the same run, whatever it says now."""
    digest: str
    """Of everything it says, wherever it stands."""
    label: str
    """For people."""
    benchmark: str
    agent: str
    model: str | None
    trials: Sequence[ForeignTrial]
    dataset: str = "default"
    variant: str = "main"
    run_id: str | None = None
    """What whoever made it calls it."""
    about: Json = field(default_factory=dict)
    """What else is remembered of where it comes from."""
    started_at: float | None = None
    """Where it says so; else when its first trial began."""
    fraction: bool = True
    """Scores are 0..1."""
    score: ForeignScore | None = None
    """None: the mean over its tasks."""
    notices: Sequence[str] = ()
    job: Json | None = None
    """The job it was part of: `id`, `name`, and its `position` in it."""
    sent_as: str | None = None
    """What whoever sent the file calls it, where it was sent here."""

    @property
    def source(self) -> str:
        """The file as people know it."""
        return self.sent_as or str(self.file)

    def id_here(self, org_id: str) -> str:
        """The id it has, or would have, in this store."""
        return str(uuid.uuid5(_SPACE, f"{org_id} {self.identity}"))

    def job_here(self, org_id: str) -> tuple[str, str, int] | None:
        """Return id here, name and position of the job it was part of; None where it was of none."""
        told = self.job or {}
        job_id, name, position = told.get("id"), told.get("name"), told.get("position")
        if not isinstance(job_id, str) or not isinstance(name, str) or not name.strip():
            return None
        place = position if isinstance(position, int) and 0 <= position < MOST_TRIALS else 0
        return str(uuid.uuid5(_SPACE, f"{org_id} job {job_id}")), safe(name)[:LONGEST_TEXT], place

    @property
    def errors(self) -> int:
        return sum(1 for trial in self.trials if trial.ended.category is not None)

    def check(self) -> None:
        """UserError for what no run can have."""
        if len(self.trials) > MOST_TRIALS:
            raise UserError(
                f"{self.source}: {len(self.trials):,} trials; a run can have {MOST_TRIALS:,}.",
                cause="too_large",
            )
        names = (self.benchmark, self.agent, self.model, self.dataset, self.variant, self.run_id)
        for text in (*names, *(trial.ended.task_id for trial in self.trials)):
            if text is not None and (len(text) > LONGEST_TEXT or "\0" in text):
                raise UserError(
                    f"{self.source}: {text[:60]!r}… is no name; one has at most {LONGEST_TEXT:,} characters.",
                    cause="records",
                )


def source_text(text: str, most: int) -> str:
    """A foreign text as it can be stored and shown: bounded, and in characters every database takes."""
    clean = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return clean if len(clean) <= most else f"{clean[:most]}… ({len(clean):,} characters)"


# The files of a benchmark runner's folder: read within bounds, and kept like those of our own trials.

LARGEST_FILE = 64 * 1024 * 1024
"""Bytes of one JSON file; an answer of that size is a mistake."""
LONGEST_SHOWN = 64 * 1024
"""Characters of a question or an answer in the log; the whole is in the files."""
LOGS = "agent_logs"
OUTPUT = "agent_output"
"""Where the answers of our own trials come out as well."""


def read_plain(file: Path) -> bytes:
    """A file's content; UserError for a link, for what is no file, and for what is too large."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as opened:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{file} is no plain file; a runner writes one.", cause="records")
            content = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        what = "is a link; a runner's folder holds none" if file.is_symlink() else "cannot be read"
        raise UserError(f"{file} {what} ({error.strerror}).", cause="records") from None
    if len(content) > LARGEST_FILE:
        raise UserError(f"{file} has more than {LARGEST_FILE >> 20} MiB.", cause="too_large")
    return content


def keep_task(target: Path, origin: str, *, folder: Path, task_id: str) -> None:
    """Keep one task's answer, evaluation and logs as those of an attempt."""
    output, grading = target / OUTPUT, target / GRADING
    output.mkdir(parents=True)
    grading.mkdir()
    told = read_plain(folder / "eval.json")
    (grading / "eval.json").write_bytes(told)
    lines = [f"ingested from {origin}", f"task {task_id}"]
    if (answer := folder / "generation.json").exists():
        content = read_plain(answer)
        (output / "generation.json").write_bytes(content)
        lines += _keep_answer(json.loads(content), output)
    lines.append(f"evaluation: {_shown(json.loads(told))}")
    lines += keep_below(folder / LOGS, target / AGENT)
    log_of(target).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _keep_answer(generation: dict[str, Any], output: Path) -> list[str]:
    """Write the answer by itself; what the log says of question and answer."""
    answer = generation.get("data", generation.get("answer"))
    if isinstance(answer, str):
        (output / "answer.txt").write_text(answer, encoding="utf-8", errors="replace")
    else:
        (output / "answer.json").write_text(json.dumps(answer) + "\n", encoding="utf-8")
    said = []
    if generation.get("question"):
        said.append(f"question: {_shown(generation['question'])}")
    said.append(f"answer ({generation.get('status')}): {_shown(answer)}")
    if generation.get("error"):
        said.append(f"error: {_shown(generation['error'])}")
    return said


def _shown(value: Any) -> str:
    return source_text(value if isinstance(value, str) else json.dumps(value), LONGEST_SHOWN)


def keep_below(logs: Path, target: Path) -> list[str]:
    """Copy the plain files of a folder, within bounds; return what the log says of what was left behind."""
    left: dict[str, int] = {}
    size = entries = 0
    for name, file in _below(logs):
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode):
            left["no plain files"] = left.get("no plain files", 0) + 1
            continue
        size, entries = size + status.st_size, entries + 1
        if size > OUTPUT_LIMITS.max_bytes or entries > OUTPUT_LIMITS.max_entries:
            left["too much"] = left.get("too much", 0) + 1
            size -= status.st_size
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / name, follow_symlinks=False)
    return [f"{count} entries of {logs.name} were left behind ({why})" for why, count in left.items()]


def _below(logs: Path) -> Iterator[tuple[Path, Path]]:
    """Everything but folders below a folder that is itself no link, by relative name."""
    if logs.is_symlink() or not logs.is_dir():
        return
    for parent, folders, names in os.walk(logs):
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        for name in sorted([*names, *linked]):
            file = Path(parent, name)
            yield file.relative_to(logs), file


# A trial of a foreign results.jsonl as the store and a run's folder keep it.

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
    whole: Json = json.loads(dump_line(to_line(trial)))
    return {
        name: value
        for name, value in whole.items()
        if name not in ("sessionLog", "artifactDir", "patch", "log")
    }


def ended_trial(trial: TrialResult, times: Times) -> EndedTrial:
    """As the store has it. A fault becomes an error of its category, never a score of 0."""
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
    """Return why it is no pass, as whoever graded it said; how it was verified is not taken from a file."""
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
    """Return what is no number is not there."""
    return value if value is not None and math.isfinite(value) else None
