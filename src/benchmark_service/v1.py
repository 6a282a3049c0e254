"""The `/v1` routes, for callers that hold a tenant's key."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, HTTPException, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel

from benchmark_service import admission, auth, aws
from benchmark_service.base import BenchmarkService
from benchmark_service.responses import JsonAnswer, to_json
from benchmark_service.routes import checked_score
from benchmark_service.schemas import EvalMode
from benchmark_service.submissions import GradingJob, GradingUnavailable, for_trial, graded, provider_config
from benchmark_service.v1_schemas import (
    V1DatasetTasksResponse,
    V1EvalRequest,
    V1EvalResponse,
    V1PayloadType,
    V1ScoreRequest,
    V1ScoreResponse,
    V1Status,
    V1Task,
    V1UploadUrlRequest,
    V1UploadUrlResponse,
)

if TYPE_CHECKING:
    from fastapi import FastAPI


class TaskInputEntry(BaseModel):
    """One file: its name, and where in the sandbox it goes."""

    filename: str
    dest: str


class TaskInputs(BaseModel):
    """All files of a task."""

    inputs: list[TaskInputEntry]


async def listed_inputs(service: BenchmarkService, task_id: str, dataset: str) -> TaskInputs:
    """Return what the service declares for the task."""
    declared = await service.list_task_inputs(task_id, dataset)
    return TaskInputs(inputs=[TaskInputEntry(filename=entry.filename, dest=entry.dest) for entry in declared])


async def input_file(service: BenchmarkService, task_id: str, filename: str, dataset: str) -> FileResponse:
    """One declared file's bytes; a name that is not declared never reaches the file system."""
    listed = await listed_inputs(service, task_id, dataset)
    if filename not in {entry.filename for entry in listed.inputs}:
        raise HTTPException(404, f"Input not found: {filename}")
    path = Path(await service.task_input_path(task_id, filename, dataset))
    if not path.is_file():
        raise HTTPException(404, f"Input not found: {filename}")
    return FileResponse(path, media_type="application/octet-stream", filename=filename)


# The `/v1` routes, for callers that hold a tenant's key.

log = logging.getLogger(__name__)

_MEANING = {
    400: "The service does not take that payload or task",
    401: "Unauthorized",
    403: "No tenant, or not its dataset",
    404: "No such dataset, task or artifact",
    409: "Already in progress, or the artifact changed",
    413: "The artifact is too large",
    429: "Over capacity or quota; see Retry-After",
    501: "The service does not offer that",
    503: "The service is not set up for that now",
}


def add_v1_routes(app: FastAPI) -> None:
    """Put the `/v1` routes on an app that has `service` and `admission`."""

    def route(path: str, endpoint: Any, method: str, model: type[BaseModel], *more: int) -> None:
        described: dict[int | str, dict[str, Any]] = {200: {"model": model}}
        described |= {status: {"description": _MEANING[status]} for status in (401, 403, *more)}
        # Not by way of a router of our own: services look through `app.router.routes` by path.
        app.add_api_route(f"/v1{path}", endpoint, methods=[method], response_model=None, responses=described)

    route("/evaluate", evaluate, "POST", V1EvalResponse, 400, 404, 409, 413, 429, 501, 503)
    route("/score", score, "POST", V1ScoreResponse, 400, 404)
    route("/datasets/{dataset}/tasks", dataset_tasks, "GET", V1DatasetTasksResponse, 404, 501)
    route("/datasets/{dataset}/tasks/{task_id}/inputs", task_inputs, "GET", TaskInputs, 404)
    app.add_api_route(
        "/v1/datasets/{dataset}/tasks/{task_id}/inputs/{filename}",
        task_input,
        response_class=FileResponse,
        responses={status: {"description": _MEANING[status]} for status in (401, 403, 404)},
    )
    route("/submissions/upload-url", upload_url, "POST", V1UploadUrlResponse, 400, 503)


async def tenant_of(request: Request) -> str:
    """The caller's tenant; callers without one have no business here."""
    tenant = getattr(request.state, "tenant", None)
    if not isinstance(tenant, str) or tenant == auth.LEGACY_TENANT:
        raise HTTPException(403, "The /v1 endpoints need an access key of a tenant (x-descope-api-key).")
    return tenant


