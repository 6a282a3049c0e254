"""The HTTP routes that every client of a benchmark service speaks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Request
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from benchmark_service import __version__, pinning, scoring
from benchmark_service.encoding import to_json
from benchmark_service.failures import JsonAnswer, ServiceFault, message_of
from benchmark_service.schemas import (
    EvaluateResponseRequest,
    FinalScoreRequest,
    FinalScoreResponse,
    RetrieveTaskResponse,
    TaskFilter,
    VerifyTaskIdsRequest,
    VerifyTaskIdsResponse,
    VersionResponse,
)
from benchmark_service.versions import DatasetVersion
from sandboxes.configs import SandboxProviderName

if TYPE_CHECKING:
    from benchmark_service.app import BenchmarkServiceApp
    from benchmark_service.base import BenchmarkService

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
        results = scoring.unwrap_results(body.evaluation_results)
        if body.task_outcomes is None:
            given = await service.calculate_final_score(results, dataset=body.dataset)
        else:
            scoring.check_outcomes(results, body.task_outcomes)
            given = await service.calculate_final_score_with_outcomes(
                results, body.task_outcomes, dataset=body.dataset
            )
    score = scoring.checked_score(given)
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
    if pinning.wanted_version(request.headers) is not None:
        raise ValueError(f"/resolve-dataset takes the version in its body, not in {pinning.HEADER}")
    service = await _allowed(request, body.dataset)
    version = await pinning.resolve(service, body.dataset, body.version)
    named = {"dataset": body.dataset or "default", "version": {"id": version.id, "label": version.label}}
    return _answer(named, "version")


def is_refused_docker(config: Any) -> bool:
    """Whether a request asks for containers on this machine and nobody enabled them."""
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
    async with pinning.pinned(service, request.headers, dataset) as version:
        yield service, {pinning.HEADER: version.id} if version else {}


@asynccontextmanager
async def _admitted(app: BenchmarkServiceApp, tenant: str) -> AsyncIterator[None]:
    """Hold a place, where places are limited, and count the evaluation against the tenant's quota."""
    from benchmark_service import admission, auth, quota

    limited = bool(os.environ.get("GRADING_MAX_CONCURRENCY", "").strip())
    try:
        async with app.admission.admit(tenant) if limited else nullcontext():
            await auth.consume_quota(app.deployment_name, tenant)
            yield
    except admission.Busy as busy:
        raise HTTPException(429, str(busy), {"Retry-After": str(busy.retry_after)}) from None
    except quota.QuotaReached as reached:
        raise HTTPException(429, str(reached), {"Retry-After": str(reached.retry_after())}) from None
    except quota.QuotaUnavailable as error:
        raise HTTPException(503, str(error)) from None


def _answer(content: Any, what: str = "result", headers: dict[str, str] | None = None) -> JsonAnswer:
    return JsonAnswer(to_json(content, what).encode(), headers=headers)
