"""The HTTP routes every client of a benchmark service speaks, dataset versions and final scores included."""

from __future__ import annotations

import math
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from benchmark_service import __version__, admission, auth
from benchmark_service.responses import JsonAnswer, ServiceFault, message_of, to_json
from benchmark_service.schemas import (
    EvaluateResponseRequest,
    FinalScoreRequest,
    FinalScoreResponse,
    FinalScoreResult,
    RetrieveTaskResponse,
    TaskFilter,
    VerifyTaskIdsRequest,
    VerifyTaskIdsResponse,
    VersionResponse,
)
from benchmark_service.v1_schemas import ENVELOPE_KEYS, V1Status
from benchmark_service.versions import DatasetVersion
from sandboxes.types import SandboxProviderName

if TYPE_CHECKING:
    from benchmark_service.app import BenchmarkServiceApp
    from benchmark_service.base import BenchmarkService


VERSION_HEADER = "X-Benchmark-Dataset-Version"
_ID = re.compile(r"[!-~]{1,1024}")


def wanted_version(headers: Headers) -> str | None:
    """The version a request asks for; ValueError when the header is not one plain id."""
    given = headers.getlist(VERSION_HEADER)
    if not given:
        return None
    if len(given) != 1 or not _ID.fullmatch(given[0]):
        raise ValueError(f"{VERSION_HEADER} must be given once, as 1 to 1024 visible ASCII characters")
    return given[0]


@asynccontextmanager
async def pinned_version(
    service: BenchmarkService, headers: Headers, dataset: str | None
) -> AsyncIterator[DatasetVersion | None]:
    """Serve from the version the request asks for; None when it asks for none."""
    wanted = wanted_version(headers)
    if wanted is None:
        yield None
        return
    async with service.open_dataset_version(*_selectable(service, dataset, wanted)) as version:
        if version.id != wanted:
            raise HTTPException(409, f"The service selected version {version.id}, not {wanted}")
        yield version


async def resolve_version(
    service: BenchmarkService, dataset: str | None, version: str | None
) -> DatasetVersion:
    """The version that a label or id, or nothing for the newest, stands for."""
    async with service.open_dataset_version(*_selectable(service, dataset, version)) as resolved:
        return resolved


def _selectable(
    service: BenchmarkService, dataset: str | None, version: str | None
) -> tuple[str | None, str | None]:
    if not service.supports_dataset_version_selection(dataset):
        raise ValueError(f"Dataset '{dataset or 'default'}' has no versions to select from on this service")
    return dataset, version


def version_refusal(error: Exception) -> tuple[int, str]:
    """Status and words of a selection that failed, for a stream that has no status line."""
    if isinstance(error, HTTPException):
        return error.status_code, message_of(error)
    if isinstance(error, ValueError) and not isinstance(error, ValidationError):
        return 400, message_of(error)
    return (501 if isinstance(error, NotImplementedError) else 500), message_of(error)


# What `calculate_final_score` is given and what is made of its answer, the same for every caller.

_STATUSES = frozenset(V1Status)


def is_envelope(value: object) -> bool:
    """Return whether a result is wrapped as `{task_id, status, result, error}`.

    Strict, because a benchmark's own result may well own a `status` key: no other key, a task id, a known
    status, and a result or an error.
    """
    if not isinstance(value, Mapping):
        return False
    keys = set(value)
    return (
        keys <= ENVELOPE_KEYS
        and {"task_id", "status"} <= keys
        and bool(keys & {"result", "error"})
        and isinstance(value["status"], str)
        and value["status"] in _STATUSES
    )


def unwrap(value: Any) -> Any:
    """The raw result; None for an envelope whose task was not evaluated."""
    if not is_envelope(value):
        return value
    return value.get("result") if value["status"] == V1Status.EVALUATED else None


def unwrap_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return every task's raw result."""
    return {task_id: unwrap(value) for task_id, value in results.items()}


def checked_score(answer: Any) -> FinalScoreResult:
    """Return what `calculate_final_score` returned, or a ServiceFault that says what is wrong with it."""
    try:
        result = answer if isinstance(answer, FinalScoreResult) else FinalScoreResult.model_validate(answer)
    except ValidationError as error:
        raise ServiceFault(
            f"calculate_final_score must return a FinalScoreResult, not {type(answer).__name__}"
        ) from error
    if not math.isfinite(result.score):
        raise ServiceFault(f"calculate_final_score returned the score {result.score}, which is not a number")
    return result


