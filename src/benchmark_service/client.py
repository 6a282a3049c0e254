"""Talk to a benchmark service: list and set up tasks, have answers graded, get the score."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from benchmark_service.client_http import (
    Model,
    Params,
    ServiceCall,
    ServiceHttp,
    batches,
    checked,
    checked_headers,
    checked_url,
    given,
)
from benchmark_service.client_streams import (
    RESUME_PATH,
    ServiceStreams,
    StateCallback,
    StreamSpec,
    TextCallback,
    idle_timeout,
    instance_body,
    provider_config_in,
    resume_body,
    stream_headers,
)
from benchmark_service.errors import (
    BenchmarkServiceConnectionError,
    BenchmarkServiceError,
    BenchmarkServiceProtocolError,
    BenchmarkServiceStreamClosedError,
    BenchmarkServiceUnauthenticatedError,
    StreamIdleError,
)
from benchmark_service.http_client import HttpClient, Resolve, shown_url
from benchmark_service.schemas import (
    FinalScoreResponse,
    RetrieveTaskResponse,
    SetupTaskResponse,
    VerifyTaskIdsRequest,
    VerifyTaskIdsResponse,
    VersionResponse,
)
from benchmark_service.v1_schemas import (
    V1DatasetTasksResponse,
    V1EvalRequest,
    V1EvalResponse,
    V1Payload,
    V1PayloadType,
    V1ScoreItem,
    V1ScoreRequest,
    V1ScoreResponse,
    V1UploadUrlRequest,
    V1UploadUrlResponse,
    V1Versions,
)
from benchmark_service.versions import DatasetVersion
from sandboxes.errors import SandboxNotFoundError
from sandboxes.masker import Masker
from sandboxes.retry import AsyncSleep, Backoff
from sandboxes.types import SandboxProviderConfig

if TYPE_CHECKING:
    from daytona import AsyncDaytona

    from sandboxes.protocol import SandboxProvider


Result = TypeVar("Result")


@dataclass
class _Recovery:
    """What the attempts of one task share."""

    load_task: Callable[[], Awaitable[RetrieveTaskResponse]]
    default_max_attempts: int
    task: RetrieveTaskResponse | None = None
    outage: tuple[str, float] | None = None

    async def retrieve_task(self) -> RetrieveTaskResponse:
        if self.task is None:
            self.task = await self.load_task()
        return self.task

    @property
    def losses_allowed(self) -> int:
        policy = self.task.sandbox_recovery if self.task else None
        return policy.max_sandbox_attempts if policy else 1

    @property
    def max_attempts(self) -> int:
        return max(self.default_max_attempts, self.losses_allowed)


@dataclass(frozen=True)
class SandboxRecoveryAttempt:
    """One try of a task in a sandbox of its own."""

    number: int
    outage_id: str | None
    """Names the loss this attempt makes up for; the same until a replacement was set up."""
    outage_started_epoch: float | None
    _shared: _Recovery = field(repr=False, compare=False)

    @property
    def max_attempts(self) -> int:
        """How many attempts there may be, as far as the task is known."""
        return self._shared.max_attempts

    @property
    def sandbox_loss_retry_available(self) -> bool:
        """Whether losing the sandbox now would be followed by another attempt."""
        return self.number < self._shared.losses_allowed

    @property
    def environment(self) -> dict[str, str]:
        """Variables that tell the replacement sandbox what it replaces; none on the first attempt."""
        if self.outage_id is None:
            return {}
        return {
            "VALKYRIE_SANDBOX_OUTAGE_ID": self.outage_id,
            "VALKYRIE_SANDBOX_OUTAGE_STARTED_EPOCH": str(self.outage_started_epoch),
        }

    async def retrieve_task(self) -> RetrieveTaskResponse:
        """The task, asked for once however many attempts there are."""
        return await self._shared.retrieve_task()

    def mark_replacement_ready(self) -> None:
        """The replacement is set up: a further loss is a new outage."""
        self._shared.outage = None


@dataclass(frozen=True)
class RecoveryPlan:
    """What counts as worth another attempt, and who hears of it."""

    retryable: tuple[type[Exception], ...] = ()
    default_max_attempts: int = 1
    retry_delay_s: float = 2.0
    on_retry: Callable[[SandboxRecoveryAttempt, Exception], Awaitable[None] | None] | None = None
    pause: AsyncSleep = asyncio.sleep


async def run_attempts(
    name: str,
    operation: Callable[[SandboxRecoveryAttempt], Awaitable[Result]],
    load_task: Callable[[], Awaitable[RetrieveTaskResponse]],
    plan: RecoveryPlan,
) -> Result:
    """Run `operation` until it ends, again after a lost sandbox where the task's policy allows it."""
    shared = _Recovery(load_task, plan.default_max_attempts)
    worth_a_look: tuple[type[Exception], ...] = (SandboxNotFoundError, *plan.retryable)
    number = 1
    while True:
        outage_id, started = shared.outage or (None, None)
        attempt = SandboxRecoveryAttempt(number, outage_id, started, shared)
        try:
            return await operation(attempt)
        except worth_a_look as error:
            if not await _another(attempt, error, shared, plan):
                raise
            if isinstance(error, SandboxNotFoundError) and shared.outage is None:
                shared.outage = (f"{name}:{number}:{uuid.uuid4().hex}", time.time())
            if plan.on_retry is not None:
                told = plan.on_retry(attempt, error)
                if inspect.isawaitable(told):
                    await told
        await plan.pause(plan.retry_delay_s)
        number += 1


