"""What can go wrong between a client and a benchmark service. One root, `BenchmarkServiceError`."""

from __future__ import annotations


class BenchmarkServiceError(Exception):
    """The service answered with an error, or not at all; the message holds its own words."""

    def __init__(
        self,
        message: str,
        status_code: int | None = None,
        *,
        retry_after: float | None = None,
        error_code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.retry_after = retry_after
        self.error_code = error_code
        """`resumable_evaluation_infrastructure` when the service itself asks to be resumed later."""


class BenchmarkServiceUnauthenticatedError(BenchmarkServiceError):
    """The service does not accept our credential (401, or a socket closed as Unauthorized)."""


class BenchmarkServiceConnectionError(BenchmarkServiceError):
    """The service cannot be reached, or the connection broke: nothing is known about what it did."""


class BenchmarkServiceStreamClosedError(BenchmarkServiceConnectionError):
    """A stream ended without a result."""

    def __init__(
        self,
        message: str,
        *,
        close_code: int | None = None,
        close_reason: str = "",
        idle_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.close_code = close_code
        self.close_reason = close_reason
        self.idle_s = idle_s


class StreamIdleError(BenchmarkServiceConnectionError):
    """Nothing came over a stream for longer than the idle watchdog allows."""


class BenchmarkServiceProtocolError(BenchmarkServiceError):
    """The service answered something that is not this protocol: HTML, malformed JSON, a chunk too large."""


class TaskNotFoundError(ValueError):
    """No task of that id in the dataset. A ValueError, so that it is the caller's mistake: 400."""
