"""The folder an eval leaves: results, reports, session logs and kept files. Written again, it is the same."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

from valkyrie.benchmarks.eval_spec.turn_patches import turn_patches
from valkyrie.errors import UsageError
from valkyrie.evals.figures import figures
from valkyrie.evals.markdown import markdown
from valkyrie.evals.names import Key, folder_names
from valkyrie.evals.otlp import span_line
from valkyrie.evals.records import dump_line, to_line
from valkyrie.evals.results import EvalResult, Invocation, TrialResult
from valkyrie.evals.session_logs import write_session_log
from valkyrie.keeping.folders import disk_errors, remove_parts, whole_file
from valkyrie.nouns import Json

RESULTS, REPORT, JUNIT = "results.jsonl", "eval-results.md", "eval-results.junit.xml"
SUMMARY, SPANS = "run-summary.jsonl", "otel-spans.jsonl"
SESSION_LOGS, ARTIFACTS, PATCH = "executor-session-logs", "artifacts", "workspace.patch"
MOST_FILES = 10_000
MOST_BYTES = 1024**3


@dataclass(frozen=True, slots=True)
class Written:
    """Where things are."""

    folder: Path
    results: Path
    report: Path
    junit: Path | None = None

    def places(self) -> dict[str, Path]:
        """Each by its name."""
        found = {"folder": self.folder, "results": self.results, "report": self.report}
        return found | ({"junit": self.junit} if self.junit else {})


def folder_stamp(now: datetime) -> str:
    """`2025-01-15T10-30-00-005Z`."""
    utc = now.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H-%M-%S}-{utc.microsecond // 1000:03d}Z"


def open_folder(output_dir: Path, now: datetime, name: str | None = None) -> Path:
    """A new folder for one invocation, named after the time unless it has a name; one that is there is never
    taken."""
    with disk_errors(f"write to {output_dir}", "output"):
        if name is not None:
            folder = output_dir / name
            if folder.exists():
                raise UsageError(
                    f"--run-id: there are results at {folder} already; choose another id, or go on with "
                    f"them: --resume {folder}"
                )
            folder.mkdir(parents=True)
            return folder
        output_dir.mkdir(parents=True, exist_ok=True)
        while True:
            folder = output_dir / folder_stamp(now)
            try:
                folder.mkdir()
            except FileExistsError:
                now += timedelta(milliseconds=1)
            else:
                return folder


def write_all(
    invocation: Invocation, *, folder: Path | None = None, junit: bool = False, spans: bool = False
) -> Written:
    """Write everything into the invocation's folder (or `folder`); each file is there whole or not at all.

    With `spans` its trials are written as OpenTelemetry traces, too.
    """
    place = folder or invocation.folder
    if place is None:
        raise ValueError("an invocation without a folder cannot be written")
    written = Written(place, place / RESULTS, place / REPORT, place / JUNIT if junit else None)
    with disk_errors(f"write to {place}", "output"):
        remove_parts(place)
        with whole_file(written.results) as file, _spans_file(place, spans) as traces:
            for trial in write_trials(invocation, place):
                record = to_line(trial)
                file.write(dump_line(record).encode() + b"\n")
                if traces is not None:
                    traces.write(dump_line(span_line(record)).encode() + b"\n")
        _write_text(written.report, markdown(invocation))
        if invocation.id is not None:
            _write_text(place / SUMMARY, dump_line(run_summary(invocation)) + "\n")
        if written.junit is not None:
            from valkyrie.evals.junit import junit_xml

            _write_text(written.junit, junit_xml(invocation))
    return written


@contextmanager
def _spans_file(place: Path, wanted: bool) -> Iterator[IO[bytes] | None]:
    if not wanted:
        yield None
        return
    with whole_file(place / SPANS) as file:
        yield file


def run_summary(invocation: Invocation) -> Json:
    """What an eval came to, in one record."""
    evals = [
        {
            "evalName": one.name,
            "evalFile": one.file,
            "variant": one.variant,
            "model": one.model,
            "executor": one.executor,
            "runId": one.run_id,
            "overallScore": figures([one]).score,
            "threshold": one.threshold,
            "scoringApplied": one.graded and one.skipped is None,
            "passed": one.passed,
            "stimuliRun": sum(1 for stimulus in one.stimuli if stimulus.trials),
            "stimuliTotal": len(one.stimuli),
        }
        for one in invocation.evals
    ]
    told = {trial.run_id for one in invocation.evals for trial in one.trials}
    return {
        "type": "run-summary",
        "runId": next(iter(told)) if len(told) == 1 else invocation.id,
        "name": invocation.name,
        "passed": all(one.passed for one in invocation.evals),
        "hadExecutionErrors": any(
            trial.fault is not None and trial.fault.kind == "execution"
            for one in invocation.evals
            for trial in one.trials
        ),
        "evals": evals,
    }


def write_trials(invocation: Invocation, folder: Path) -> Iterator[TrialResult]:
    """Write each trial's session log and kept files; the trial with paths relative to `folder` comes back."""
    below = trial_folders(invocation)
    for result in invocation.evals:
        for stimulus in result.stimuli:
            for trial in stimulus.trials:
                own = below[_trial_key(result, stimulus.name)] / f"trial-{trial.index}"
                threshold = stimulus.threshold if trial.threshold is None else trial.threshold
                yield _write_trial(trial, folder, own, threshold)


