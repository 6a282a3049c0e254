"""The `Retry-After` header, as authors of services import it."""

from __future__ import annotations

from sandboxes.retry import parse_retry_after_seconds

__all__ = ["parse_retry_after_seconds"]
