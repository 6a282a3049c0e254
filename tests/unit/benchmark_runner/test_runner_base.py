"""The part of a runner that authors do not write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import benchmark_runner.base
from benchmark_runner import BenchmarkRunner, EvalResult, EvalStatus, GenerationResult, ScoreResult, Task
from benchmark_runner.base import UnknownTaskError, error_text
from benchmark_service.errors import BenchmarkServiceError
from benchmark_service.schemas import FinalScoreResponse
from benchmark_service.v1_schemas import V1DatasetTasksResponse


class Priced(Task):
    price: float


class Shop(BenchmarkRunner):
    NAME = "shop"
    GENERATION_VERSION_ENV = "SHOP_GENERATION_VERSION"
    TASK_MODEL = Priced

    def load_tasks(self, dataset_file: Path) -> list[Task]:
        return [Priced(id="a", question=dataset_file.read_text(), price=1)]

    async def generate(self, task: Any, model: str, llm_config: Any = None, log_dir: Any = None) -> Any:
        raise NotImplementedError


class Canned:
    """Stands where the client is; remembers what it is asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Any] = []
        self.answer: Any = {"resolved": True}
        self.tasks: list[dict[str, Any]] = []

    async def evaluate_response(self, **given: Any) -> Any:
        self.asked.append(given)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def final_score(self, results: Any, dataset: str | None = None) -> FinalScoreResponse:
        self.asked.append((results, dataset))
        return FinalScoreResponse(tasks_evaluated=["a"], final_score=50, metadata=None)

    async def list_tasks(self, name: str) -> V1DatasetTasksResponse:
        return V1DatasetTasksResponse.model_validate({"dataset": name, "tasks": self.tasks})

    async def close(self) -> None:
        self.asked.append("closed")


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(benchmark_runner.base, "build_client", Canned)
    return Shop("http://shop.test", dataset_name="default")


def client(shop: Shop) -> Canned:
    return shop._client  # type: ignore[return-value]


def answered(status: str = "success", **more: Any) -> GenerationResult:
    return GenerationResult.model_validate({"task_id": "a", "status": status, "data": "42", **more})


def test_what_names_the_answers(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shop.payload_schema == "shop.text.v1"
    monkeypatch.delenv("SHOP_GENERATION_VERSION", raising=False)
    assert shop.generation_version == "dev"
    monkeypatch.setenv("SHOP_GENERATION_VERSION", " 7 ")
    assert shop.generation_version == "7"


def test_the_two_methods_must_be_written() -> None:
    class Half(BenchmarkRunner):
        NAME = "half"

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


async def test_an_answer_is_sent_and_its_result_taken(shop: Shop) -> None:
    result = await shop.evaluate("a", answered())
    assert client(shop).asked == [{"task_id": "a", "response": "42", "dataset": "default"}]
    assert (result.status, result.result.model_dump()) == (EvalStatus.EVALUATED, {"resolved": True})
    client(shop).answer = [1, "two"]
    assert (await shop.evaluate("a", answered(data={"n": 1}))).result == [1, "two"]
    assert client(shop).asked[-1]["response"] == '{"n": 1}'


@pytest.mark.parametrize(
    ("status", "came"),
    [("max_time", "did_not_complete"), ("max_turns", "did_not_complete"), ("error", "generation_error")],
)
async def test_what_has_no_answer_is_not_sent(shop: Shop, status: str, came: str) -> None:
    result = await shop.evaluate("a", answered(status, error="why"))
    assert (result.status, result.error, client(shop).asked) == (came, "why", [])


async def test_whatever_the_service_does_is_the_tasks_error(shop: Shop) -> None:
    for error, said in (
        (BenchmarkServiceError("Evaluate response failed", 500), "Evaluate response failed"),
        (RuntimeError("odd"), "RuntimeError: odd"),
        (ValueError(), "ValueError"),
    ):
        client(shop).answer = error
        result = await shop.evaluate("a", answered())
        assert (result.status, result.error) == (EvalStatus.ERROR, said)


async def test_a_score_is_of_all_registered_tasks(shop: Shop) -> None:
    shop._register_tasks([Task(id="b", question=""), Task(id="a", question="")])
    shop.add_task(Task(id="c", question=""))
    assert [task.id for task in shop.get_tasks()] == ["a", "b", "c"]
    graded = EvalResult(task_id="a", status=EvalStatus.EVALUATED, result={"pass_percentage": 50})
    failed = EvalResult(task_id="b", status=EvalStatus.ERROR, error="e")
    score = await shop.score([graded, failed])
    [(sent, dataset)] = client(shop).asked
    assert dataset == "default"
    assert sent == {
        "a": {"task_id": "a", "status": "evaluated", "result": {"pass_percentage": 50}, "error": None},
        "b": {"task_id": "b", "status": "error", "result": None, "error": "e"},
        "c": None,
    }
    assert score == ScoreResult(tasks_evaluated=["a"], final_score=50, metadata={}, complete=False)


async def test_tasks_of_a_service_are_the_runners_own(shop: Shop) -> None:
    client(shop).tasks = [{"id": "a", "question": "?", "price": 3, "colour": "red"}]
    [task] = await shop.load_tasks_from_service("hard")
    assert isinstance(task, Priced) and task.price == 3 and task.model_extra == {"colour": "red"}
    assert shop._dataset == "hard"
    client(shop).tasks.append({"id": "b", "question": "?"})
    with pytest.raises(ValueError, match="task 'b' of dataset 'hard' is no Priced: price: Field required"):
        await shop.load_tasks_from_service("hard")


async def test_a_task_that_was_not_loaded_is_unknown(shop: Shop) -> None:
    with pytest.raises(UnknownTaskError):
        await shop._fetch_task("z")


async def test_without_a_service(tmp_path: Path) -> None:
    shop = Shop()
    result = await shop.evaluate("a", answered())
    assert result.status is EvalStatus.ERROR and "--service-url or SERVICE_URL" in str(result.error)
    await shop.close()


async def test_closing_lets_go_of_the_client(shop: Shop) -> None:
    await shop.close()
    assert client(shop).asked == ["closed"]


def test_exceptions_in_a_line() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert error_text(KeyError("x")) == "KeyError: 'x'"
    assert error_text(TimeoutError()) == "TimeoutError"
    assert error_text(Mute()) == "Mute"
