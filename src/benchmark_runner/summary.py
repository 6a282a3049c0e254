"""What a run has come to: read from its files, told to people and to programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmark_runner.artifacts import RunArtifacts
from benchmark_runner.schemas import EvalResult, EvalStatus, GenerationResult, GenerationStatus, ScoreResult

SHOWN = 10
"""So many tasks are named for one reason."""
NO_REASON = "no reason given"


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a task came; its answer stays in its file."""

    generation: GenerationStatus | None = None
    error: str | None = None
    """Why there is no answer."""
    evaluation: EvalResult | None = None

    @classmethod
    def of(cls, answer: GenerationResult | None, evaluation: EvalResult | None) -> Standing:
        """What an answer and its evaluation come to."""
        return cls() if answer is None else cls(answer.status, answer.error, evaluation)

    @property
    def generation_error(self) -> str | None:
        """Why it could not be answered, if it could not."""
        if self.generation is GenerationStatus.ERROR:
            return self.error or NO_REASON
        if self.evaluation is not None and self.evaluation.status is EvalStatus.GENERATION_ERROR:
            # An evaluation of an older answer, or an override's own word for a failed generation.
            return self.evaluation.error or NO_REASON
        return None

    @property
    def eval_error(self) -> str | None:
        """Why it could not be graded, if it could not."""
        if self.evaluation is not None and self.evaluation.status is EvalStatus.ERROR:
            return self.evaluation.error or NO_REASON
        return None


@dataclass(frozen=True)
class Survey:
    """Where each of some tasks stands."""

    task_ids: Sequence[str]
    standings: Mapping[str, Standing]
    """Of these tasks, and maybe of others."""

    @cached_property
    def _each(self) -> Sequence[tuple[str, Standing]]:
        return [(task_id, self.standings[task_id]) for task_id in self.task_ids]

    @cached_property
    def generations(self) -> Counter[str]:
        """How many generations ended how."""
        return Counter(one.generation for _, one in self._each if one.generation)

    @cached_property
    def evaluations(self) -> dict[str, EvalResult]:
        """All there are, of whatever status."""
        return {task_id: one.evaluation for task_id, one in self._each if one.evaluation is not None}

    @cached_property
    def generation_errors(self) -> dict[str, str]:
        """Tasks without an answer, and why."""
        return {task_id: error for task_id, one in self._each if (error := one.generation_error)}

    @cached_property
    def eval_errors(self) -> dict[str, str]:
        """Tasks that could not be graded, and why."""
        return {task_id: error for task_id, one in self._each if (error := one.eval_error)}

    @cached_property
    def ungenerated(self) -> list[str]:
        """Tasks nobody tried to answer yet."""
        return [task_id for task_id, one in self._each if one.generation is None]

    @cached_property
    def unevaluated(self) -> list[str]:
        """Tasks with an answer, and without an evaluation."""
        return [
            task_id
            for task_id, one in self._each
            if one.generation not in (None, GenerationStatus.ERROR) and one.evaluation is None
        ]

    @property
    def evaluated(self) -> int:
        """Tasks a service graded."""
        return sum(one.status is EvalStatus.EVALUATED for one in self.evaluations.values())

    @property
    def did_not_complete(self) -> int:
        """Tasks that ran out of time or turns."""
        return sum(one.status is EvalStatus.DID_NOT_COMPLETE for one in self.evaluations.values())

    @property
    def complete(self) -> bool:
        """Whether every task was graded, or did not complete."""
        return not (self.ungenerated or self.unevaluated or self.generation_errors or self.eval_errors)

    def only(self, task_ids: Iterable[str]) -> Survey:
        """The same of fewer tasks."""
        chosen = set(task_ids)
        return Survey([one for one in self.task_ids if one in chosen], self.standings)


def survey(
    artifacts: RunArtifacts, task_ids: Sequence[str], known: Mapping[str, Standing] | None = None
) -> Survey:
    """Where tasks stand: as is `known` because it was written just now, else as their files say."""
    known = known or {}
    return Survey(task_ids, {one: known.get(one) or _read(artifacts, one) for one in task_ids})


def _read(artifacts: RunArtifacts, task_id: str) -> Standing:
    return Standing.of(artifacts.read_generation(task_id), artifacts.read_eval(task_id))


def grouped(title: str, errors: Mapping[str, str]) -> list[str]:
    """Failures by their reason, the most frequent first."""
    if not errors:
        return []
    by_reason: dict[str, list[str]] = {}
    for task_id, error in errors.items():
        by_reason.setdefault(_in_a_line(error), []).append(task_id)
    lines = [f"{title}:"]
    for reason, ids in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        rest = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
        lines.append(f"  {', '.join(ids[:SHOWN])}{rest}: {reason}")
    return lines


def said_score(score: ScoreResult, *, cached: bool = False) -> list[str]:
    """A score, for people."""
    notes = [note for note, holds in (("cached", cached), ("incomplete run", not score.complete)) if holds]
    note = f" ({', '.join(notes)})" if notes else ""
    lines = [f"Final score: {score.final_score:g}{note}"]
    plain = {name: value for name, value in score.metadata.items() if _is_plain(value)}
    return lines + [f"  {_in_a_line(name)}: {_in_a_line(str(value))}" for name, value in plain.items()]


def _in_a_line(text: str) -> str:
    """What others wrote, as a terminal may show it: its first line, without control characters."""
    first = next(iter(text.strip().splitlines()), "")[:200]
    return "".join(one if one.isprintable() else "?" for one in first)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def as_json(found: Survey, score: ScoreResult | None) -> dict[str, Any]:
    """The same for programs."""
    return {
        "tasks": len(found.task_ids),
        "generated": {str(status): found.generations.get(status, 0) for status in GenerationStatus},
        "evaluated": found.evaluated,
        "did_not_complete": found.did_not_complete,
        "not_generated": found.ungenerated,
        "not_evaluated": found.unevaluated,
        "generation_errors": found.generation_errors,
        "eval_errors": found.eval_errors,
        "complete": found.complete,
        "score": score.model_dump(mode="json") if score else None,
    }