async def _another(
    attempt: SandboxRecoveryAttempt, error: Exception, shared: _Recovery, plan: RecoveryPlan
) -> bool:
    if isinstance(error, SandboxNotFoundError):
        await shared.retrieve_task()
        if attempt.sandbox_loss_retry_available:
            return True
    return isinstance(error, plan.retryable) and attempt.number < shared.max_attempts


# Talk to a benchmark service: list and set up tasks, have answers graded, get the score.


class V1Calls:
    """The part of a client that speaks `/v1`."""

    _http: ServiceHttp

    async def list_tasks(self, dataset: str = "default") -> V1DatasetTasksResponse:
        """Return all tasks of a dataset, as standalone runners see them."""
        path = f"/v1/datasets/{quote(dataset, safe='')}/tasks"
        return await self._http.ask(V1DatasetTasksResponse, ServiceCall("List tasks", "GET", path))

    async def v1_evaluate(
        self,
        run_id: str,
        task_id: str,
        payload_data: Any,
        payload_schema: str,
        payload_type: V1PayloadType = V1PayloadType.TEXT,
        dataset: str | None = None,
        versions: V1Versions | None = None,
    ) -> V1EvalResponse:
        """Have a submission graded. Never sent twice once the service may have it."""
        request = V1EvalRequest(
            run_id=run_id,
            task_id=task_id,
            dataset=dataset,
            payload=V1Payload(type=payload_type, schema_id=payload_schema, data=payload_data),
            versions=versions or V1Versions(),
        )
        return await self._post_once(V1EvalResponse, "V1 evaluate", "/v1/evaluate", request)

    async def v1_score(
        self,
        run_id: str,
        evaluation_results: Mapping[str, V1ScoreItem | None],
        dataset: str | None = None,
    ) -> V1ScoreResponse:
        """The score of graded submissions."""
        request = V1ScoreRequest(run_id=run_id, dataset=dataset, evaluation_results=dict(evaluation_results))
        return await self._post_once(V1ScoreResponse, "V1 score", "/v1/score", request)

    async def v1_upload_url(
        self, run_id: str, task_id: str, filename: str, dataset: str | None = None
    ) -> V1UploadUrlResponse:
        """Return where to upload an artifact to."""
        request = V1UploadUrlRequest(run_id=run_id, task_id=task_id, dataset=dataset, filename=filename)
        return await self._post_once(
            V1UploadUrlResponse, "V1 upload URL", "/v1/submissions/upload-url", request
        )

    async def _post_once(self, model: type[Model], operation: str, path: str, request: BaseModel) -> Model:
        body = request.model_dump(mode="json", by_alias=True)
        if body.get("dataset") is None:
            body.pop("dataset", None)
        return await self._http.ask(model, ServiceCall(operation, "POST", path, body=body, safe=False))


