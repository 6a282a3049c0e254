"""What a run has come to: read from its files, told to people and to programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmark_runner.artifacts import RunArtifacts
from benchmark_runner.schemas import FAILED, EvalResult, EvalStatus, GenerationStatus, ScoreResult

SHOWN = 10
"""So many tasks are named for one reason."""


@dataclass(slots=True)
class Survey:
    """Where each of some tasks stands."""

    task_ids: Sequence[str]
    generations: Counter[str] = field(default_factory=Counter)
    evaluations: dict[str, EvalResult] = field(default_factory=dict)
    generation_errors: dict[str, str] = field(default_factory=dict)
    eval_errors: dict[str, str] = field(default_factory=dict)
    ungenerated: list[str] = field(default_factory=list)
    unevaluated: list[str] = field(default_factory=list)
    """With an answer, and without an evaluation that counts."""

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
        kept = Survey([one for one in self.task_ids if one in chosen], self.generations)
        for name in ("evaluations", "generation_errors", "eval_errors"):
            setattr(kept, name, {k: v for k, v in getattr(self, name).items() if k in chosen})
        kept.ungenerated = [one for one in self.ungenerated if one in chosen]
        kept.unevaluated = [one for one in self.unevaluated if one in chosen]
        return kept


def survey(artifacts: RunArtifacts, task_ids: Sequence[str]) -> Survey:
    """Look at the files of tasks."""
    found = Survey(task_ids)
    for task_id in task_ids:
        answer = artifacts.read_generation(task_id)
        if answer is None:
            found.ungenerated.append(task_id)
            continue
        found.generations[answer.status] += 1
        if answer.status is GenerationStatus.ERROR:
            found.generation_errors[task_id] = answer.error or "no reason given"
        evaluation = artifacts.read_eval(task_id)
        if evaluation is not None:
            found.evaluations[task_id] = evaluation
        if evaluation is None and answer.status is not GenerationStatus.ERROR:
            found.unevaluated.append(task_id)
        elif evaluation is not None and evaluation.status is EvalStatus.ERROR:
            found.eval_errors[task_id] = evaluation.error or "no reason given"
        elif evaluation is not None and evaluation.status in FAILED:
            # An evaluation of an older answer, or an override's own word for a failed generation.
            found.generation_errors.setdefault(task_id, evaluation.error or "no reason given")
    return found


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
