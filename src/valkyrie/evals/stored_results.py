"""What an eval came to, from the store and the folders of its runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from valkyrie.artifact_store.logs import Transcripts
from valkyrie.benchmarks.eval_spec.evaluation import ARTIFACTS, GRADERS, PATCH
from valkyrie.benchmarks.eval_spec.snapshots import folder_name
from valkyrie.domain import Category, Json, TrialState, ended_by_agent
from valkyrie.evals.plan import PlannedEval, trials_of
from valkyrie.evals.results import SpecResult, StimulusResult, TrialFault, TrialResult, fault_kind
from valkyrie.grade.protocol import ConstraintResult, GraderResult
from valkyrie.plan import named_family
from valkyrie.store import Store, trials
from valkyrie.store.journal import Finish
from valkyrie.store.layout import DataFolder, RunFolder
from valkyrie.store.leases import Leased
from valkyrie.trajectory.transcript import TRANSCRIPT
from valkyrie.trial.attempt import COUNTED_AS_ZERO
from valkyrie.trial.outputs import AGENT, GRADING

_COUNTED = frozenset({"agent_timeout", "agent_failed", *COUNTED_AS_ZERO})
"""Causes of a score of 0 that no grader gave: the agent left nothing that could be graded."""


@dataclass(frozen=True, slots=True)
class FinishedTrial:
    """A trial that has ended, as the store has it."""

    task_id: str
    k: int
    attempts: int
    state: TrialState
    score: float | None
    passed: bool | None
    result: Json | None
    timing: Mapping[str, float]
    finished_at: float
    category: str | None
    cause: str | None
    message: str | None


def ended_now(leased: Leased, finish: Finish) -> FinishedTrial:
    """Return what the store was just told of a trial: it need not be asked for it."""
    return FinishedTrial(
        leased.task_id,
        leased.k,
        leased.number,
        finish.after,
        finish.score,
        finish.passed,
        finish.result,
        finish.timing,
        finish.at,
        finish.category,
        finish.cause,
        finish.message,
    )


@dataclass(frozen=True)
class Loader:
    """Reads the results of one stored eval."""

    store: Store
    data: DataFolder
    planned: PlannedEval
    run_id: str
    told_run_id: str | None = None
    """What records call the run, if somebody named it."""

    def eval(self, known: Mapping[str, StimulusResult]) -> SpecResult:
        """Return all of it, as far as it has come; what is known already is not read again."""
        names = list(self._counts)
        rest = {one.name: one for one in self.stimuli([name for name in names if name not in known])}
        return SpecResult(
            name=self.planned.spec.name,
            file=str(self.planned.item.file),
            model=self.planned.model,
            executor=self.planned.agent.name,
            stimuli=[known.get(name) or rest[name] for name in names],
            threshold=self.planned.threshold,
            variant=self.planned.item.variant,
            run_id=self.run_id,
            graded=not self.planned.options.skip_grade,
        )

    @property
    def heading(self) -> SpecResult:
        """What it is, without results."""
        return replace(skipped_eval(self.planned), skipped=None, run_id=self.run_id)

    @property
    def outline(self) -> SpecResult:
        """What it is, with its stimuli and without their trials."""
        empty = [self._stimulus(name, (), count) for name, count in self._counts.items()]
        return replace(self.heading, stimuli=empty)

    def stand(self) -> Mapping[str, int]:
        """Return how many trials of each stimulus have ended."""
        with self.store.reading() as connection:
            return trials.ended_by_task(connection, self.run_id)

    def stored(self) -> Mapping[str, int]:
        """Return how many trials of each stimulus it began with."""
        with self.store.reading() as connection:
            return trials.count_by_task(connection, self.run_id)

    def stimuli(
        self, names: Sequence[str], ended: Mapping[str, Sequence[TrialResult]] | None = None
    ) -> list[StimulusResult]:
        """These stimuli, as far as they have come; `ended` has all trials of those that are not read."""
        known = {name: trials for name, trials in (ended or {}).items() if trials}
        found: dict[str, list[Any]] = {name: [] for name in names if name not in known}
        if found:
            with self.store.reading() as connection:
                for row in trials.results_of_tasks(connection, self.run_id, list(found)):
                    found[row.task_id].append(row)
        return [
            self._stimulus(name, known[name], len(known[name]))
            if name in known
            else self._read(name, found[name])
            for name in names
        ]

    def trial(self, ended: FinishedTrial) -> TrialResult:
        return self._trial(ended, self._counts[ended.task_id])

    @cached_property
    def _counts(self) -> Mapping[str, int]:
        return expected(self.planned, self.planned.options.runs)

    @cached_property
    def _folder(self) -> RunFolder:
        return self.data.run(self.run_id)

    @cached_property
    def _experiment(self) -> Json | None:
        about = self.planned.item.experiment
        return {**about, "runId": self.told_run_id} if about and self.told_run_id else about

    def _workspace(self, stimulus: str) -> Path | None:
        """Return where its final workspace is kept, if it is."""
        options = self.planned.options
        if options.workspace is None:
            return None
        path = Path(options.workspace) / options.variant / folder_name(stimulus)
        return path if path.is_dir() else None

    @cached_property
    def _stories(self) -> Transcripts:
        return Transcripts(self._folder.transcripts)

    @cached_property
    def _prompts(self) -> Mapping[str, str]:
        return {one.name: one.prompt for one in self.planned.stimuli}

    @cached_property
    def _families(self) -> Mapping[str, str | None]:
        key = self.planned.request.family if self.planned.request else None
        return {one.name: named_family({"tags": one.tags}, key) for one in self.planned.stimuli}

    def _read(self, name: str, rows: Sequence[Any]) -> StimulusResult:
        ended = [self._trial(row, len(rows)) for row in rows if _has_ended(row)]
        return self._stimulus(name, ended, len(rows))

    def _stimulus(self, name: str, trials: Sequence[TrialResult], planned: int) -> StimulusResult:
        return StimulusResult(
            name=name,
            prompt=self._prompts.get(name, ""),
            trials=sorted(trials, key=lambda trial: trial.index),
            planned=planned,
            threshold=self.planned.threshold,
        )

    def _trial(self, row: Any, planned: int) -> TrialResult:
        which = row.task_id, row.k, row.attempts
        left = _left_in(self._folder.attempt(*which))
        fault = _fault(row)
        score, passed = self._grade(row)
        result: Json = (row.result if fault is None else left.graders) or {}
        story = left.transcript or self._stories.read(which)
        return TrialResult(
            eval_name=self.planned.spec.name,
            stimulus=row.task_id,
            index=row.k,
            model=self.planned.model,
            executor=self.planned.agent.name,
            variant=self.planned.item.variant,
            duration_ms=_worked_ms(row.timing or {}, story),
            score=score,
            passed=passed,
            graders=[GraderResult.from_json(one) for one in result.get("graders", ())],
            constraints=ConstraintResult.read_all(result.get("constraints")),
            fault=fault,
            transcript=story,
            attempts=row.attempts,
            graded_at=_iso(row.finished_at),
            run_id=self.told_run_id or self.run_id,
            eval_file=str(self.planned.item.file),
            session_log=left.session_log,
            artifacts=left.artifacts,
            patch=left.patch,
            experiment=self._experiment,
            workspace=self._workspace(row.task_id),
            planned=planned,
            family=self._families.get(row.task_id),
        )

    def _grade(self, row: Any) -> tuple[float | None, bool | None]:
        """Score and verdict. A fault of the agent counts as 0, any other fault counts nowhere."""
        if TrialState(row.state) is TrialState.FINISHED:
            return row.score, row.passed
        if ended_by_agent(row.state, row.category) and not self.planned.options.skip_grade:
            return 0.0, False
        return None, None


def skipped_eval(planned: PlannedEval) -> SpecResult:
    """The result of a spec of which nothing is run."""
    return SpecResult(
        name=planned.spec.name,
        file=str(planned.item.file),
        model=planned.model,
        executor=planned.agent.name,
        stimuli=[],
        threshold=planned.threshold,
        variant=planned.item.variant,
        skipped="runs: 0",
    )


def expected(planned: PlannedEval, asked: int | None) -> Mapping[str, int]:
    """Return how many trials each stimulus has, in the spec's order."""
    counts = {one.name: trials_of(one, planned.spec, asked) for one in planned.stimuli}
    return {name: count for name, count in counts.items() if count}