RUN_ID_HEADER = "X-Vals-Run-ID"
TASK_ID_HEADER = "X-Vals-Task-ID"
_MAX_QUERY_CHARS = 6000
_PROBE_TIMEOUT_S = 5


def _bounded(longest_s: float) -> Backoff:
    """Return the back-off of a client that waits no longer at once, also when it is asked to."""
    return Backoff(first_s=1.0, longest_s=longest_s, jitter=1.0, attempts=5, cap_asked_s=longest_s)


class BenchmarkServiceClient(V1Calls):
    """One service. Use as `async with`, or call `close`."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60,
        *,
        ws_idle_timeout_s: float | None = None,
        dataset_version: str | None = None,
        max_chunk_bytes: int = 64 * 1024 * 1024,
        max_retry_wait: float = 60,
        resume_attempts: int = 5,
        run_id: str | None = None,
        task_id: str | None = None,
        resolve: Resolve | None = None,
        pause: AsyncSleep = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`resolve` says which addresses a host's connections may go to; left out, the system's resolver."""
        self._url = checked_url(url)
        telemetry = {RUN_ID_HEADER: run_id, TASK_ID_HEADER: task_id}
        extra = {name: quote(value, safe="/:@ ") for name, value in telemetry.items() if value}
        self._headers = checked_headers({**(headers or {}), **extra})
        self._timeout = timeout
        self._pause = pause
        self._daytona_client: AsyncDaytona | None = None
        self._http_client = HttpClient(
            self._headers,
            connect_s=min(timeout, 15),
            read_s=timeout,
            keepalive_s=2,
            resolve=resolve,
            cookies=True,
        )
        backoff = replace(_bounded(max_retry_wait), draw=jitter, sleep=pause)
        self._resume_backoff = replace(backoff, attempts=resume_attempts + 1, first_s=2.0)
        self._http = ServiceHttp(
            self._url,
            self._http_client,
            backoff,
            Masker.from_settings(self._headers),
            timeout=timeout,
            max_bytes=max_chunk_bytes,
            dataset_version=dataset_version,
        )
        self._streams = ServiceStreams(
            self._url,
            backoff,
            max_chunk_bytes=max_chunk_bytes,
            idle_timeout_s=idle_timeout(ws_idle_timeout_s),
            probe=self._is_alive,
            dataset_version=dataset_version,
            resolve=resolve,
        )

    def __repr__(self) -> str:
        return f"BenchmarkServiceClient({shown_url(self._url)!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of all connections."""
        try:
            await self._http_client.close()
        finally:
            if self._daytona_client is not None:
                daytona, self._daytona_client = self._daytona_client, None
                await daytona.close()  # type: ignore[no-untyped-call]

    async def health_check(self, *, retry: bool = True) -> bool:
        """Return whether the service says it is well. Raises when it cannot be reached at all."""
        return await self.health_status(retry=retry) == 200

    async def health_status(self, *, retry: bool = True) -> int:
        """Return the HTTP status with which the service answers for its health."""
        attempts = None if retry else 1
        call = ServiceCall("Health check", "GET", "/health", pinned=False, attempts=attempts)
        return (await self._http.send(call)).status_code

    async def version(self, dataset: str | None = None) -> VersionResponse:
        """Return what the service says of itself; all None from a service too old to say it."""
        call = ServiceCall("Version", "GET", "/version", params=given(dataset=dataset), pinned=False)
        try:
            return await self._http.ask(VersionResponse, call)
        except BenchmarkServiceError as error:
            if error.status_code != 404:
                raise
            return VersionResponse()

    async def verify_task_ids(
        self, task_ids: Sequence[str] | None = None, slice_str: str | None = None, dataset: str | None = None
    ) -> VerifyTaskIdsResponse:
        """The ids that exist: of those given, else of the slice, else all. Unknown ids raise."""
        if task_ids is not None and not task_ids:
            return VerifyTaskIdsResponse(task_ids=[])
        rest = given(slice=slice_str, dataset=dataset)
        params = [("task_ids", task_id) for task_id in task_ids or ()] + rest
        if len(urlencode(params)) <= _MAX_QUERY_CHARS:
            return await self._verify(params)
        body = VerifyTaskIdsRequest(task_ids=list(task_ids or ()), slice=slice_str, dataset=dataset)
        try:
            return await self._http.ask(
                VerifyTaskIdsResponse,
                ServiceCall(
                    "Verify task IDs", "POST", "/verify-task-ids", body=body.model_dump(exclude_none=True)
                ),
            )
        except BenchmarkServiceError as error:
            if error.status_code not in (404, 405):
                raise
        found: dict[str, None] = {}
        for batch in batches(task_ids or (), _MAX_QUERY_CHARS - len(urlencode(rest))):
            answer = await self._verify([("task_ids", task_id) for task_id in batch] + rest)
            found.update(dict.fromkeys(answer.task_ids))
        return VerifyTaskIdsResponse(task_ids=list(found))

    async def _verify(self, params: Params) -> VerifyTaskIdsResponse:
        return await self._http.ask(
            VerifyTaskIdsResponse, ServiceCall("Verify task IDs", "GET", "/verify-task-ids", params=params)
        )

    async def retrieve_task(
        self, task_id: str, skip_validation: bool = False, dataset: str | None = None
    ) -> RetrieveTaskResponse:
        """Return what a trial of the task needs."""
        params = given(task_id=task_id, skip_validation=str(skip_validation).lower(), dataset=dataset)
        return await self._http.ask(
            RetrieveTaskResponse, ServiceCall("Retrieve task", "GET", "/retrieve-task/", params=params)
        )

    async def setup_task(
        self,
        task_id: str,
        instance_id: str,
        sandbox_provider: SandboxProviderConfig | None = None,
        on_message: TextCallback | None = None,
        dataset: str | None = None,
        *,
        on_error: TextCallback | None = None,
    ) -> SetupTaskResponse:
        """Have the service set the task up in the sandbox `instance_id`."""
        data = await self._streams.result(
            StreamSpec(
                "Setup task",
                "/ws/setup-task",
                instance_body(task_id, instance_id, sandbox_provider, dataset),
                stream_headers(self._headers, sandbox_provider),
                on_message,
                on_error,
            )
        )
        return checked(SetupTaskResponse, data, "Setup task")

    async def evaluate_response(self, task_id: str, response: str, dataset: str | None = None) -> Any:
        """Have a text answer graded. Never sent twice once the service may have it."""
        body = dict(given(task_id=task_id, response=response, dataset=dataset))
        return await self._http.json(
            ServiceCall("Evaluate response", "POST", "/evaluate-response/", body=body, safe=False)
        )

    async def evaluate_instance(
        self,
        task_id: str,
        instance_id: str,
        sandbox_provider: SandboxProviderConfig | None = None,
        on_message: TextCallback | None = None,
        on_resume_state: StateCallback | None = None,
        dataset: str | None = None,
        *,
        on_error: TextCallback | None = None,
    ) -> Any:
        """Have the work in the sandbox `instance_id` graded; goes on from the service's newest saved state
        when the stream breaks. `on_resume_state` is done with a state before the next chunk is read."""
        spec = StreamSpec(
            "Evaluate instance",
            "/ws/evaluate-instance",
            instance_body(task_id, instance_id, sandbox_provider, dataset),
            stream_headers(self._headers, sandbox_provider),
            on_message,
            on_error,
            on_resume_state,
        )
        return await self._streams.evaluation(spec, None, self._resume_backoff, sandbox_provider)

    async def resume_evaluation(
        self,
        task_id: str,
        eval_resume_state: dict[str, Any],
        sandbox_provider: SandboxProviderConfig | None = None,
        on_message: TextCallback | None = None,
        on_resume_state: StateCallback | None = None,
        dataset: str | None = None,
        *,
        on_error: TextCallback | None = None,
    ) -> Any:
        """Go on with an evaluation from a state the service gave earlier."""
        spec = StreamSpec(
            "Resume evaluation",
            RESUME_PATH,
            resume_body(task_id, eval_resume_state, sandbox_provider, dataset),
            stream_headers(self._headers, sandbox_provider),
            on_message,
            on_error,
            on_resume_state,
        )
        return await self._streams.evaluation(spec, eval_resume_state, self._resume_backoff, sandbox_provider)

    async def final_score(
        self,
        evaluation_results: Mapping[str, Any],
        dataset: str | None = None,
        *,
        task_outcomes: Mapping[str, Any] | None = None,
    ) -> FinalScoreResponse:
        """The score of a run: every task's result, None for those without one."""
        body: dict[str, Any] = {"evaluation_results": dict(evaluation_results)}
        if dataset is not None:
            body["dataset"] = dataset
        if task_outcomes is not None:
            body["task_outcomes"] = dict(task_outcomes)
        return await self._http.ask(
            FinalScoreResponse, ServiceCall("Final score", "POST", "/final-score/", body=body)
        )

    async def resolve_dataset(self, dataset: str, version: str | None = None) -> DatasetVersion:
        """Return which version a dataset's name and version stand for; pin it with `dataset_version`."""
        body = {"dataset": dataset, "version": version}
        answer = await self._http.json(
            ServiceCall("Resolve dataset", "POST", "/resolve-dataset", body=body, pinned=False)
        )
        found = answer.get("version") if isinstance(answer, dict) else answer
        return checked(DatasetVersion, found, "Resolve dataset")

    def get_sandbox_provider(self, config: SandboxProviderConfig | None = None) -> SandboxProvider:
        """The provider of a config, or of this client's own headers. The caller closes it."""
        return (config or provider_config_in(self._headers)).create_provider()

    @property
    def daytona_client(self) -> AsyncDaytona:
        """A Daytona client of this client's own headers; closed with it."""
        if self._daytona_client is None:
            from daytona import AsyncDaytona, DaytonaConfig

            config = provider_config_in(self._headers)
            self._daytona_client = AsyncDaytona(
                DaytonaConfig(
                    api_key=config.DAYTONA_API_KEY,
                    api_url=config.DAYTONA_API_URL,
                    target=config.DAYTONA_TARGET,
                )
            )
        return self._daytona_client

    async def run_with_sandbox_recovery(
        self,
        task_id: str,
        run_id: str,
        operation: Callable[[SandboxRecoveryAttempt], Awaitable[Result]],
        *,
        dataset: str | None = None,
        retryable_attempt_errors: tuple[type[Exception], ...] = (),
        default_max_attempts: int = 1,
        retry_delay_s: float = 2.0,
        on_retry: Callable[[SandboxRecoveryAttempt, Exception], Awaitable[None] | None] | None = None,
    ) -> Result:
        """Run `operation`, again after its sandbox was lost where the task's recovery policy allows it."""
        for name, value in {"task_id": task_id, "run_id": run_id}.items():
            if not value:
                raise ValueError(f"{name} must be non-empty")
        plan = RecoveryPlan(
            retryable_attempt_errors, default_max_attempts, retry_delay_s, on_retry, self._pause
        )
        return await run_attempts(
            f"{run_id}:{task_id}", operation, lambda: self.retrieve_task(task_id, dataset=dataset), plan
        )

    async def _is_alive(self) -> bool:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                return await self.health_check(retry=False)
        except (BenchmarkServiceError, TimeoutError):
            return False


__all__ = [
    "BenchmarkServiceClient",
    "BenchmarkServiceConnectionError",
    "BenchmarkServiceError",
    "BenchmarkServiceProtocolError",
    "BenchmarkServiceStreamClosedError",
    "BenchmarkServiceUnauthenticatedError",
    "SandboxRecoveryAttempt",
    "StreamIdleError",
    "VerifyTaskIdsResponse",
]
