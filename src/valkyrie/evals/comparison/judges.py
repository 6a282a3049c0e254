"""A judge before both answers of a pair, twice: once in each order, so that the order cancels out."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valkyrie.domain import Json
from valkyrie.errors import GraderError, JudgeError, UserError
from valkyrie.evals.comparison.pairs import Pair, PairOutcome, ResultSide, by_verdict, fault_of
from valkyrie.evals.results import TrialResult
from valkyrie.grade import judges
from valkyrie.grade.base import Config
from valkyrie.grade.protocol import GraderInput, JudgeDefaults
from valkyrie.report.statistics.intervals import mean
from valkyrie.specs.model import EvalSpec, GraderSpec, Stimulus
from valkyrie.trajectory.json_fields import TrajectoryError
from valkyrie.trajectory.records import from_record

if TYPE_CHECKING:
    from valkyrie.grade.graders import GraderRegistry
    from valkyrie.grade.judges.config import Judging
    from valkyrie.grade.judges.evidence import Preference

AT_ONCE = 8
JUDGES = ("prompt", "pairwise")
_MOST_PATCH = 400_000


@dataclass(frozen=True, slots=True)
class JudgePlan:
    """Who judges, by which words."""

    asking: JudgeDefaults
    specs: Sequence[EvalSpec] = ()
    plugins: GraderRegistry | None = None
    always: bool = False
    """A judge was named on the command line: pairs without a grader for it are judged as well."""

    def stimulus(self, trial: TrialResult) -> Stimulus | None:
        """As the spec has it, of the spec of the trial's own name first."""
        ordered = sorted(self.specs, key=lambda spec: spec.name != trial.eval_name)
        return next((one for spec in ordered for one in spec.stimuli if one.name == trial.stimulus), None)

    def comparisons(self, stimulus: Stimulus | None) -> list[GraderSpec]:
        """The graders that compare; a plain one where only a judge was named."""
        graders = stimulus.graders if stimulus else ()
        found = [one for one in graders if one.type in JUDGES or self._plugin(one) is not None]
        return found or ([GraderSpec("pairwise")] if self.always else [])

    def asking_for(self, trial: TrialResult) -> JudgeDefaults:
        """The command line's word first, then the spec's."""
        ordered = sorted(self.specs, key=lambda spec: spec.name != trial.eval_name)
        if not ordered:
            return self.asking
        said, own = self.asking, ordered[0].defaults
        return JudgeDefaults(
            model=said.model or own.judge_model,
            provider=said.provider or own.judge_provider,
            reasoning_effort=said.reasoning_effort or own.judge_reasoning_effort,
            url=said.url,
        )

    def _plugin(self, spec: GraderSpec) -> Any:
        """A plugin's class with `compare(baseline, treatment)`."""
        found = self.plugins.get(spec.type) if self.plugins else None
        return found if callable(getattr(found, "compare", None)) else None

    async def plugin_score(
        self, spec: GraderSpec, before: GraderInput, after: GraderInput
    ) -> tuple[float, str] | None:
        """Return what a plugin says, −1..1 and why; None where the grader is not one of a plugin."""
        made_by: Any = self._plugin(spec)
        if made_by is None:
            return None
        grader = made_by(spec) if isinstance(made_by, type) else made_by
        try:
            said = grader.compare(before, after)
            said = await said if inspect.isawaitable(said) else said
        except Exception as error:  # a plugin may raise anything, and that is no verdict
            raise GraderError(f"{spec.label}: {type(error).__name__}: {error}") from error
        score, why = (
            (said.get("score"), said.get("evidence", "")) if isinstance(said, Mapping) else (said, "")
        )
        if isinstance(score, bool) or not isinstance(score, int | float) or not -1 <= score <= 1:
            raise GraderError(f"{spec.label}: compare returned {said!r}; a number from -1 to 1 is expected.")
        return float(score), str(why)


@dataclass(slots=True)
class JudgedPairs:
    """What judges said about all pairs, and what they used."""

    outcomes: list[PairOutcome] = field(default_factory=list)
    usages: list[Json] = field(default_factory=list)


async def judge_pairs(
    pairs: Sequence[Pair], plan: JudgePlan, baseline: ResultSide, treatment: ResultSide
) -> JudgedPairs:
    """Return every pair, in order. A judge that fails makes an errored pair; one that refuses raises
    UserError."""
    judged, room = JudgedPairs(), asyncio.Semaphore(AT_ONCE)

    async def one(pair: Pair) -> PairOutcome:
        async with room:
            return await _outcome(pair, plan, (baseline.folder, treatment.folder), judged.usages)

    async with judges.shared_client():
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(pair)) for pair in pairs]
        except ExceptionGroup as several:
            refused, others = several.split(UserError)
            if refused is None or others is not None:
                raise
            raise refused.exceptions[0] from None  # one refusal stops all, and is told once
    judged.outcomes = [task.result() for task in tasks]
    return judged


