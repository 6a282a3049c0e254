"""What a service's failures mean to us: who must act, and whether trying again may help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmark_service.errors import (
    BenchmarkServiceConnectionError,
    BenchmarkServiceError,
    BenchmarkServiceProtocolError,
    BenchmarkServiceStreamClosedError,
    BenchmarkServiceUnauthenticatedError,
    StreamIdleError,
)
from benchmark_service.schemas import RESUMABLE
from valkyrie.errors import (
    BenchmarkError,
    GraderError,
    InfrastructureError,
    UsageError,
    UserError,
    ValkyrieError,
)

SILENT = "service_silent"
_AWAY = frozenset({502, 503, 504})
_MISTAKEN = frozenset({400, 404, 409, 413, 422})


@contextmanager
def translated(name: str, *, planning: bool = False) -> Iterator[None]:
    """Let the errors of a service named `name` be ours.

    While `planning`, what the service refuses is what the user asked for.
    """
    try:
        yield
    except BenchmarkServiceError as error:
        raise _meaning(name, error, planning) from error


@contextmanager
def no_verdict() -> Iterator[None]:
    """Let what goes wrong while a service grades be a GraderError: a control then tells who broke it.

    A service that is out of reach or has no room says nothing about what it grades; one that took the request
    and then said nothing may have been made to hang by the agent's work.
    """
    try:
        yield
    except GraderError:
        raise
    except BenchmarkError as error:
        raise GraderError(str(error), cause=error.cause) from error
    except InfrastructureError as error:
        if error.cause != SILENT:
            raise
        raise GraderError(str(error), cause=SILENT) from error


def _meaning(name: str, error: BenchmarkServiceError, planning: bool) -> ValkyrieError:
    said = f"Benchmark service {name}: {error}"
    status = error.status_code
    match error:
        case BenchmarkServiceUnauthenticatedError():
            way = (
                f"`valk config auth set {name} CREDENTIAL` keeps what is sent as Authorization, `Bearer` "
                "included; -H NAME VALUE sends any other header."
            )
            return UserError(f"{said.rstrip('.')}. {way}", cause="service_unauthorized")
        case StreamIdleError():
            return InfrastructureError(said, cause=SILENT)
        case BenchmarkServiceStreamClosedError(close_code=1000):
            return BenchmarkError(said, cause="service_failed")
        case BenchmarkServiceConnectionError():
            return InfrastructureError(said, cause="service_unreachable", retry_after=error.retry_after)
        case BenchmarkServiceProtocolError():
            return BenchmarkError(said, cause="service_protocol")
    if status == 429:
        return InfrastructureError(said, cause="service_busy", retry_after=error.retry_after)
    if status in _AWAY or error.error_code == RESUMABLE:
        return InfrastructureError(said, cause="service_unreachable", retry_after=error.retry_after)
    if status == 403:
        return UserError(said, cause="service_forbidden")
    if status in _MISTAKEN:
        return UsageError(said) if planning else BenchmarkError(said, cause="service_refused")
    return BenchmarkError(said, cause="service_failed")
