"""What a service may ask about the request it is serving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxes.protocol import SandboxProvider

_provider: ContextVar[SandboxProvider] = ContextVar("benchmark_service_sandbox_provider")


def current_sandbox_provider() -> SandboxProvider:
    """The provider of the sandbox at hand, for a benchmark that needs a second one.

    Only inside `setup_task` and `evaluate_instance`; elsewhere there is none and this raises RuntimeError.
    """
    try:
        return _provider.get()
    except LookupError:
        raise RuntimeError(
            "current_sandbox_provider() works only inside setup_task and evaluate_instance"
        ) from None


@contextmanager
def sandbox_provider_scope(provider: SandboxProvider) -> Iterator[None]:
    """Make `provider` the current one in this task."""
    token = _provider.set(provider)
    try:
        yield
    finally:
        _provider.reset(token)
