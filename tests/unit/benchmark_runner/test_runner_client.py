"""Which credential a runner's client shows."""

from __future__ import annotations

import pytest

from benchmark_runner.client import auth_headers, build_client

NAMES = ("VALS_AUTH_KEY", "VALS_API_KEY", "BENCHMARK_API_KEY")


@pytest.mark.parametrize(
    ("keys", "headers"),
    [
        ("abc", {"x-descope-api-key": "a"}),
        ("-bc", {"x-descope-api-key": "b"}),
        ("--c", {"Authorization": "Bearer c"}),
        ("a-c", {"x-descope-api-key": "a"}),
        ("---", {}),
    ],
)
def test_descope_goes_before_the_bearer(
    monkeypatch: pytest.MonkeyPatch, keys: str, headers: dict[str, str]
) -> None:
    for name, key in zip(NAMES, keys, strict=True):
        monkeypatch.setenv(name, "" if key == "-" else f" {key}\n")
    assert auth_headers() == headers


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["clé", "a\x07b", "two\nlines"])
def test_what_is_no_key_is_named_and_not_quoted(monkeypatch: pytest.MonkeyPatch, name: str, key: str) -> None:
    for other in NAMES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, key)
    with pytest.raises(ValueError, match=f"^{name} has characters no key has; copy it again$"):
        auth_headers()


async def test_a_client_of_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALS_AUTH_KEY", "a-secret-key")
    async with build_client("http://user:pw@svc.test/") as client:
        assert repr(client) == "BenchmarkServiceClient('http://svc.test')"
        assert client._timeout == 300
        assert client._http_client.headers["x-descope-api-key"] == "a-secret-key"
    with pytest.raises(ValueError, match="a service URL looks like"):
        build_client("svc.test")
