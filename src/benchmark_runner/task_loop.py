"""Generate and evaluate tasks, many at once, and sum up from its files what a run has come to."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import to_jsonable_python

from benchmark_runner.artifacts import RunArtifacts
from benchmark_runner.base import BenchmarkRunner, error_text
from benchmark_runner.checkpoint import needs_evaluation, needs_generation
from benchmark_runner.schemas import (
    EvalResult,
    EvalStatus,
    GenerationResult,
    GenerationStatus,
    ScoreResult,
    Task,
)
from benchmark_service.client_http import decode_json, encode_json

if TYPE_CHECKING:
    from benchmark_runner.llm import LLMConfig


SHOWN = 10
"""So many tasks are named for one reason."""
NO_REASON = "no reason given"


@dataclass(frozen=True, slots=True)
class TaskStanding:
    """How far a task came; its answer stays in its file."""

    generation: GenerationStatus | None = None
    error: str | None = None
    """Why there is no answer."""
    evaluation: EvalResult | None = None

    @classmethod
    def of(cls, answer: GenerationResult | None, evaluation: EvalResult | None) -> TaskStanding:
        """Return what an answer and its evaluation come to."""
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
class RunSurvey:
    """Where each of some tasks stands."""

    task_ids: Sequence[str]
    standings: Mapping[str, TaskStanding]
    """Of these tasks, and maybe of others."""

    @cached_property
    def _each(self) -> Sequence[tuple[str, TaskStanding]]:
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

    def only(self, task_ids: Iterable[str]) -> RunSurvey:
        """The same of fewer tasks."""
        chosen = set(task_ids)
        return RunSurvey([one for one in self.task_ids if one in chosen], self.standings)


def survey_run(
    artifacts: RunArtifacts, task_ids: Sequence[str], known: Mapping[str, TaskStanding] | None = None
) -> RunSurvey:
    """Return where tasks stand: as is `known` because it was written just now, else as their files say."""
    known = known or {}
    return RunSurvey(task_ids, {one: known.get(one) or _read(artifacts, one) for one in task_ids})


def _read(artifacts: RunArtifacts, task_id: str) -> TaskStanding:
    return TaskStanding.of(artifacts.read_generation(task_id), artifacts.read_eval(task_id))


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
    """Return what others wrote, as a terminal may show it: its first line, without control characters."""
    first = next(iter(text.strip().splitlines()), "")[:200]
    return "".join(one if one.isprintable() else "?" for one in first)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def as_json(found: RunSurvey, score: ScoreResult | None) -> dict[str, Any]:
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


# Generates and evaluates tasks, many at once: each is written down as soon as it is there.

ERROR_CHARS = 20_000
"""So much of an error is kept."""
EXCEPTION = "exception.txt"
"""In a task's logs: where in an author's code its generation failed."""
Redact = Callable[[str], str]
Result = TypeVar("Result")


class LeftError(Exception):
    """An author's code left its task: by `sys.exit`, by cancelling itself, by an exception for which `except
    Exception` is not enough, such as the panic of an extension module."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The way tasks are worked on."""

    model: str
    llm_config: LLMConfig | None = None
    parallelism: int = 10
    timeout: float = 1800
    """Seconds of a generation, where the task says nothing else; zero or less: no limit."""
    generate: bool = True
    evaluate: bool = True
    again: bool = False
    """Evaluate also what was evaluated before."""
    fresh: bool = False
    """Nothing is there from before, so nothing is looked for."""


@dataclass(slots=True)
class RunCounts:
    """Counts of a run under way, and whether it is to end early."""

    total: int
    done: int = 0
    """Tasks with nothing left to do, those from before included."""
    worked: int = 0
    """Tasks that were worked on now."""
    generating: int = 0
    evaluating: int = 0
    generation_errors: int = 0
    eval_errors: int = 0
    stopping: bool = False
    """No further task is begun; what is in flight is finished."""
    changed: Callable[[], None] = field(default=lambda: None)

    @property
    def in_flight(self) -> int:
        """Tasks being worked on."""
        return self.generating + self.evaluating

    @property
    def errors(self) -> int:
        """Of both kinds."""
        return self.generation_errors + self.eval_errors


class TaskLoop:
    """One pass over tasks. Answers flow from generators to evaluators, which wait for each other."""

    def __init__(
        self,
        runner: BenchmarkRunner,
        artifacts: RunArtifacts,
        how: LoopSettings,
        watch: RunCounts,
        redact: Redact,
    ) -> None:
        self._runner = runner
        self._artifacts = artifacts
        self._how = how
        self._watch = watch
        self._redact = redact
        self.ended: dict[str, TaskStanding] = {}
        """Where tasks stand that were brought to their end here."""
        self._scored = True
        self._answered: asyncio.Queue[GenerationResult | None] = asyncio.Queue(
            maxsize=how.parallelism + runner.eval_concurrency
        )

    async def run(self, tasks: Sequence[Task]) -> None:
        """Work on tasks that are due until all are done, or `watch.stopping` and none is in flight.

        What no task is to blame for, such as a disk that is full, ends all of them.
        """
        try:
            await self._run(tasks)
        except ExceptionGroup as group:
            raise _leaf(group) from None

    async def _run(self, tasks: Sequence[Task]) -> None:
        waiting = iter(tasks)
        evaluators = self._runner.eval_concurrency if self._how.evaluate else 0
        async with asyncio.TaskGroup() as group:
            for _ in range(evaluators):
                group.create_task(self._evaluator())
            generators = [
                group.create_task(self._generator(waiting))
                for _ in range(min(self._how.parallelism, len(tasks)) or 1)
            ]
            await asyncio.gather(*generators)
            for _ in range(evaluators):
                await self._answered.put(None)

    async def _generator(self, waiting: Iterator[Task]) -> None:
        for task in waiting:
            if self._watch.stopping:
                return
            answer = None if self._how.fresh else self._artifacts.read_generation(task.id)
            if self._how.generate and needs_generation(answer):
                answer = await self._generated(task)
            if answer is not None and self._how.evaluate:
                await self._answered.put(answer)
            else:
                self._finish()
                if self._how.fresh:
                    self.ended[task.id] = TaskStanding.of(answer, None)
            # What needs no waiting must not keep the others waiting.
            await asyncio.sleep(0)

    def is_due(self, task: Task) -> bool:
        """Return whether there is something left to do for a task."""
        answer = self._artifacts.read_generation(task.id)
        if needs_generation(answer):
            return self._how.generate or (answer is not None and self._how.evaluate)
        if not self._how.evaluate:
            return False
        return self._how.again or needs_evaluation(self._artifacts.read_eval(task.id))

    async def _generated(self, task: Task) -> GenerationResult:
        """The task's answer, written down."""
        self._outrun_score()
        if not self._how.fresh:
            self._artifacts.drop_eval(task.id)
            (self._artifacts.log_dir(task.id) / EXCEPTION).unlink(missing_ok=True)
        self._watch.generating += 1
        self._watch.changed()
        try:
            answer = await self._answer(task)
        finally:
            self._watch.generating -= 1
        try:
            self._artifacts.write_generation(answer)
        except ValueError as error:
            answer = self._failed(task, error)
            self._artifacts.write_generation(answer)
        self._watch.generation_errors += answer.status is GenerationStatus.ERROR
        return answer

    async def _answer(self, task: Task) -> GenerationResult:
        limit = self._how.timeout if task.timeout is None else task.timeout
        log_dir = self._artifacts.make_log_dir(task.id)
        clock = asyncio.timeout(limit if limit > 0 else None)
        try:
            async with clock:
                answer = await _apart(
                    lambda: self._runner.generate(
                        task, self._how.model, llm_config=self._how.llm_config, log_dir=log_dir
                    )
                )
            if not isinstance(answer, GenerationResult):
                raise TypeError(f"generate returned {type(answer).__name__}, not a GenerationResult")
            return self._completed(task, answer)
        except Exception as error:  # noqa: BLE001 - an author's code; the others go on
            if clock.expired():
                said = f"generation timed out after {limit:g} seconds"
                return self._ended(task, GenerationStatus.MAX_TIME, said)
            return self._failed(task, error)

    def _completed(self, task: Task, answer: GenerationResult) -> GenerationResult:
        """An author's result with what the framework knows besides."""
        return answer.model_copy(
            update={
                "task_id": task.id,
                "data": _plain(answer.data),
                "question": answer.question or task.question,
                "model": answer.model or self._how.model,
                "log_dir": answer.log_dir or str(self._artifacts.shown_log_dir(task.id)),
                "generation_version": answer.generation_version or self._runner.generation_version,
                "error": self._redact(answer.error)[:ERROR_CHARS] if answer.error else answer.error,
            }
        )

    def _failed(self, task: Task, error: BaseException) -> GenerationResult:
        logs = self._artifacts.log_dir(task.id)
        try:
            logs.mkdir(parents=True, exist_ok=True)
            trace = "".join(traceback.format_exception(error))
            said = self._redact(trace)[-ERROR_CHARS:]
            (logs / EXCEPTION).write_text(said, encoding="utf-8", errors="replace")
        except OSError:
            pass  # the error itself is what matters
        return self._ended(task, GenerationStatus.ERROR, error_text(error))

    def _ended(self, task: Task, status: GenerationStatus, error: str) -> GenerationResult:
        return self._completed(task, GenerationResult(task_id=task.id, status=status, data="", error=error))

    async def _evaluator(self) -> None:
        while (answer := await self._answered.get()) is not None:
            self._outrun_score()
            self._watch.evaluating += 1
            self._watch.changed()
            try:
                result = await self._evaluation(answer)
            finally:
                self._watch.evaluating -= 1
            try:
                self._artifacts.write_eval(result)
            except ValueError as error:
                result = self._not_evaluated(answer.task_id, error)
                self._artifacts.write_eval(result)
            self._watch.eval_errors += result.status is EvalStatus.ERROR
            self.ended[answer.task_id] = TaskStanding.of(answer, result)
            self._finish()

    async def _evaluation(self, answer: GenerationResult) -> EvalResult:
        task_id = answer.task_id
        try:
            result = await _apart(lambda: self._runner.evaluate(task_id, answer))
            if not isinstance(result, EvalResult):
                raise TypeError(f"evaluate returned {type(result).__name__}, not an EvalResult")
        except Exception as error:  # noqa: BLE001 - an author's override; the others go on
            return self._not_evaluated(task_id, error)
        error_said = self._redact(result.error)[:ERROR_CHARS] if result.error else result.error
        return result.model_copy(update={"task_id": task_id, "error": error_said})

    def _not_evaluated(self, task_id: str, error: Exception) -> EvalResult:
        said = self._redact(error_text(error))[:ERROR_CHARS]
        return EvalResult(task_id=task_id, status=EvalStatus.ERROR, error=said)

    def _outrun_score(self) -> None:
        """A score of before does not speak of what comes now."""
        if self._scored:
            self._artifacts.drop_score()
            self._scored = False

    def _finish(self) -> None:
        self._watch.done += 1
        self._watch.worked += 1
        self._watch.changed()


async def _apart(call: Callable[[], Awaitable[Result]]) -> Result:
    """Await an author's code in a task of its own: no context and no cancellation comes back from it."""

    async def caught() -> Result:
        try:
            return await call()
        except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            raise LeftError(error_text(error)) from error

    task = asyncio.create_task(caught())
    try:
        return await task
    except asyncio.CancelledError as error:
        if (current := asyncio.current_task()) is not None and current.cancelling():
            raise
        raise LeftError("CancelledError: cancelled by itself") from error


def _plain(data: Any) -> Any:
    """An answer as reading it from its file gives it; ValueError where it is no JSON."""
    if isinstance(data, str):
        return data.encode("utf-8", "replace").decode()
    try:
        return decode_json(encode_json(to_jsonable_python(data)))
    except ValueError as error:
        raise ValueError(f"the answer is not JSON: {error}") from error


def _leaf(group: ExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, ExceptionGroup) else first
