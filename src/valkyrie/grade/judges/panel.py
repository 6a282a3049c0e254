"""Graders that ask a judge, one of them or a panel, and whether judges can be asked at all."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from valkyrie.domain import Json
from valkyrie.errors import GraderError, JudgeError, UserError
from valkyrie.grade.base import BuiltIn, Config
from valkyrie.grade.judges.client import JudgeEndpoint, JudgeSettings, find_endpoint
from valkyrie.grade.judges.config import Judge, Judging, PanelCriterion, reaches, read_panel, read_prompt
from valkyrie.grade.judges.conversation import Answered, JudgeGrade, summed
from valkyrie.grade.judges.evidence import ask_for_grade, cited, nothing_done
from valkyrie.grade.protocol import (
    JUDGE_NO_VERDICT,
    JUDGE_REFUSED_QUESTION,
    Grader,
    GraderInput,
    GraderResult,
    JudgeDefaults,
    Need,
)
from valkyrie.specs.model import Finding, GraderSpec, Stimulus


class PromptGrader(BuiltIn):
    """A model's grade, normalised to 0..1; it passes from the threshold on."""

    type: ClassVar[str] = "prompt"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.JUDGE})

    def read(self, config: Config) -> None:
        self.judging = read_prompt(config)
        self.needs = self.judging.needs  # type: ignore[misc]  # more than its class where evidence says so

    @property
    def judges(self) -> tuple[Judge, ...]:
        return (self.judging.judge,)

    def check(self, stimulus: Stimulus) -> list[Finding]:
        """Return what is doubtful about it for this stimulus."""
        return nothing_to_judge_by(self.spec, self.judging, stimulus)

    async def look(self, given: GraderInput) -> GraderResult:
        """Ask the judge. Raises JudgeError, GraderError or UserError: never a fail for want of an answer."""
        answered = await ask_for_grade(self.spec, self.judging, self.judging.judge, given)
        grade, scale = answered.value, self.judging.scale
        normal = scale.normal(grade.overall)
        return GraderResult(
            name=self.spec.label,
            type=self.type,
            passed=self.judging.passes(normal),
            score=normal,
            evidence=cited(grade, self.judging),
            kind="llm",
            details=grade.details(scale),
            usage=answered.usage,
        )


def nothing_to_judge_by(spec: GraderSpec, judging: Judging, stimulus: Stimulus) -> list[Finding]:
    """A warning where there is neither a prompt nor a rubric."""
    if judging.prompt or judging.criteria or stimulus.rubric:
        return []
    message = (
        f"{spec.label}: stimulus {stimulus.name!r} has no rubric and the grader no `prompt`, so the judge "
        "goes by built-in criteria (done, correct, honest). Write what counts here."
    )
    return [Finding("judge-without-criteria", "warning", message, spec.place)]


# `panel`: several models judge at the same time, and their grades become one.

Failure = JudgeError | GraderError | UserError
_BY_EVIDENCE = frozenset({JUDGE_NO_VERDICT, JUDGE_REFUSED_QUESTION, "judge_too_long"})
"""Causes that what an agent wrote can bring about."""
_AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
}


@dataclass(frozen=True, slots=True)
class _Heard:
    """One judge of the panel: its grade, or why there is none."""

    judge: Judge
    answered: Answered[JudgeGrade] | None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class _Scored:
    """One criterion, as all judges together see it."""

    criterion: PanelCriterion
    score: float
    passed: bool
    normals: Sequence[float]


