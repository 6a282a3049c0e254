"""What an author of a runner writes, and what the framework does for them."""

from __future__ import annotations

import asyncio
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import ValidationError

from benchmark_runner.client import build_client
from benchmark_runner.schemas import (
    OUT_OF_BOUNDS,
    EvalResult,
    EvalStatus,
    GenerationResult,
    GenerationStatus,
    ScoreResult,
    Task,
)
from benchmark_service.client import BenchmarkServiceClient
from benchmark_service.errors import BenchmarkServiceError

if TYPE_CHECKING:
    from benchmark_runner.llm import LLMConfig


class UnknownTaskError(LookupError):
    """No task has that id."""


class BenchmarkRunner(ABC):
    """One benchmark's runner. Write `load_tasks` and `generate`; the rest suits text answers as it is."""

    NAME: ClassVar[str]
    """The benchmark's."""
    PAYLOAD_TYPE: ClassVar[str] = "text"
    PAYLOAD_SCHEMA_VERSION: ClassVar[int] = 1
    GENERATION_VERSION_ENV: ClassVar[str] = ""
    """The environment variable that names the version of what generates, set when an image is built."""
    TASK_MODEL: ClassVar[type[Task]] = Task
    """What tasks of a service are read as."""
    SCORE_INPUT: ClassVar[Literal["envelope", "raw"]] = "envelope"
    """What `/final-score/` is given per task: `{task_id, status, result, error}`, which every service of the
    framework takes, or the bare result, for services that look into it themselves."""

    options: Mapping[str, Any] = {}
    """The values of `make_cli`'s `extra_run_options`."""

    def __init__(
        self, service_url: str | None = None, dataset_name: str | None = None, eval_concurrency: int = 10
    ) -> None:
        self.service_url = service_url
        self.eval_concurrency = eval_concurrency
        # None without a service. Not in its type: whoever overrides `evaluate` or `score` has one.
        self._client = cast("BenchmarkServiceClient", build_client(service_url) if service_url else None)
        self._eval_sem = asyncio.Semaphore(eval_concurrency)
        self._dataset = dataset_name
        self._tasks: dict[str, Task] = {}

    @abstractmethod
    def load_tasks(self, dataset_file: Any) -> Sequence[Task]:
        """Return the tasks in a dataset file (a Path); with None, of whatever the runner brings along."""

    @abstractmethod
    async def generate(
        self, task: Any, model: str, llm_config: LLMConfig | None = None, log_dir: Path | None = None
    ) -> GenerationResult:
        """Answer one task. An exception is recorded as this task's error and disturbs no other.

        What is to stay besides the answer goes into `log_dir`, a folder that is there.
        """

    @property
    def payload_schema(self) -> str:
        """Names the form of the answers."""
        return f"{self.NAME}.{self.PAYLOAD_TYPE}.v{self.PAYLOAD_SCHEMA_VERSION}"

    @property
    def generation_version(self) -> str:
        """The version of what generates, `dev` where nothing says it."""
        return os.environ.get(self.GENERATION_VERSION_ENV, "").strip() or "dev"

    async def load_tasks_from_service(self, name: str) -> list[Task]:
        """The tasks of a dataset as the service lists them, as TASK_MODEL; scored against it later."""
        listed = await self._service().list_tasks(name)
        self._dataset = name
        tasks = []
        for one in listed.tasks:
            try:
                tasks.append(self.TASK_MODEL.model_validate(one.model_dump(exclude_unset=True)))
            except ValidationError as error:
                raise ValueError(
                    f"task {one.id!r} of dataset {name!r} is no {self.TASK_MODEL.__name__}: {_wrong(error)}"
                ) from None
        return tasks

    def load_problem(self, task_id: str, problem: Path) -> Task:
        """The one task of `--problem`: what the file says is what is asked."""
        question = problem.read_text(encoding="utf-8", errors="replace")
        try:
            return self.TASK_MODEL(id=task_id, question=question)
        except ValidationError as error:
            kind = self.TASK_MODEL.__name__
            raise ValueError(
                f"a question alone makes no {kind} ({_wrong(error)}); override load_problem to say the rest"
            ) from None

    async def evaluate(self, task_id: str, generation: GenerationResult) -> EvalResult:
        """Have the service grade an answer. What has no answer is not sent."""
        if generation.status in OUT_OF_BOUNDS:
            return EvalResult(task_id=task_id, status=EvalStatus.DID_NOT_COMPLETE, error=generation.error)
        if generation.status is not GenerationStatus.SUCCESS:
            return EvalResult(task_id=task_id, status=EvalStatus.GENERATION_ERROR, error=generation.error)
        answer = generation.data if isinstance(generation.data, str) else json.dumps(generation.data)
        try:
            async with self._eval_sem:
                result = await self._service().evaluate_response(
                    task_id=task_id, response=answer, dataset=self._dataset
                )
        except Exception as error:  # noqa: BLE001 - whatever happens is this task's evaluation error
            return EvalResult(task_id=task_id, status=EvalStatus.ERROR, error=error_text(error))
        return EvalResult(task_id=task_id, status=EvalStatus.EVALUATED, result=result)

    async def score(self, eval_results: list[EvalResult]) -> ScoreResult:
        """Have the service score evaluations; registered tasks without one count as not answered."""
        submitted: dict[str, Any] = {task.id: None for task in self.get_tasks()}
        for one in eval_results:
            submitted[one.task_id] = self._submitted(one)
        answer = await self._service().final_score(submitted, dataset=self._dataset)
        return ScoreResult(
            tasks_evaluated=answer.tasks_evaluated,
            final_score=answer.final_score,
            metadata=answer.metadata,
        )

    def _submitted(self, one: EvalResult) -> Any:
        envelope = one.model_dump(mode="json")
        if self.SCORE_INPUT == "envelope":
            return envelope
        return envelope["result"] if one.status is EvalStatus.EVALUATED else None

    async def _fetch_task(self, task_id: str) -> Task:
        """A task that is wanted by its id and was not loaded; overridden where it can be had."""
        raise UnknownTaskError(task_id)

    def add_task(self, task: Task) -> None:
        """Register a task; it is scored with the others."""
        self._tasks[task.id] = task

    def _register_task(self, task: Task) -> None:
        self.add_task(task)

    def _register_tasks(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self.add_task(task)

    def get_tasks(self) -> list[Task]:
        """Return all registered tasks, by id."""
        return [self._tasks[task_id] for task_id in sorted(self._tasks)]

    async def check_service(self) -> None:
        """Raise ConnectionError where the service that would grade is away or not well."""
        if not isinstance(self._client, BenchmarkServiceClient):
            return  # a client that a test puts in place
        status = await self._client.health_status()
        if status not in (200, 404, 405, 501):  # a small grader of one's own may have no such route
            raise ConnectionError(f"it answers for its health with status {status}")

    async def close(self) -> None:
        """Let go of the service's connections."""
        # A client that a test puts in place may have nothing to close.
        if (close := getattr(self._client, "close", None)) is not None:
            await close()

    def _service(self) -> BenchmarkServiceClient:
        if self._client is None:
            raise ValueError("no service is known: name it with --service-url or SERVICE_URL")
        return self._client


def error_text(error: BaseException) -> str:
    """An exception in a line: its own words, and its kind where they do not say it."""
    if isinstance(error, ValidationError):
        return f"{error.title}: {_wrong(error)}"
    try:
        words = str(error).strip()
    except Exception:  # noqa: BLE001 - an author's exception may fail to say anything
        words = ""
    if words and isinstance(error, BenchmarkServiceError):
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _wrong(error: ValidationError) -> str:
    """Return what does not fit, without the values: they may be long, and not for everybody."""
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
