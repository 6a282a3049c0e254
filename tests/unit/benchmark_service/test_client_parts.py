"""The client's small parts: URLs, headers, JSON, and what is kept out of messages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmark_service.client import BenchmarkServiceClient
from benchmark_service.client_http import batches, decode_json, detail_of
from benchmark_service.http_client import same_place, shown_url
from sandboxes.errors import MissingSandboxConfigError
from sandboxes.types import DaytonaProviderConfig


def test_a_url_is_shown_without_its_credentials() -> None:
    url = "https://user:pass@host:8001/base"
    assert shown_url(f"{url}?token=abc#x") == "https://host:8001/base"
    assert repr(BenchmarkServiceClient(url)) == "BenchmarkServiceClient('https://host:8001/base')"


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("http://a:1/x", "http://a:1/y", True),
        ("http://a/x", "https://a/x", True),
        ("ws://a/x", "wss://a/x", True),
        ("https://a/x", "http://a/x", False),
        ("http://a:1/x", "http://a:2/x", False),
        ("http://a/x", "http://b/x", False),
        ("http://a/x", "https://a.evil/x", False),
    ],
)
def test_a_redirect_stays_or_leaves(old: str, new: str, same: bool) -> None:
    assert same_place(old, new) is same


def test_json_is_strict() -> None:
    assert decode_json(b'{"a": "\\ud83d\\ude00"}') == {"a": "😀"}
    for bad in ("NaN", "[Infinity]", "[" * 100_000, "", "1" * 5000, b"\xff"):
        with pytest.raises(ValueError):
            decode_json(bad)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"detail": "no"}', "no"),
        ('{"detail": [{"msg": "x"}]}', '[{"msg": "x"}]'),
        ('{"error": "no"}', '{"error": "no"}'),
        ("<h1>Bad</h1> <p>gateway", "Bad gateway"),
        ("plain\n", "plain"),
        ("", "no details"),
    ],
)
def test_a_service_s_own_words(body: str, said: str) -> None:
    assert detail_of(body) == said


def test_batches_keep_order_and_length() -> None:
    ids = ["a" * 10, "ü" * 10, "c", "d" * 100]
    made = list(batches(ids, 60))
    assert [one for batch in made for one in batch] == ids
    assert made == [["a" * 10], ["ü" * 10], ["c"], ["d" * 100]]


def test_the_provider_of_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[DaytonaProviderConfig] = []
    monkeypatch.setattr(DaytonaProviderConfig, "create_provider", lambda self: opened.append(self))
    BenchmarkServiceClient(
        "http://h", {"X-API-Key": "k", "daytona_api_url": "u", "x-target": "t"}
    ).get_sandbox_provider()
    expected = DaytonaProviderConfig(DAYTONA_API_KEY="k", DAYTONA_API_URL="u", DAYTONA_TARGET="t")
    assert opened == [expected]
    with pytest.raises(MissingSandboxConfigError, match="Missing required headers: x-api-url, x-target"):
        BenchmarkServiceClient("http://h", {"x-api-key": "k"}).get_sandbox_provider()


async def test_the_daytona_client_of_the_headers() -> None:
    headers = {"x-api-key": "k", "x-api-url": "http://127.0.0.1:1/api", "x-target": "t"}
    async with BenchmarkServiceClient("http://h", headers) as client:
        daytona = client.daytona_client
        assert type(daytona).__name__ == "AsyncDaytona"
        assert client.daytona_client is daytona


def test_importing_the_client_loads_no_vendor_and_no_socket_library() -> None:
    code = (
        "import sys, benchmark_service.client;"
        "unwanted = {'daytona', 'descope', 'boto3', 'docker', 'websockets', 'fastapi'};"
        "print(sorted(unwanted & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
