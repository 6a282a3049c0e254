"""Requests that pin the version of their dataset."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import HTTPException

from benchmark_service import DatasetVersion
from tests.integration.benchmark_service.conftest import Live, live_app
from tests.integration.benchmark_service.test_sockets import hear, instance
from tests.integration.benchmark_service.toy_service import Ground, ToyService

HEADER = "X-Benchmark-Dataset-Version"


class Versioned(ToyService):
    """`default` has versions v1 and v2 (the newest, labelled 2.0.0); `small` has none."""

    def supports_dataset_version_selection(self, dataset: str | None = None) -> bool:
        return dataset in (None, "", "default")

    @asynccontextmanager
    async def open_dataset_version(
        self, dataset: str | None, version: str | None
    ) -> AsyncIterator[DatasetVersion]:
        match version:
            case None | "v2" | "2.0.0":
                yield DatasetVersion(id="v2", label="2.0.0")
            case "v1":
                yield DatasetVersion(id="v1")
            case _:
                raise HTTPException(404, f"no version {version}")


@pytest.fixture(scope="module")
def versioned() -> Iterator[Live]:
    with live_app(Versioned) as live:
        yield live


@pytest.fixture
def http(versioned: Live) -> Iterator[httpx.Client]:
    with httpx.Client(verify=False, base_url=versioned.url) as client:
        yield client


def test_a_pinned_request_is_confirmed(http: httpx.Client) -> None:
    pin = {HEADER: "v1"}
    answers = [
        http.get("/verify-task-ids", headers=pin),
        http.get("/retrieve-task/?task_id=t1", headers=pin),
        http.post("/evaluate-response/", json={"task_id": "t1", "response": "1"}, headers=pin),
        http.post("/final-score/", json={"evaluation_results": {}}, headers=pin),
    ]
    assert [(answer.status_code, answer.headers[HEADER]) for answer in answers] == [(200, "v1")] * 4
    assert HEADER not in http.get("/verify-task-ids").headers
    assert http.get("/version").json()["dataset_version_selection"] is True


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [
        ([(HEADER, "v9")], "", 404),
        ([(HEADER, "2.0.0")], "", 409),
        ([(HEADER, "v1"), (HEADER, "v2")], "", 400),
        ([(HEADER, "x" * 1025)], "", 400),
        ([(HEADER, "two words")], "", 400),
        ([(HEADER, "")], "", 400),
        ([(HEADER, "v1")], "?dataset=small", 400),
    ],
)
def test_a_pin_that_cannot_be_kept_is_refused(
    http: httpx.Client, headers: Any, query: str, status: int
) -> None:
    answer = http.get(f"/verify-task-ids{query}", headers=headers)
    assert (answer.status_code, HEADER in answer.headers) == (status, False)


def test_a_service_without_versions_refuses_pins(toy: Live) -> None:
    answer = httpx.get(f"{toy.url}/verify-task-ids", headers={HEADER: "v1"})
    assert (answer.status_code, "no versions to select from" in answer.text) == (400, True)
    assert httpx.post(f"{toy.url}/resolve-dataset", json={"dataset": "default"}).status_code == 400


def test_resolve_dataset(http: httpx.Client) -> None:
    def resolved(**body: Any) -> Any:
        return http.post("/resolve-dataset", json=body).json()

    newest = {"dataset": "default", "version": {"id": "v2", "label": "2.0.0"}}
    assert resolved(dataset="default", version=None) == newest == resolved(version="2.0.0")
    assert resolved(version="v1")["version"] == {"id": "v1", "label": None}
    assert http.post("/resolve-dataset", json={"version": "v9"}).status_code == 404
    assert http.post("/resolve-dataset", json={}, headers={HEADER: "v1"}).status_code == 400


async def test_a_pinned_stream_begins_with_its_version(versioned: Live, ground: Ground) -> None:
    heard = await hear(versioned, "/ws/setup-task", instance(), {HEADER: "v2"})
    assert heard.chunks[0] == {"type": "dataset_version", "data": {"id": "v2", "label": "2.0.0"}}
    assert [chunk["type"] for chunk in heard.chunks[1:]] == ["message", "result"]
    graded = await hear(
        versioned, "/ws/evaluate-response", {"task_id": "t1", "response": "1"}, {HEADER: "v1"}
    )
    assert [chunk["type"] for chunk in graded.chunks] == ["dataset_version", "result"]


@pytest.mark.parametrize(("version", "status"), [("v9", 404), ("2.0.0", 409), ("two words", 400)])
async def test_a_stream_whose_pin_fails_says_why(
    versioned: Live, ground: Ground, version: str, status: int
) -> None:
    heard = await hear(versioned, "/ws/evaluate-instance", instance(), {HEADER: version})
    assert [(chunk["type"], chunk["status_code"]) for chunk in heard.chunks] == [("error", status)]
    assert (heard.code, ground.opened) == (1000, 0)
