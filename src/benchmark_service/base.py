"""The class authors of a benchmark write: its tasks, how one is set up, how one is graded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchmark_service import auth
from benchmark_service.errors import TaskNotFoundError
from benchmark_service.schemas import (
    EvalMode,
    EvaluateResponseRequest,
    FinalScoreResult,
    RetrieveTaskResponse,
    StreamChunk,
    StreamResultChunk,
    TaskFilter,
)
from benchmark_service.v1_schemas import V1PayloadType, V1Task
from benchmark_service.versions import DatasetVersion, load_dataset_versions

if TYPE_CHECKING:
    from benchmark_service.submissions import GradingSubmission
    from sandboxes.protocol import Sandbox

_ARTIFACT_HOOKS = {
    EvalMode.ARTIFACT: "evaluate_artifact",
    EvalMode.MATERIALIZED_ARTIFACT: "evaluate_materialized_artifact",
}


class ResumableEvaluationInfrastructureError(RuntimeError):
    """Raised by a service when an evaluation broke off and can go on later from its saved state."""


@dataclass(frozen=True, slots=True)
class TaskInput:
    """A file a task comes with: its name, and where in the sandbox it goes."""

    filename: str
    dest: str


class BenchmarkService(ABC):
    """A benchmark. Implement the abstract methods and serve it with `BenchmarkServiceApp`.

    Instances come from `create()`, which does not call `__init__`; nothing here needs more than
    `self.datasets`.
    """

    datasets: dict[str, dict[str, Any]]

    eval_mode: ClassVar[EvalMode] = EvalMode.TEXT
    """What `/v1/evaluate` grades. Reported by `/version` only where a subclass declares it."""
    accepted_submission_schemas: ClassVar[Mapping[V1PayloadType, frozenset[str]]] = {}
    """Schemas `/v1/evaluate` takes, by payload type."""
    dataset_versions_file: ClassVar[Path | None] = None
    """A YAML file `{dataset: {version: 1.2.3}}`: labels only, the data is not checked against them."""
    priority_dataset: ClassVar[str | None] = None
    """In every dataset, the tasks it shares with this one come first."""
    sandbox_providers: ClassVar[tuple[str, ...]] = ()
    """Kinds of sandbox the tasks run in; empty means not declared."""
    default_sandbox_provider: ClassVar[str | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _check_eval_mode(cls)

    @classmethod
    async def create(cls) -> Self:
        """Make a service with its datasets loaded."""
        service = cls.__new__(cls)
        if cls.dataset_versions_file is not None:
            load_dataset_versions(cls.dataset_versions_file)
        datasets = await service.load_datasets()
        if cls.priority_dataset is not None:
            datasets = _prioritised(datasets, cls.priority_dataset)
        service.datasets = datasets
        return service

    @abstractmethod
    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        """Return all tasks: `{dataset name: {task id: task object}}`. The dataset of no name is `default`."""

    @abstractmethod
    async def retrieve_task(
        self, task_id: str, skip_validation: bool = False, dataset: str | None = None
    ) -> RetrieveTaskResponse:
        """Return what a trial of the task needs: image, problem path, folder, resources."""

    @abstractmethod
    def setup_task(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        """Prepare the task in the sandbox; yields progress, then one result."""

    @abstractmethod
    async def evaluate_response(self, request: EvaluateResponseRequest, dataset: str | None = None) -> Any:
        """Grade a text answer, without a sandbox."""

    @abstractmethod
    def evaluate_instance(
        self, task_id: str, sandbox: Sandbox, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        """Grade what the agent left in the sandbox; yields progress, then one result."""

    @abstractmethod
    async def calculate_final_score(
        self, evaluation_results: dict[str, Any], dataset: str | None = None
    ) -> FinalScoreResult:
        """The score of a run from its tasks' raw results; None where a task has none."""

    def get_dataset(self, dataset: str | None = None) -> dict[str, Any]:
        """The tasks of a dataset; no name (or an empty one) means `default`."""
        name = dataset or "default"
        if name not in self.datasets:
            raise ValueError(f"There is no dataset {name!r}, only {', '.join(map(repr, self.datasets))}")
        return self.datasets[name]

    async def filter_tasks(self, task_filter: TaskFilter, dataset: str | None = None) -> list[str]:
        """Return ids of the tasks asked for: by id, else by slice, else all, in the dataset's order."""
        dataset = dataset or task_filter.dataset
        if task_filter.task_ids:
            return await self.validate_task_ids(task_filter.task_ids, dataset=dataset)
        ids = list(self.get_dataset(dataset))
        return ids[task_filter.parse_slice()] if task_filter.slice_str else ids

    async def validate_task_ids(self, task_ids: list[str], dataset: str | None = None) -> list[str]:
        """The same ids, if the dataset has them all."""
        tasks = self.get_dataset(dataset)
        for task_id in task_ids:
            if task_id not in tasks:
                raise TaskNotFoundError(f"Task ID not found: {task_id}")
        return task_ids

    async def check_auth(self, headers: dict[str, str]) -> bool:
        """Return whether a caller may come in. Override for rules of your own; header names are lower
        case."""
        return await auth.resolve_tenant(headers) is not None

    async def resolve_tenant(self, headers: dict[str, str]) -> str | None:
        """Return who the caller is, or None for nobody. An overridden `check_auth` makes them all one
        tenant."""
        if getattr(self.check_auth, "__func__", None) is not BenchmarkService.check_auth:
            return auth.LEGACY_TENANT if await self.check_auth(headers) else None
        return await auth.resolve_tenant(headers)

    async def check_dataset_access(self, tenant: str, dataset: str | None) -> bool:
        """Return whether a tenant may use a dataset."""
        return tenant == auth.LEGACY_TENANT or await auth.dataset_allowed(tenant, dataset)

    async def stream_evaluate_response(
        self, request: EvaluateResponseRequest, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        """Grade a text answer, or go on with a saved evaluation, over a stream."""
        result = await self.evaluate_response(request, dataset=dataset)
        yield StreamResultChunk(type="result", data=result)

    def get_service_version(self) -> str | None:
        """A version of the service's own; None means that of its installed distribution."""
        return None

    def get_dataset_version(self, dataset: str | None = None) -> str | None:
        """The label of a dataset's version, if there is one."""
        if self.dataset_versions_file is None:
            return None
        entry = load_dataset_versions(self.dataset_versions_file).get(dataset or "default")
        return entry.version if entry else None

    async def list_tasks(self, dataset: str | None = None) -> list[V1Task]:
        """The tasks as outside runners may see them. Nothing is shown unless a service says what."""
        _ = dataset
        raise NotImplementedError(f"{type(self).__name__} does not list its tasks (list_tasks)")

    def project_trial_result(self, result: Any) -> Any:
        """The part of a result that trial tenants may see, enough for the final score."""
        _ = result
        raise NotImplementedError(f"{type(self).__name__} does not serve trials (project_trial_result)")

    async def prepare_grading_sandbox(
        self, sandbox: Sandbox, submission: GradingSubmission, dataset: str | None = None
    ) -> None:
        """Put a submission into the fresh sandbox it is graded in."""
        _ = sandbox, submission, dataset
        raise NotImplementedError(f"{type(self).__name__} does not grade in sandboxes of its own")

    def evaluate_artifact(
        self, run_id: str, task_id: str, schema_id: str, artifact: bytes, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        """Grade an uploaded file, given as bytes."""
        _ = run_id, task_id, schema_id, artifact, dataset
        raise NotImplementedError(f"{type(self).__name__} does not grade artifacts (evaluate_artifact)")

    def evaluate_materialized_artifact(
        self,
        *,
        tenant: str,
        run_id: str,
        task_id: str,
        schema_id: str,
        artifact: Any,
        dataset: str | None = None,
    ) -> AsyncGenerator[StreamChunk, None]:
        """Grade an uploaded file, given as a file on disk."""
        _ = tenant, run_id, task_id, schema_id, artifact, dataset
        raise NotImplementedError(
            f"{type(self).__name__} does not grade artifacts (evaluate_materialized_artifact)"
        )

    async def calculate_final_score_with_outcomes(
        self,
        evaluation_results: dict[str, Any],
        task_outcomes: dict[str, Any],
        dataset: str | None = None,
    ) -> FinalScoreResult:
        """As `calculate_final_score`, told also why a task has no result."""
        _ = task_outcomes
        return await self.calculate_final_score(evaluation_results, dataset=dataset)

    def supports_dataset_version_selection(self, dataset: str | None = None) -> bool:
        """Return whether callers may pin a version of the dataset."""
        _ = dataset
        return False

    def open_dataset_version(
        self, dataset: str | None, version: str | None
    ) -> AbstractAsyncContextManager[DatasetVersion]:
        """Serve this request from one version of the dataset; None means the newest."""
        _ = version
        raise NotImplementedError(f"dataset {dataset or 'default'} has no versions to choose from")

    async def list_task_inputs(self, task_id: str, dataset: str | None = None) -> list[TaskInput]:
        """The files a task comes with."""
        _ = task_id, dataset
        return []

    async def task_input_path(self, task_id: str, filename: str, dataset: str | None = None) -> Path:
        """Return where one of those files is on this machine."""
        _ = dataset
        raise NotImplementedError(f"task {task_id} has no input file {filename}")

    async def export_dataset(self, dataset: str | None, out_dir: Path) -> bool:
        """Write a dataset's tasks as files; False when the service cannot."""
        _ = dataset, out_dir
        return False


def _prioritised(datasets: dict[str, dict[str, Any]], first: str) -> dict[str, dict[str, Any]]:
    if first not in datasets:
        raise ValueError(f"priority_dataset {first!r} is none of {', '.join(map(repr, datasets))}")
    leading = datasets[first]
    return {
        name: {
            **{task_id: task for task_id, task in tasks.items() if task_id in leading},
            **{task_id: task for task_id, task in tasks.items() if task_id not in leading},
        }
        for name, tasks in datasets.items()
    }


def _check_eval_mode(cls: type[BenchmarkService]) -> None:
    """Refuse a class that declares a way of grading it does not implement."""
    mode = cls.eval_mode
    schemas = cls.accepted_submission_schemas

    def refuse(needs: str) -> TypeError:
        return TypeError(f"{cls.__name__} declares eval_mode {EvalMode(mode).name} and must {needs}")

    if mode == EvalMode.SANDBOX:
        if cls.prepare_grading_sandbox is BenchmarkService.prepare_grading_sandbox:
            raise refuse("implement prepare_grading_sandbox")
        if not schemas:
            raise refuse("declare accepted_submission_schemas")
    hook = _ARTIFACT_HOOKS.get(mode)
    if hook is None:
        return
    if getattr(cls, hook) is getattr(BenchmarkService, hook):
        raise refuse(f"implement {hook}")
    if set(schemas) != {V1PayloadType.ARTIFACT} or not schemas[V1PayloadType.ARTIFACT]:
        raise refuse("declare artifact schemas, and only those, in accepted_submission_schemas")