class LiveResults:
    """The records of trials that have ended so far, appended to `results.jsonl` as they do.

    Whatever ends the eval, the file has what ended before; `write_all` writes it anew in the plan's order.
    """

    def __init__(self, planned: Invocation, folder: Path) -> None:
        """`planned` has every eval and stimulus, as the folders of trials are named after them."""
        self._folder = folder
        self._below = trial_folders(planned)
        self._path = folder / RESULTS

    def begin(self, trials: Iterable[tuple[TrialResult, EvalResult]]) -> list[TrialResult]:
        """Let the file have these trials alone; they come back as it has them."""
        kept = [self._kept(trial, of) for trial, of in trials]
        with disk_errors(f"write to {self._folder}", "output"), whole_file(self._path) as file:
            file.write(b"".join(map(_record_line, kept)))
        return kept

    def write(self, trials: Iterable[tuple[TrialResult, EvalResult]]) -> list[TrialResult]:
        """Append these trials; they come back as the file has them."""
        kept = [self._kept(trial, of) for trial, of in trials]
        with disk_errors(f"write to {self._folder}", "output"), self._path.open("ab") as file:
            file.write(b"".join(map(_record_line, kept)))
        return kept

    def _kept(self, trial: TrialResult, of: EvalResult) -> TrialResult:
        own = self._below[_trial_key(of, trial.stimulus)] / f"trial-{trial.index}"
        threshold = of.threshold if trial.threshold is None else trial.threshold
        return _write_trial(trial, self._folder, own, threshold)


def _record_line(trial: TrialResult) -> bytes:
    return dump_line(to_line(trial)).encode() + b"\n"


def trial_folders(invocation: Invocation) -> dict[Key, Path]:
    """`executor-session-logs/<eval>/<model>/<stimulus>` of each, by eval, file, variant, model, stimulus."""
    evals = folder_names({_eval_key(result): result.name for result in invocation.evals}, nameless="eval")
    models: dict[Key, dict[Key, str]] = {}
    stimuli: dict[Key, dict[Key, str]] = {}
    for result in invocation.evals:
        eval_key, model = _eval_key(result), result.model or ""
        models.setdefault(eval_key, {})[(model,)] = model
        names = stimuli.setdefault((*eval_key, model), {})
        names.update({(stimulus.name,): stimulus.name for stimulus in result.stimuli})
    found: dict[Key, Path] = {}
    for eval_key, wanted in models.items():
        for model_key, model_folder in folder_names(wanted, nameless="default").items():
            above = Path(SESSION_LOGS, evals[eval_key], model_folder)
            for stimulus_key, name in folder_names(
                stimuli[(*eval_key, *model_key)], nameless="stimulus"
            ).items():
                found[(*eval_key, *model_key, *stimulus_key)] = above / name
    return found


def _eval_key(result: EvalResult) -> Key:
    return (result.name, result.file, result.variant)


def _trial_key(result: EvalResult, stimulus: str) -> Key:
    return (*_eval_key(result), result.model or "", stimulus)


def _write_trial(trial: TrialResult, folder: Path, own: Path, threshold: float | None) -> TrialResult:
    if trial.kept_in == folder:
        return trial
    place = folder / own
    _make(place)
    patch = _keep_file(trial.patch, place / PATCH)
    if trial.patch is not None and patch:
        for source in turn_patches(trial.patch.parent).values():
            _keep_file(source, place / source.name)
    kept, whole = _keep_tree(trial.artifacts, place / ARTIFACTS)
    log = write_session_log(trial, place, {} if whole else {"artifactsTruncated": True})
    return replace(
        trial,
        session_log=own / log.name if log else None,
        artifacts=own / ARTIFACTS if kept else None,
        patch=own / PATCH if patch else None,
        threshold=threshold,
        kept_in=folder,
    )


def _make(place: Path) -> None:
    """A trial's folder, mostly in a new one of its stimulus, in one that is there."""
    try:
        place.parent.mkdir()
        place.mkdir()
    except OSError:
        place.mkdir(parents=True, exist_ok=True)


def _write_text(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode("utf-8", "replace"))


def _keep_file(source: Path | None, target: Path) -> bool:
    """Whether there was a plain file to copy; whatever else stands there is not followed."""
    if source is None or not _is_plain(source):
        return False
    if not (target.exists() and source.samefile(target)):
        with whole_file(target) as file, source.open("rb") as given:
            shutil.copyfileobj(given, file)
    return True


def _keep_tree(source: Path | None, target: Path) -> tuple[bool, bool]:
    """Copy a folder's plain files in place of an older copy: whether there was one, and whether all fit."""
    if source is None or source.is_symlink() or not source.is_dir():
        return False, True
    if target.exists() and source.samefile(target):
        return True, True
    part = Path(tempfile.mkdtemp(prefix=".artifacts-", dir=target.parent))
    try:
        whole = _copy_plain_files(source, part)
        part.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        part.replace(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True, whole


def _copy_plain_files(source: Path, target: Path) -> bool:
    """Copy within bounds, links and the like left out; False where the bounds were reached."""
    files = size = 0
    for above, folders, names in os.walk(source):
        folders.sort()
        below = target / Path(above).relative_to(source)
        for name in sorted(names):
            given = Path(above, name)
            if not _is_plain(given):
                continue
            status = given.lstat()
            files, size = files + 1, size + status.st_size
            if files > MOST_FILES or size > MOST_BYTES:
                return False
            below.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(given, below / name, follow_symlinks=False)
            (below / name).chmod(0o755 if status.st_mode & stat.S_IXUSR else 0o644)
    return True


def _is_plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
