"""Whatever the app's own OpenAPI document allows, or does not, no request makes the server fail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode

from benchmark_service.v1_schemas import V1Task
from tests.integration.benchmark_service.conftest import Live, live_app
from tests.integration.benchmark_service.toy_service import ToyService

pytestmark = pytest.mark.slow


class Complete(ToyService):
    """Implements all there is, and has tenants, so that `/v1` is open."""

    async def resolve_tenant(self, headers: dict[str, str]) -> str | None:
        return "acme"

    async def check_dataset_access(self, tenant: str, dataset: str | None) -> bool:
        return True

    async def list_tasks(self, dataset: str | None = None) -> list[V1Task]:
        return [V1Task(id=task_id, question="?") for task_id in self.get_dataset(dataset)]

    async def evaluate_response(self, request: object, dataset: str | None = None) -> object:
        await self.validate_task_ids([getattr(request, "task_id", "")], dataset)
        return {"resolved": True}

    async def calculate_final_score(self, evaluation_results: object, dataset: str | None = None) -> object:
        return {"score": 1.0}


@pytest.fixture(scope="module")
def complete() -> Iterator[Live]:
    with live_app(Complete) as live:
        yield live


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_makes_the_server_fail(complete: Live, mode: GenerationMode) -> None:
    document = httpx.get(f"{complete.url}/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=complete.url)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/verify-task-ids", "/final-score/", "/version"}
    for operation in operations:
        if operation.path == "/v1/submissions/upload-url":
            continue  # rightly 503 on a service without a bucket
        strategy = operation.as_strategy(generation_mode=mode)

        @settings(
            max_examples=10,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def run(case: schemathesis.Case) -> None:
            response = case.call()
            case.validate_response(response, checks=[not_a_server_error])

        # What takes no input has nothing that could be wrong with it.
        with contextlib.suppress(Unsatisfiable):
            run()