def check_outcomes(results: Mapping[str, Any], outcomes: Mapping[str, Any]) -> None:
    """Outcomes speak of exactly the tasks the results do, and call evaluated what has a result."""
    if set(results) != set(outcomes):
        odd = sorted(set(results) ^ set(outcomes))[:3]
        raise ValueError(f"task_outcomes and evaluation_results differ in their tasks: {', '.join(odd)}")
    for task_id, outcome in outcomes.items():
        kind = outcome.get("kind") if isinstance(outcome, Mapping) else None
        if kind not in ("evaluated", "error", "unavailable"):
            raise ValueError(f"task_outcomes: {task_id} needs a kind: evaluated, error or unavailable")
        if (kind == "evaluated") != (results[task_id] is not None):
            raise ValueError(f"task_outcomes: {task_id} is {kind}, which its result contradicts")


# The HTTP routes that every client of a benchmark service speaks.

DOCKER_DISABLED = "Docker sandboxes are disabled on this service"
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The service does not have that, or does not take it"},
    401: {"description": "Unauthorized"},
    403: {"description": "Dataset not allowed"},
}
_EVALUATION_ERRORS: dict[int | str, dict[str, Any]] = {
    **_ERRORS,
    429: {"description": "Over capacity or quota; see Retry-After"},
    503: {"description": "Quota cannot be checked"},
}


def add_routes(app: BenchmarkServiceApp) -> None:
    """Add them to `app`."""

    def route(
        path: str, endpoint: Any, method: str = "GET", model: Any = None, errors: Any = _ERRORS
    ) -> None:
        described: dict[int | str, dict[str, Any]] = {200: {"model": model}} if model is not None else {}
        app.add_api_route(
            path, endpoint, methods=[method], response_model=None, responses={**described, **errors}
        )

    route("/health", _health, errors={})
    route("/version", _version, model=VersionResponse, errors={})
    route("/verify-task-ids", _verify_task_ids, model=VerifyTaskIdsResponse)
    route("/verify-task-ids", _verify_many_task_ids, "POST", VerifyTaskIdsResponse)
    route("/retrieve-task/", _retrieve_task, model=RetrieveTaskResponse)
    route("/evaluate-response/", _evaluate_response, "POST", errors=_EVALUATION_ERRORS)
    route("/final-score/", _final_score, "POST", FinalScoreResponse)
    route("/resolve-dataset", _resolve_dataset, "POST", ResolveDatasetResponse)


async def _health() -> dict[str, str]:
    return {"status": "ok"}


async def _version(request: Request, dataset: str | None = None) -> JsonAnswer:
    app: BenchmarkServiceApp = request.app
    service = app.service
    mode = app.declared_eval_mode
    return _answer(
        VersionResponse.model_validate(
            {
                "framework_version": __version__,
                "service_name": app._service_name,
                "service_version": service.get_service_version() or app._service_version,
                "dataset_version": service.get_dataset_version(dataset),
                "eval_mode": mode and str(mode),
                "dataset_version_selection": bool(service.supports_dataset_version_selection(dataset)),
                "sandbox_providers": list(service.sandbox_providers),
                "default_sandbox_provider": service.default_sandbox_provider,
            }
        ).model_dump(mode="json")
    )


async def _verify_task_ids(
    request: Request,
    task_ids: Annotated[list[str] | None, Query()] = None,
    slice: Annotated[str | None, Query(description="start:stop:step")] = None,
    dataset: str | None = None,
) -> JsonAnswer:
    return await _verified(request, VerifyTaskIdsRequest(task_ids=task_ids, slice=slice, dataset=dataset))


async def _verify_many_task_ids(request: Request, body: VerifyTaskIdsRequest) -> JsonAnswer:
    return await _verified(request, body)


async def _verified(request: Request, asked: VerifyTaskIdsRequest) -> JsonAnswer:
    wanted = TaskFilter(
        task_ids=list(dict.fromkeys(asked.task_ids or [])) or None,
        slice_str=asked.slice or None,
        dataset=asked.dataset,
    )
    async with _serving(request, asked.dataset) as (service, echo):
        ids = await service.filter_tasks(wanted, dataset=asked.dataset)
    return _answer({"task_ids": list(dict.fromkeys(ids))}, headers=echo)


async def _retrieve_task(
    request: Request,
    task_id: str,
    skip_validation: bool = False,
    dataset: str | None = None,
    sandbox_provider: SandboxProviderName | None = None,
) -> JsonAnswer:
    chosen = sandbox_provider or request.headers.get("x-vals-sandbox-provider")
    async with _serving(request, dataset) as (service, echo):
        if chosen and service.sandbox_providers and chosen not in service.sandbox_providers:
            known = ", ".join(service.sandbox_providers)
            raise ValueError(f"Sandbox provider {chosen} is not supported by this service; it takes {known}")
        task = await service.retrieve_task(task_id, skip_validation, dataset=dataset)
    return _answer(_checked_task(task), "task", echo)