async def service_of(request: Request) -> BenchmarkService:
    """The benchmark being served."""
    service: BenchmarkService = request.app.service
    return service


Tenant = Annotated[str, Depends(tenant_of)]
Service = Annotated[BenchmarkService, Depends(service_of)]


async def evaluate(body: V1EvalRequest, request: Request, tenant: Tenant, service: Service) -> JsonAnswer:
    """Grade one submission."""
    await _require_dataset(service, tenant, body.dataset)
    await _require_task(service, body.task_id, body.dataset)
    ref = _check_payload(service, tenant, body)
    trial = await auth.is_trial(tenant)
    if trial and type(service).project_trial_result is BenchmarkService.project_trial_result:
        raise HTTPException(501, "This service has no trial mode.")
    try:
        async with request.app.admission.admit(tenant, (body.run_id, body.task_id)):
            await auth.consume_quota(request.app.deployment_name, tenant)
            content = await aws.download_artifact(ref) if ref is not None else str(body.payload.data)
            answer = await graded(service, _job(tenant, body, content))
    except (admission.Busy, admission.Duplicate, admission.QuotaReached, admission.QuotaUnavailable) as error:
        raise _refusal(error) from None
    except tuple(_ARTIFACT_STATUS) as error:
        raise _artifact_problem(error) from None
    if trial:
        return _answer(await for_trial(service, answer))
    answer.evaluator_version = service.get_service_version() or request.app._service_version
    return _answer(answer)


async def score(body: V1ScoreRequest, tenant: Tenant, service: Service) -> JsonAnswer:
    """The score of a run, from what `/v1/evaluate` answered for its tasks."""
    await _require_dataset(service, tenant, body.dataset)
    _require_loaded(service, body.dataset)
    try:
        await service.validate_task_ids(list(body.evaluation_results), dataset=body.dataset)
    except ValueError as error:
        raise HTTPException(400, str(error)) from None
    results = {
        task_id: item.result if item is not None and item.status == V1Status.EVALUATED else None
        for task_id, item in body.evaluation_results.items()
    }
    total = checked_score(await service.calculate_final_score(results, dataset=body.dataset))
    return _answer(
        V1ScoreResponse(
            run_id=body.run_id,
            tasks_evaluated=list(results),
            final_score=total.score,
            metadata={} if await auth.is_trial(tenant) else total.metadata,
        )
    )


async def dataset_tasks(dataset: str, tenant: Tenant, service: Service) -> JsonAnswer:
    """The tasks of a dataset, as the service shows them."""
    # Access first: whether a dataset exists is nobody's business who may not use it.
    await _require_dataset(service, tenant, dataset)
    _require_loaded(service, dataset)
    try:
        tasks = await service.list_tasks(dataset)
    except NotImplementedError as error:
        raise HTTPException(501, str(error) or "This service does not list its tasks.") from None
    answer = V1DatasetTasksResponse.model_validate(
        {"dataset": dataset, "dataset_version": service.get_dataset_version(dataset), "tasks": tasks}
    )
    if await auth.is_trial(tenant):
        shown = [V1Task(id=task.id, question=task.question, timeout=task.timeout) for task in answer.tasks]
        answer = answer.model_copy(update={"tasks": shown})
    return _answer(answer)


async def task_inputs(dataset: str, task_id: str, tenant: Tenant, service: Service) -> JsonAnswer:
    """The files a task comes with."""
    await _require_dataset(service, tenant, dataset)
    await _require_task(service, task_id, dataset)
    return _answer(await listed_inputs(service, task_id, dataset))


async def task_input(
    dataset: str, task_id: str, filename: str, tenant: Tenant, service: Service
) -> FileResponse:
    """One of those files."""
    await _require_dataset(service, tenant, dataset)
    await _require_task(service, task_id, dataset)
    return await input_file(service, task_id, filename, dataset)


