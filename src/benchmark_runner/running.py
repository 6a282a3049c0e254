"""Generates and evaluates tasks, many at once: each is written down as soon as it is there."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
    Task,
)
from benchmark_runner.summary import Standing

if TYPE_CHECKING:
    from benchmark_runner.llm import LLMConfig

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
class How:
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
class Watch:
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


class Work:
    """One pass over tasks. Answers flow from generators to evaluators, which wait for each other."""

    def __init__(
        self, runner: BenchmarkRunner, artifacts: RunArtifacts, how: How, watch: Watch, redact: Redact
    ) -> None:
        self._runner = runner
        self._artifacts = artifacts
        self._how = how
        self._watch = watch
        self._redact = redact
        self.ended: dict[str, Standing] = {}
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
                    self.ended[task.id] = Standing.of(answer, None)
            # What needs no waiting must not keep the others waiting.
            await asyncio.sleep(0)

    def is_due(self, task: Task) -> bool:
        """Whether there is something left to do for a task."""
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
            self.ended[answer.task_id] = Standing.of(answer, result)
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
    from benchmark_service.client_http import decode_json, encode_json

    try:
        return decode_json(encode_json(to_jsonable_python(data)))
    except ValueError as error:
        raise ValueError(f"the answer is not JSON: {error}") from error


def _leaf(group: ExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, ExceptionGroup) else first
