"""The base class: what it does by itself, and which subclasses it refuses."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from benchmark_service import BenchmarkService, EvalMode
from benchmark_service.schemas import EvaluateResponseRequest, FinalScoreResult, StreamChunk, TaskFilter
from benchmark_service.v1_schemas import V1PayloadType


class Plain(BenchmarkService):
    def __init__(self) -> None:
        self.made_by_constructor = True

    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        return {"default": {"a": 1, "b": 2, "c": 3, "d": 4}, "index": {"c": 3, "a": 1}}

    async def retrieve_task(self, task_id: str, skip_validation: bool = False, dataset: Any = None) -> Any:
        raise NotImplementedError

    async def setup_task(
        self, task_id: str, sandbox: Any, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        return
        yield

    async def evaluate_response(self, request: EvaluateResponseRequest, dataset: str | None = None) -> Any:
        return {"said": request.response, "dataset": dataset}

    async def evaluate_instance(
        self, task_id: str, sandbox: Any, dataset: str | None = None
    ) -> AsyncGenerator[StreamChunk, None]:
        return
        yield

    async def calculate_final_score(self, evaluation_results: Any, dataset: Any = None) -> FinalScoreResult:
        return FinalScoreResult(score=len(evaluation_results))


async def test_create_loads_and_never_calls_the_constructor() -> None:
    service = await Plain.create()
    assert not hasattr(service, "made_by_constructor")
    assert service.get_dataset() == {"a": 1, "b": 2, "c": 3, "d": 4}


async def test_a_constructor_and_datasets_by_hand_are_enough() -> None:
    service = Plain()
    service.datasets = {"default": {"x": 0}}
    assert await service.filter_tasks(TaskFilter()) == ["x"]
    assert service.get_dataset_version() is None and service.get_service_version() is None
    assert await service.check_dataset_access("_legacy", "anything")


def test_abstract_methods_must_be_written() -> None:
    class Half(BenchmarkService):
        async def load_datasets(self) -> dict[str, dict[str, Any]]:
            return {}

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


async def test_get_dataset_takes_no_name_for_default() -> None:
    service = await Plain.create()
    assert service.get_dataset("") is service.get_dataset(None) is service.get_dataset("default")
    with pytest.raises(ValueError, match=r"There is no dataset 'nope', only 'default', 'index'"):
        service.get_dataset("nope")


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (TaskFilter(), ["a", "b", "c", "d"]),
        (TaskFilter(task_ids=["d", "a"]), ["d", "a"]),
        (TaskFilter(slice_str="1:3"), ["b", "c"]),
        (TaskFilter(slice_str="::-1"), ["d", "c", "b", "a"]),
        (TaskFilter(slice_str="5"), []),
        (TaskFilter(task_ids=["b"], slice_str="3:"), ["b"]),
    ],
)
async def test_filter_tasks(wanted: TaskFilter, ids: list[str]) -> None:
    assert await (await Plain.create()).filter_tasks(wanted) == ids


async def test_validate_task_ids_returns_the_same_list_or_names_the_first_stranger() -> None:
    service = await Plain.create()
    ids = ["a", "c"]
    assert await service.validate_task_ids(ids) is ids
    with pytest.raises(ValueError, match=r"^Task ID not found: b$"):
        await service.validate_task_ids(["a", "b"], dataset="index")


async def test_a_priority_dataset_comes_first_in_every_other() -> None:
    class Ordered(Plain):
        priority_dataset = "index"

    service = await Ordered.create()
    assert list(service.get_dataset()) == ["a", "c", "b", "d"]
    assert list(service.get_dataset("index")) == ["c", "a"]

    class Lost(Plain):
        priority_dataset = "nowhere"

    with pytest.raises(ValueError, match="priority_dataset 'nowhere' is none of"):
        await Lost.create()


async def test_own_auth_makes_everyone_the_legacy_tenant() -> None:
    class Keyed(Plain):
        async def check_auth(self, headers: dict[str, str]) -> bool:
            return headers.get("authorization") == "sesame"

    service = await Keyed.create()
    assert await service.resolve_tenant({"authorization": "sesame"}) == "_legacy"
    assert await service.resolve_tenant({}) is None


async def test_without_settings_everyone_may_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTH_REQUIRED", "BENCHMARK_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    service = await Plain.create()
    assert await service.check_auth({}) and await service.resolve_tenant({}) == "_legacy"
    monkeypatch.setenv("BENCHMARK_API_KEY", "k")
    assert not await service.check_auth({})
    assert await service.check_auth({"authorization": "Bearer k"})


async def test_stream_evaluate_response_is_one_result() -> None:
    service = await Plain.create()
    request = EvaluateResponseRequest(task_id="a", response="42")
    chunks = [chunk async for chunk in service.stream_evaluate_response(request, dataset="index")]
    assert [(c.type, c.data) for c in chunks] == [("result", {"said": "42", "dataset": "index"})]


async def test_what_a_service_does_not_offer_says_so() -> None:
    service = await Plain.create()
    with pytest.raises(NotImplementedError, match="list_tasks"):
        await service.list_tasks()
    with pytest.raises(NotImplementedError, match="project_trial_result"):
        service.project_trial_result({})
    with pytest.raises(NotImplementedError):
        service.open_dataset_version("default", "v1")
    assert await service.list_task_inputs("a") == []
    assert await service.export_dataset("default", Path("/nowhere")) is False
    assert not service.supports_dataset_version_selection("default")
    given = await service.calculate_final_score_with_outcomes({"a": None}, {"a": {"kind": "error"}})
    assert given.score == 1


async def test_a_versions_file_is_read_when_the_service_is_made(tmp_path: Path) -> None:
    path = tmp_path / "dataset_versions.yaml"
    path.write_text("default: {version: 1.2.3}\nindex: {version: 2.0.0-rc.1}\n")

    class Versioned(Plain):
        dataset_versions_file = path

    service = await Versioned.create()
    versions = [service.get_dataset_version(name) for name in (None, "", "index", "other")]
    assert versions == ["1.2.3", "1.2.3", "2.0.0-rc.1", None]

    class Missing(Plain):
        dataset_versions_file = tmp_path / "nothing.yaml"

    with pytest.raises(ValueError, match=r"nothing\.yaml does not exist"):
        await Missing.create()


TEXT = {V1PayloadType.TEXT: frozenset({"patch"})}
FILES = {V1PayloadType.ARTIFACT: frozenset({"tar"})}


async def hook(*_args: Any, **_kwargs: Any) -> None: ...


@pytest.mark.parametrize(
    ("members", "needs"),
    [
        ({"eval_mode": EvalMode.SANDBOX, "accepted_submission_schemas": TEXT}, "prepare_grading_sandbox"),
        ({"eval_mode": EvalMode.SANDBOX, "prepare_grading_sandbox": hook}, "accepted_submission_schemas"),
        ({"eval_mode": EvalMode.ARTIFACT, "accepted_submission_schemas": FILES}, "evaluate_artifact"),
        (
            {"eval_mode": EvalMode.ARTIFACT, "evaluate_artifact": hook, "accepted_submission_schemas": TEXT},
            "artifact schemas",
        ),
        ({"eval_mode": EvalMode.ARTIFACT, "evaluate_artifact": hook}, "artifact schemas"),
        (
            {
                "eval_mode": EvalMode.MATERIALIZED_ARTIFACT,
                "evaluate_artifact": hook,
                "accepted_submission_schemas": FILES,
            },
            "evaluate_materialized_artifact",
        ),
    ],
)
def test_a_mode_without_what_it_needs_is_refused(members: dict[str, Any], needs: str) -> None:
    with pytest.raises(TypeError, match=needs):
        type("Wrong", (Plain,), members)


def test_modes_with_what_they_need_are_accepted() -> None:
    type(
        "InSandbox",
        (Plain,),
        {
            "eval_mode": EvalMode.SANDBOX,
            "prepare_grading_sandbox": hook,
            "accepted_submission_schemas": {**TEXT, **FILES},
        },
    )
    files = {
        "eval_mode": EvalMode.ARTIFACT,
        "evaluate_artifact": hook,
        "accepted_submission_schemas": FILES,
    }
    type("OfFiles", (Plain,), files)