async def upload_url(body: V1UploadUrlRequest, tenant: Tenant, service: Service) -> JsonAnswer:
    """A place to upload an artifact to before it is submitted."""
    await _require_dataset(service, tenant, body.dataset)
    try:
        key = aws.artifact_key(tenant, body.dataset, body.run_id, body.task_id, body.filename)
        url = await aws.artifact_upload_url(key)
    except aws.ArtifactRefused as error:
        raise HTTPException(400, str(error)) from None
    except aws.ArtifactsUnavailable as error:
        raise _artifact_problem(error) from None
    return _answer(V1UploadUrlResponse(key=key, url=url, expires_in=aws.UPLOAD_EXPIRES_S))


async def _require_dataset(service: BenchmarkService, tenant: str, dataset: str | None) -> None:
    if not await service.check_dataset_access(tenant, dataset):
        raise HTTPException(403, f"Dataset={dataset or 'default'} access not allowed")


def _require_loaded(service: BenchmarkService, dataset: str | None) -> None:
    try:
        service.get_dataset(dataset)
    except ValueError:
        # Without the service's own words, which name every dataset there is.
        raise HTTPException(404, f"Dataset not found: {dataset or 'default'}") from None


async def _require_task(service: BenchmarkService, task_id: str, dataset: str | None) -> None:
    _require_loaded(service, dataset)
    try:
        await service.validate_task_ids([task_id], dataset=dataset)
    except ValueError:
        raise HTTPException(404, f"Task not found: {task_id}") from None


def _check_payload(service: BenchmarkService, tenant: str, body: V1EvalRequest) -> aws.ArtifactRef | None:
    """Refuse what the service does not grade; the artifact to fetch, if it is one."""
    payload = body.payload
    accepted = service.accepted_submission_schemas
    if accepted:
        if payload.schema_id not in accepted.get(payload.type, frozenset()):
            raise _not_accepted(f"no {payload.type.value} of schema {payload.schema_id!r}")
    elif payload.type is not V1PayloadType.TEXT:
        raise _not_accepted("only text")
    if service.eval_mode == EvalMode.TEXT and payload.type is not V1PayloadType.TEXT:
        raise _not_accepted("only text")
    if service.eval_mode == EvalMode.SANDBOX:
        _require_grading_sandboxes()
    if payload.type is V1PayloadType.TEXT:
        if not isinstance(payload.data, str):
            raise _not_accepted("data of a text payload must be a string")
        return None
    try:
        return aws.artifact_ref(payload.data, tenant, body.dataset, body.run_id, body.task_id)
    except aws.ArtifactRefused as error:
        raise _not_accepted(str(error)) from None


def _require_grading_sandboxes() -> None:
    try:
        provider_config()
    except GradingUnavailable as error:
        raise HTTPException(503, str(error)) from None


def _job(tenant: str, body: V1EvalRequest, content: str | bytes) -> GradingJob:
    return GradingJob(
        tenant=tenant,
        dataset=body.dataset,
        run_id=body.run_id,
        task_id=body.task_id,
        schema_id=body.payload.schema_id,
        content=content,
    )


def _answer(content: BaseModel) -> JsonAnswer:
    return JsonAnswer(to_json(content.model_dump(warnings=False)).encode())


def _not_accepted(why: str) -> HTTPException:
    return HTTPException(400, f"Payload not accepted: {why}")


def _refusal(error: Exception) -> HTTPException:
    match error:
        case admission.Duplicate():
            return HTTPException(409, str(error))
        case admission.Busy():
            return HTTPException(429, str(error), headers={"Retry-After": str(error.retry_after)})
        case admission.QuotaReached():
            return HTTPException(429, str(error), headers={"Retry-After": str(error.retry_after())})
    return HTTPException(503, str(error))


_ARTIFACT_STATUS: dict[type[Exception], int] = {
    aws.ArtifactMissing: 404,
    aws.ArtifactChanged: 409,
    aws.ArtifactTooLarge: 413,
    aws.ArtifactsUnavailable: 503,
}


def _artifact_problem(error: Exception) -> HTTPException:
    if isinstance(error, aws.ArtifactsUnavailable):
        log.error("artifact store: %s", error)
        return HTTPException(503, "Artifact uploads are not available on this service.")
    return HTTPException(_ARTIFACT_STATUS[type(error)], str(error))


__all__ = [
    "TaskInputs",
    "add_v1_routes",
    "input_file",
    "listed_inputs",
]