def _worked_ms(timing: Mapping[str, float], story: Json | None) -> float:
    """Return how long the agent worked; an attempt that only graded again has it from the one before."""
    if "agent" in timing or story is None:
        return round(1000 * timing.get("agent", 0.0), 1)
    told = (story.get("metrics") or {}).get("wallTimeMs")
    return round(told, 1) if isinstance(told, int | float) else 0.0


def _has_ended(row: Any) -> bool:
    return TrialState(row.state) in (TrialState.FINISHED, TrialState.ERROR)


def _fault(row: Any) -> TrialFault | None:
    if TrialState(row.state) is not TrialState.ERROR and row.cause not in _COUNTED:
        return None
    cause = row.cause or "internal"
    return TrialFault(
        fault_kind(cause),
        row.message or cause,
        row.category or Category.INTERNAL.value,
        cause,
    )


@dataclass(frozen=True, slots=True)
class _Left:
    """What an attempt left in its folder, as far as results tell of it."""

    transcript: Json | None = None
    graders: Json | None = None
    session_log: Path | None = None
    artifacts: Path | None = None
    patch: Path | None = None


def _left_in(kept: Path) -> _Left:
    if not kept.exists():
        return _Left()
    agent, evidence = kept / AGENT, kept / GRADING
    return _Left(
        # What the agent left is kept once where it says all there is to say.
        transcript=_read(evidence / TRANSCRIPT) or _read(agent / TRANSCRIPT),
        graders=_read(evidence / GRADERS),
        session_log=_native_log(agent),
        artifacts=_there(evidence, ARTIFACTS),
        patch=_there(evidence, PATCH),
    )


def _read(path: Path) -> Json | None:
    try:
        found: Json = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found


def _native_log(agent: Path) -> Path | None:
    """The agent's own log, if it wrote one as it worked."""
    try:
        names = os.listdir(agent)  # noqa: PTH208 - asked of each trial, as below
    except OSError:
        return None
    found = min((name for name in names if name.endswith(".jsonl")), default=None)
    return None if found is None else agent / found


def _there(folder: Path, name: str) -> Path | None:
    return folder / name if os.path.exists(f"{folder}/{name}") else None  # noqa: PTH110


def _iso(moment: float | None) -> str | None:
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