def _checked_task(task: Any) -> dict[str, Any]:
    if not isinstance(task, RetrieveTaskResponse):
        try:
            task = RetrieveTaskResponse.model_validate(task, from_attributes=True)
        except ValidationError as error:
            raise ServiceFault(f"retrieve_task did not return a usable task: {message_of(error)}") from error
    fields: dict[str, Any] = task.model_dump(mode="json", warnings=False)
    return fields


async def _evaluate_response(request: Request, body: EvaluateResponseRequest) -> JsonAnswer:
    app: BenchmarkServiceApp = request.app
    if is_refused_docker(body.sandbox_provider):
        raise HTTPException(403, DOCKER_DISABLED)
    async with _serving(request, body.dataset) as (service, echo):
        async with _admitted(app, request.state.tenant):
            result = await service.evaluate_response(body, dataset=body.dataset)
    return _answer(result, headers=echo)


async def _final_score(request: Request, body: FinalScoreRequest) -> JsonAnswer:
    async with _serving(request, body.dataset) as (service, echo):
        ids = await service.validate_task_ids(list(body.evaluation_results), dataset=body.dataset)
        results = unwrap_results(body.evaluation_results)
        if body.task_outcomes is None:
            given = await service.calculate_final_score(results, dataset=body.dataset)
        else:
            check_outcomes(results, body.task_outcomes)
            given = await service.calculate_final_score_with_outcomes(
                results, body.task_outcomes, dataset=body.dataset
            )
    score = checked_score(given)
    return _answer(
        {"tasks_evaluated": ids, "final_score": score.score, "metadata": score.metadata}, "final score", echo
    )


class ResolveDatasetRequest(BaseModel):
    """Which version is meant: an id or a label, or null for the newest."""

    dataset: str | None = None
    version: str | None = None


class ResolveDatasetResponse(BaseModel):
    """The version it is."""

    dataset: str
    version: DatasetVersion


async def _resolve_dataset(request: Request, body: ResolveDatasetRequest) -> JsonAnswer:
    if wanted_version(request.headers) is not None:
        raise ValueError(f"/resolve-dataset takes the version in its body, not in {VERSION_HEADER}")
    service = await _allowed(request, body.dataset)
    version = await resolve_version(service, body.dataset, body.version)
    named = {"dataset": body.dataset or "default", "version": {"id": version.id, "label": version.label}}
    return _answer(named, "version")


def is_refused_docker(config: Any) -> bool:
    """Return whether a request asks for containers on this machine and nobody enabled them."""
    enabled = os.environ.get("CBS_DOCKER_ENABLED", "").strip().lower() == "true"
    return getattr(config, "type", None) == "docker" and not enabled


async def _allowed(request: Request, dataset: str | None) -> BenchmarkService:
    """The service, if the caller may use the dataset."""
    app: BenchmarkServiceApp = request.app
    if not await app.service.check_dataset_access(request.state.tenant, dataset):
        raise HTTPException(403, "Dataset not allowed")
    return app.service


@asynccontextmanager
async def _serving(
    request: Request, dataset: str | None
) -> AsyncIterator[tuple[BenchmarkService, dict[str, str]]]:
    """The service, at the version the caller asks for, and the headers that confirm it."""
    service = await _allowed(request, dataset)
    async with pinned_version(service, request.headers, dataset) as version:
        yield service, {VERSION_HEADER: version.id} if version else {}


@asynccontextmanager
async def _admitted(app: BenchmarkServiceApp, tenant: str) -> AsyncIterator[None]:
    """Hold a place, where places are limited, and count the evaluation against the tenant's quota."""
    limited = bool(os.environ.get("GRADING_MAX_CONCURRENCY", "").strip())
    try:
        async with app.admission.admit(tenant) if limited else nullcontext():
            await auth.consume_quota(app.deployment_name, tenant)
            yield
    except admission.Busy as busy:
        raise HTTPException(429, str(busy), {"Retry-After": str(busy.retry_after)}) from None
    except admission.QuotaReached as reached:
        raise HTTPException(429, str(reached), {"Retry-After": str(reached.retry_after())}) from None
    except admission.QuotaUnavailable as error:
        raise HTTPException(503, str(error)) from None


def _answer(content: Any, what: str = "result", headers: dict[str, str] | None = None) -> JsonAnswer:
    return JsonAnswer(to_json(content, what).encode(), headers=headers)
