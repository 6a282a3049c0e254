"""When a service lets a client come back, and attempts after a lost sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from benchmark_service.client import BenchmarkServiceClient, SandboxRecoveryAttempt
from benchmark_service.client_streams import retry_after_in
from benchmark_service.schemas import RetrieveTaskResponse
from sandboxes.errors import SandboxNotFoundError
from sandboxes.retry import LONGEST_ASKED_S

NOON = 946_728_000.0


@pytest.mark.parametrize(
    ("reason", "seconds"),
    [
        ("Evaluation quota reached; retry after 2000-01-01T12:01:00Z.", 60.0),
        ("retry after 2000-01-01T14:00:10+02:00", 10.0),
        ("retry after 9999-01-01T00:00:00Z.", LONGEST_ASKED_S),
        ("retry after 2000-13-01T12:01:00Z.", None),
        ("Dataset not allowed", None),
    ],
)
def test_the_time_in_a_closing_reason(reason: str, seconds: float | None) -> None:
    assert retry_after_in(reason, now=lambda: NOON) == seconds


class Tasks(BenchmarkServiceClient):
    """Answers `retrieve_task` without a service."""

    def __init__(self, max_sandbox_attempts: int | None) -> None:
        super().__init__("http://localhost:1")
        policy = {"max_sandbox_attempts": max_sandbox_attempts} if max_sandbox_attempts else None
        self.task = RetrieveTaskResponse.model_validate(
            {
                "docker_image": "image",
                "problem_path": "/p",
                "cwd": "/",
                "resources": {"vcpu": 1, "memory": 1, "disk": 1},
                "sandbox_recovery": policy,
            }
        )
        self.retrieved = 0

    async def retrieve_task(self, *args: Any, **kwargs: Any) -> RetrieveTaskResponse:
        self.retrieved += 1
        return self.task


class Losing:
    """An operation that loses its sandbox, or fails otherwise, so many times."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.attempts: list[SandboxRecoveryAttempt] = []

    async def __call__(self, attempt: SandboxRecoveryAttempt) -> str:
        self.attempts.append(attempt)
        if self.failures:
            raise self.failures.pop(0)
        return "done"


def lost() -> Exception:
    return SandboxNotFoundError("gone")


async def test_a_first_success_asks_for_nothing() -> None:
    async with Tasks(3) as client:
        assert await client.run_with_sandbox_recovery("t", "r", Losing()) == "done"
    assert client.retrieved == 0


async def test_lost_sandboxes_are_made_up_for_as_the_task_allows() -> None:
    operation = Losing(lost(), lost())
    told: list[Exception] = []
    async with Tasks(3) as client:
        result = await client.run_with_sandbox_recovery(
            "t", "r", operation, retry_delay_s=0, on_retry=lambda _, error: told.append(error)
        )
    assert result == "done"
    assert [a.number for a in operation.attempts] == [1, 2, 3]
    assert [a.max_attempts for a in operation.attempts] == [3, 3, 3]
    assert [a.sandbox_loss_retry_available for a in operation.attempts] == [True, True, False]
    assert operation.attempts[0].environment == {}
    outage = operation.attempts[1].environment
    assert outage["VALKYRIE_SANDBOX_OUTAGE_ID"].startswith("r:t:1:")
    assert float(outage["VALKYRIE_SANDBOX_OUTAGE_STARTED_EPOCH"]) > 0
    assert operation.attempts[2].environment == outage
    assert (client.retrieved, len(told)) == (1, 2)


async def test_a_replacement_that_was_ready_begins_a_new_outage() -> None:
    ids: list[str | None] = []

    async def operation(attempt: SandboxRecoveryAttempt) -> None:
        ids.append(attempt.outage_id)
        if attempt.number < 3:
            attempt.mark_replacement_ready()
            raise lost()

    async with Tasks(3) as client:
        await client.run_with_sandbox_recovery("t", "r", operation, retry_delay_s=0)
    assert ids[1] is not None
    assert ids[2] is not None
    assert ids[2].startswith("r:t:2:")


@pytest.mark.parametrize(("policy", "losses", "attempts"), [(None, 1, 1), (2, 2, 2)])
async def test_the_loss_that_is_too_many_is_raised(policy: int | None, losses: int, attempts: int) -> None:
    operation = Losing(*(lost() for _ in range(losses)))
    async with Tasks(policy) as client:
        with pytest.raises(SandboxNotFoundError):
            await client.run_with_sandbox_recovery("t", "r", operation, retry_delay_s=0)
    assert len(operation.attempts) == attempts


async def test_other_failures_are_repeated_as_the_caller_says() -> None:
    operation = Losing(OSError("x"), OSError("y"), OSError("z"))
    async with Tasks(None) as client:
        with pytest.raises(OSError, match="y"):
            await client.run_with_sandbox_recovery(
                "t",
                "r",
                operation,
                retryable_attempt_errors=(OSError,),
                default_max_attempts=2,
                retry_delay_s=0,
            )
    assert len(operation.attempts) == 2


@pytest.mark.parametrize(("task_id", "run_id", "named"), [("", "r", "task_id"), ("t", "", "run_id")])
async def test_an_attempt_needs_names(task_id: str, run_id: str, named: str) -> None:
    async with Tasks(None) as client:
        with pytest.raises(ValueError, match=f"{named} must be non-empty"):
            await client.run_with_sandbox_recovery(task_id, run_id, Losing())
