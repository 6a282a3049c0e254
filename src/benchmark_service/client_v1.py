"""A client's `/v1` calls, which standalone runners use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from benchmark_service.client_http import Call, Model, ServiceHttp
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


class V1Calls:
    """The part of a client that speaks `/v1`."""

    _http: ServiceHttp

    async def list_tasks(self, dataset: str = "default") -> V1DatasetTasksResponse:
        """All tasks of a dataset, as standalone runners see them."""
        path = f"/v1/datasets/{quote(dataset, safe='')}/tasks"
        return await self._http.ask(V1DatasetTasksResponse, Call("List tasks", "GET", path))

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
        """Where to upload an artifact to."""
        request = V1UploadUrlRequest(run_id=run_id, task_id=task_id, dataset=dataset, filename=filename)
        return await self._post_once(
            V1UploadUrlResponse, "V1 upload URL", "/v1/submissions/upload-url", request
        )

    async def _post_once(self, model: type[Model], operation: str, path: str, request: BaseModel) -> Model:
        body = request.model_dump(mode="json", by_alias=True)
        if body.get("dataset") is None:
            body.pop("dataset", None)
        return await self._http.ask(model, Call(operation, "POST", path, body=body, safe=False))