async def _outcome(
    pair: Pair, plan: JudgePlan, folders: tuple[Path, Path], usages: list[Json]
) -> PairOutcome:
    if fault := fault_of(pair):
        return fault
    if pair.baseline.fault or pair.treatment.fault:
        return by_verdict(pair)  # there is no answer to show a judge
    stimulus = plan.stimulus(pair.treatment)
    graders = plan.comparisons(stimulus)
    if not graders:
        return by_verdict(pair)
    try:
        asking = plan.asking_for(pair.treatment)
        before = _given(pair.baseline, stimulus, folders[0], asking)
        after = _given(pair.treatment, stimulus, folders[1], asking)
        said = [await _both_orders(spec, plan, before, after, usages) for spec in graders]
    except (JudgeError, GraderError, TrajectoryError) as error:
        return PairOutcome(pair, 0.0, f"judge error: {error}", "judge")
    return PairOutcome(
        pair,
        round(mean([one.score for one in said]), 12),
        "\n".join(one.evidence for one in said),
        disagreed=any(one.disagreed for one in said),
        judged=True,
    )


@dataclass(frozen=True, slots=True)
class _Said:
    score: float
    evidence: str
    disagreed: bool = False


async def _both_orders(
    spec: GraderSpec, plan: JudgePlan, before: GraderInput, after: GraderInput, usages: list[Json]
) -> _Said:
    """The mean of both orders; marked where they name different winners."""
    if (told := await plan.plugin_score(spec, before, after)) is not None:
        return _Said(told[0], f"{spec.label}: {told[1]}")
    judging = _judging(spec)
    straight = await judges.ask_for_preference(judging.prompt, judging.judge, before, after)
    usages.append(straight.usage)
    swapped = await judges.ask_for_preference(judging.prompt, judging.judge, after, before)
    usages.append(swapped.usage)
    first, second = straight.value, swapped.value
    scores = first.score, -second.score
    disagreed = _sign(scores[0]) != _sign(scores[1])
    evidence = (
        f"{spec.label}: baseline first: {_told(first, 'baseline', 'treatment')}; "
        f"treatment first: {_told(second, 'treatment', 'baseline')}"
    )
    marked = f"{evidence} (the two orders disagree: averaged)" if disagreed else evidence
    return _Said(mean(scores), marked, disagreed)


def _judging(spec: GraderSpec) -> Judging:
    return judges.read_pairwise(Config(spec))


def _sign(score: float) -> int:
    return (score > 0) - (score < 0)


def _told(said: Preference, a: str, b: str) -> str:
    who = {"A": a, "B": b, "tie": "neither"}[said.winner]
    return (
        f"{who} {said.magnitude if said.winner != 'tie' else 'better'}: {said.reasoning or 'no reason given'}"
    )


def _given(trial: TrialResult, stimulus: Stimulus | None, folder: Path, asking: JudgeDefaults) -> GraderInput:
    if trial.transcript is None:
        raise GraderError(f"trial {trial.stimulus}#{trial.index} was recorded without its trajectory")
    transcript = from_record(trial.transcript)
    return GraderInput(
        stimulus=stimulus or Stimulus(trial.stimulus, (_prompt(trial),)),
        transcript=transcript,
        diff=_patch(trial, folder),
        asking=asking,
        task_from_record=stimulus is None,
    )


def _prompt(trial: TrialResult) -> str:
    """Return what the agent was asked, where the record says so."""
    told = (trial.transcript or {}).get("stimulus")
    prompt = told.get("prompt") if isinstance(told, dict) else None
    if isinstance(prompt, str):
        return prompt
    events = (trial.transcript or {}).get("events") or []
    asked = [
        event["data"]["content"]
        for event in events
        if isinstance(event, dict)
        and event.get("type") == "user_message"
        and isinstance(event.get("data"), dict)
        and isinstance(event["data"].get("content"), str)
    ]
    return "\n\n".join(asked)


def _patch(trial: TrialResult, folder: Path) -> str | None:
    """The diff a result folder kept; a path that leads out of the folder is not followed."""
    if trial.patch is None or trial.patch.is_absolute():
        return None
    path = (folder / trial.patch).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(_MOST_PATCH).decode("utf-8", "replace")
