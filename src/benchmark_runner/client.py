"""The client of a benchmark service, with the credentials the environment has."""

from __future__ import annotations

import os

from benchmark_service.client import BenchmarkServiceClient

DESCOPE_KEYS = ("VALS_AUTH_KEY", "VALS_API_KEY")
BEARER_KEY = "BENCHMARK_API_KEY"
TIMEOUT_S = 300
"""Grading an answer may ask a model in turn."""


def build_client(service_url: str, timeout: float = TIMEOUT_S) -> BenchmarkServiceClient:
    """A client for a service. A Descope key goes before the bearer key, which `/v1` does not take."""
    return BenchmarkServiceClient(service_url, headers=auth_headers(), timeout=timeout)


def auth_headers() -> dict[str, str]:
    """The header of the credential at hand; none where there is none. ValueError for what is no key."""
    for name in DESCOPE_KEYS:
        if key := _key(name):
            return {"x-descope-api-key": key}
    bearer = _key(BEARER_KEY)
    return {"Authorization": f"Bearer {bearer}"} if bearer else {}


def _key(name: str) -> str:
    key = os.environ.get(name, "").strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError(f"{name} has characters no key has; copy it again")
    return key
