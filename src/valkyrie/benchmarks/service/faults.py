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
from valkyrie.errors import BenchmarkError, InfrastructureError, UsageError, UserError, ValkyrieError

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
            return InfrastructureError(said, cause="service_silent")
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