class PanelGrader(BuiltIn):
    """Judges in parallel. One that fails is noted and left out; only all of them failing is an error."""

    type: ClassVar[str] = "panel"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.JUDGE})

    def read(self, config: Config) -> None:
        self.panel = read_panel(config)
        self.judging = self.panel.judging
        self.needs = self.judging.needs  # type: ignore[misc]  # more than its class where evidence says so

    @property
    def judges(self) -> tuple[Judge, ...]:
        return self.panel.judges

    def check(self, stimulus: Stimulus) -> list[Finding]:
        """Return what is doubtful about it for this stimulus."""
        return nothing_to_judge_by(self.spec, self.judging, stimulus)

    async def look(self, given: GraderInput) -> GraderResult:
        """Ask all judges and put their grades together."""
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._heard(judge, given)) for judge in self.judges]
        heard = [task.result() for task in asked]
        grades = [one.answered.value for one in heard if one.answered]
        if not grades:
            raise _all_failed(self.spec, [one.failure for one in heard if one.failure])
        normals = [self.judging.scale.normal(grade.overall) for grade in grades]
        criteria = [self._criterion(one, grades) for one in self.judging.criteria]
        score, passed = self._together(normals, criteria)
        return GraderResult(
            name=self.spec.label,
            type=self.type,
            passed=passed,
            score=score,
            evidence=self._evidence(heard, normals, passed=passed),
            kind="llm",
            details=[*map(_criterion_detail, criteria), *map(self._detail, heard), _spread(normals)],
            usage=summed([one.answered.usage for one in heard if one.answered]),
        )

    async def _heard(self, judge: Judge, given: GraderInput) -> _Heard:
        try:
            return _Heard(judge, await ask_for_grade(self.spec, self.judging, judge, given))
        except (JudgeError, GraderError, UserError) as failure:
            if failure.cause not in _BY_EVIDENCE:
                return _Heard(judge, None, failure)
            return await self._heard_of_nothing(judge, given, failure)

    async def _heard_of_nothing(self, judge: Judge, given: GraderInput, failure: Failure) -> _Heard:
        """Ask a judge that gave no verdict about a trial in which nothing was done.

        If it grades that, what the agent wrote kept it from grading, and it counts with the lowest score:
        else an agent could choose who judges it.
        """
        try:
            with nothing_done(given) as nothing:
                answered = await ask_for_grade(self.spec, self.judging, judge, nothing)
        except (JudgeError, GraderError, UserError):
            return _Heard(judge, None, failure)
        why = f"lowest score: {failure} It graded a trial in which nothing was done."
        return _Heard(judge, Answered(JudgeGrade(self.judging.scale.low, why, ()), answered.usage))

    def _together(self, normals: Sequence[float], criteria: Sequence[_Scored]) -> tuple[float, bool]:
        """Score and verdict of the panel.

        With criteria: the weighted mean of theirs, which must reach the threshold, and every required one
        must pass. Without: what the judges' overall scores come to.
        """
        overall = self.panel.overall_threshold
        if not criteria:
            score, passed = aggregated(normals, self.panel.aggregation, self.judging.threshold)
            return score, passed if overall is None else reaches(score, overall)
        total = sum(one.criterion.weight for one in criteria)
        weighted = sum(one.criterion.weight * one.score for one in criteria)
        score = weighted / total if total else statistics.fmean(one.score for one in criteria)
        enough = reaches(score, self.judging.threshold if overall is None else overall)
        return score, enough and all(one.passed for one in criteria if one.criterion.required)

    def _criterion(self, criterion: PanelCriterion, grades: Sequence[JudgeGrade]) -> _Scored:
        """Return what the judges say of one criterion; one that said nothing of it gives it the lowest
        score."""
        name, scale = criterion.name, self.judging.scale
        normals = [
            next((scale.normal(one.score) for one in grade.criteria if one.text == name), 0.0)
            for grade in grades
        ]
        found = aggregated(normals, self.panel.aggregation, criterion.pass_threshold)
        return _Scored(criterion, *found, normals)

    def _evidence(self, heard: Sequence[_Heard], normals: Sequence[float], *, passed: bool) -> str:
        votes, failed = sum(map(self.judging.passes, normals)), len(heard) - len(normals)
        lines = [
            f"{self.panel.aggregation} of {len(normals)} judges: {'passed' if passed else 'not passed'}, "
            f"{votes} of them for it" + (f"; {failed} failed and are left out" if failed else "")
        ]
        lines += [
            f"{one.judge.model}: {cited(one.answered.value, self.judging)}" for one in heard if one.answered
        ]
        return "\n".join(lines)

    def _detail(self, one: _Heard) -> Json:
        if one.answered is None:
            assert one.failure is not None
            return {
                "judge": one.judge.model,
                "status": "error",
                "cause": one.failure.cause,
                "message": str(one.failure),
            }
        grade, scale = one.answered.value, self.judging.scale
        normal = scale.normal(grade.overall)
        return {
            "judge": one.judge.model,
            "status": "ok",
            "score": grade.overall,
            "normalizedScore": normal,
            "passed": self.judging.passes(normal),
            "reasoning": grade.reasoning,
            "rubricScores": grade.details(scale),
            "usage": one.answered.usage,
        }


def aggregated(normals: Sequence[float], aggregation: str, threshold: float) -> tuple[float, bool]:
    """Several scores as one, and whether that passes; a tied vote has not passed."""
    if aggregation in ("majority", "unanimous"):
        votes = sum(reaches(normal, threshold) for normal in normals)
        enough = votes == len(normals) if aggregation == "unanimous" else votes * 2 > len(normals)
        return votes / len(normals), enough
    score = _AGGREGATES[aggregation](normals)
    return score, reaches(score, threshold)


def _criterion_detail(one: _Scored) -> Json:
    return {
        "name": f"panel/criterion/{one.criterion.name}",
        "score": one.score,
        "passed": one.passed,
        "weight": one.criterion.weight,
        "metadata": {
            "criterion": one.criterion.name,
            "required": one.criterion.required,
            "passThreshold": one.criterion.pass_threshold,
            "judgeScores": list(one.normals),
        },
    }


def _spread(normals: Sequence[float]) -> Json:
    """Return how far the judges are apart."""
    return {
        "spread": max(normals) - min(normals),
        "min": min(normals),
        "max": max(normals),
        "mean": statistics.fmean(normals),
        "stdDev": statistics.stdev(normals) if len(normals) > 1 else 0.0,
    }


def _all_failed(spec: GraderSpec, failures: Sequence[Failure]) -> Failure:
    """Say whose failure it is: a refusal of all stays one, and judges that all answered gave no verdict.

    Only where one could not be reached may asking again help.
    """
    told = "; ".join(dict.fromkeys(map(str, failures)))
    message = f"All {len(failures)} judges of {spec.label} failed: {told}"
    if all(isinstance(failure, UserError) for failure in failures):
        return UserError(message, cause=failures[0].cause)
    if not any(isinstance(failure, JudgeError) for failure in failures):
        return GraderError(message, cause=JUDGE_NO_VERDICT)
    waits = [failure.retry_after for failure in failures if failure.retry_after is not None]
    return JudgeError(message, retry_after=max(waits, default=None))


# Check that judges can be asked at all, before an agent is run for them to judge.


def check_judges(
    graders: Iterable[Grader], asking: JudgeDefaults, settings: JudgeSettings | None = None
) -> None:
    """Raise UsageError or UserError where a judge has no model, or its model no address. Nobody is asked."""
    for _ in endpoints(graders, asking, settings):
        pass


def endpoints(
    graders: Iterable[Grader], asking: JudgeDefaults, settings: JudgeSettings | None = None
) -> Iterator[JudgeEndpoint]:
    """Yield where each judge would be asked. Raises as `check_judges` does."""
    settings = settings or JudgeSettings.default()
    for grader in graders:
        if isinstance(grader, PromptGrader | PanelGrader):
            for judge in grader.judges:
                yield find_endpoint(judge, asking, settings)
