"""Each way a service fails has one meaning."""

from __future__ import annotations

import pytest

from benchmark_service.errors import (
    BenchmarkServiceConnectionError,
    BenchmarkServiceError,
    BenchmarkServiceProtocolError,
    BenchmarkServiceStreamClosedError,
    BenchmarkServiceUnauthenticatedError,
    StreamIdleError,
)
from benchmark_service.schemas import RESUMABLE
from valkyrie.benchmarks.service.results import no_verdict, translated
from valkyrie.domain import Category
from valkyrie.errors import GraderError, InfrastructureError, UsageError, UserError, ValkyrieError
from valkyrie.schedule.policy import TABLE, policy_for


def meaning(error: BenchmarkServiceError, *, planning: bool = False) -> ValkyrieError:
    with pytest.raises(ValkyrieError) as caught, translated("math", planning=planning):
        raise error
    assert "math" in str(caught.value) and str(error) in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("error", "category", "cause", "retried"),
    [
        (BenchmarkServiceError("boom", 500), Category.BENCHMARK, "service_failed", False),
        (BenchmarkServiceError("said so in a chunk"), Category.BENCHMARK, "service_failed", False),
        (BenchmarkServiceError("no such task", 400), Category.BENCHMARK, "service_refused", False),
        (BenchmarkServiceError("bad body", 422), Category.BENCHMARK, "service_refused", False),
        (BenchmarkServiceProtocolError("HTML"), Category.BENCHMARK, "service_protocol", False),
        (BenchmarkServiceError("busy", 429), Category.INFRASTRUCTURE, "service_busy", True),
        (BenchmarkServiceError("bad gateway", 502), Category.INFRASTRUCTURE, "service_unreachable", True),
        (BenchmarkServiceConnectionError("refused"), Category.INFRASTRUCTURE, "service_unreachable", True),
        (BenchmarkServiceStreamClosedError("1006"), Category.INFRASTRUCTURE, "service_unreachable", True),
        (
            BenchmarkServiceError("later", error_code=RESUMABLE),
            Category.INFRASTRUCTURE,
            "service_unreachable",
            True,
        ),
        (
            BenchmarkServiceStreamClosedError("ended", close_code=1000),
            Category.BENCHMARK,
            "service_failed",
            False,
        ),
        (StreamIdleError("silent"), Category.INFRASTRUCTURE, "service_silent", True),
        (BenchmarkServiceUnauthenticatedError("who?", 401), Category.USER, "service_unauthorized", False),
        (BenchmarkServiceError("not yours", 403), Category.USER, "service_forbidden", False),
    ],
)
def test_who_must_act(error: BenchmarkServiceError, category: Category, cause: str, retried: bool) -> None:
    found = meaning(error)
    assert (found.category, found.cause) == (category, cause)
    policy = policy_for(category, cause)
    assert policy in TABLE and policy.cause == cause
    assert policy.retryable is retried


def test_what_is_refused_while_planning_is_what_was_asked() -> None:
    assert isinstance(meaning(BenchmarkServiceError("no dataset x", 400), planning=True), UsageError)


def test_when_to_come_back_is_kept() -> None:
    assert meaning(BenchmarkServiceError("busy", 429, retry_after=7.0)).retry_after == 7.0


def test_a_refused_credential_names_the_way_out() -> None:
    said = str(meaning(BenchmarkServiceUnauthenticatedError("who?", 401)))
    assert "config auth set math" in said and "`Bearer` included" in said


@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (BenchmarkServiceError("boom", 500), GraderError, "service_failed"),
        (BenchmarkServiceError("too large", 413), GraderError, "service_refused"),
        (BenchmarkServiceProtocolError("HTML"), GraderError, "service_protocol"),
        (StreamIdleError("silent"), GraderError, "service_silent"),
        (BenchmarkServiceConnectionError("refused"), InfrastructureError, "service_unreachable"),
        (BenchmarkServiceError("busy", 429), InfrastructureError, "service_busy"),
        (BenchmarkServiceError("not yours", 403), UserError, "service_forbidden"),
    ],
)
def test_what_is_no_verdict(error: BenchmarkServiceError, kind: type[ValkyrieError], cause: str) -> None:
    with pytest.raises(kind) as caught, no_verdict(), translated("math"):
        raise error
    assert caught.value.cause == cause
    if kind is GraderError:
        assert policy_for(caught.value.category, cause).attempts == 1
