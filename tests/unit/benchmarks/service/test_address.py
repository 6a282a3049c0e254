"""Where a name leads: custom config, registry file, base URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.benchmarks import open_benchmark
from valkyrie.benchmarks.protocol import BenchmarkRequest
from valkyrie.benchmarks.service import address
from valkyrie.benchmarks.service.address import ServiceAddress
from valkyrie.config import values
from valkyrie.errors import UsageError


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    monkeypatch.delenv("BENCHMARK_SERVICE_BASE_URL", raising=False)
    monkeypatch.delenv("VALKYRIE_SERVICE_REGISTRY", raising=False)
    monkeypatch.setattr(address, "LOCAL_URL", "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)


def found(spec: str, **options: bool) -> ServiceAddress:
    benchmark = open_benchmark(spec, BenchmarkRequest(**options))
    return benchmark.address  # type: ignore[attr-defined, no-any-return]


def test_a_url_is_a_service_itself() -> None:
    url = "http://127.0.0.1:8001"
    assert found(f"{url}/") == ServiceAddress("127.0.0.1:8001", url, "given")


def test_custom_wins_over_registry_over_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHMARK_SERVICE_BASE_URL", "bench.example.com")
    assert found("math").url == "https://math.bench.example.com"
    registry = tmp_path / "registry.yaml"
    registry.write_text("math: https://registry.example.com/\n")
    values.set_value("service_registry", str(registry))
    assert found("math").url == "https://registry.example.com"
    values.set_entry("custom_benchmark_services", "math", "http://localhost:9000/")
    assert (found("math").url, found("math").where) == ("http://localhost:9000", "custom")
    assert found("math", ignore_custom=True).where == "registry"


def test_custom_config_overrides_a_shipped_benchmark() -> None:
    values.set_entry("custom_benchmark_services", "quickstart", "http://localhost:9000")
    assert found("quickstart").where == "custom"
    assert open_benchmark("quickstart", BenchmarkRequest(ignore_custom=True)).source["kind"] == "task_dir"


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("bench.example.com", "https://math.bench.example.com"),
        ("http://bench.local:8001", "http://math.bench.local:8001"),
        ("https://bench.example.com/{name}", "https://bench.example.com/math"),
    ],
)
def test_base_url_patterns(base: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHMARK_SERVICE_BASE_URL", base)
    assert found("math").url == url


def test_grading_is_configured_with_the_service() -> None:
    entry = {"url": "http://localhost:9000", "grading": "text"}
    values.set_entry("custom_benchmark_services", "math", entry)
    assert found("math").grading == "text"


def test_an_unknown_name_says_what_there_is() -> None:
    values.set_entry("custom_benchmark_services", "mathematics", "http://localhost:9000")
    with pytest.raises(UsageError, match="mathematics") as caught:
        open_benchmark("mathematik")
    assert "config service set" in str(caught.value)


def test_the_kept_credential_is_sent_unless_a_header_says_otherwise() -> None:
    values.set_entry("custom_benchmark_services", "math", "http://localhost:9000")
    values.set_entry("benchmark_auth", "math", "Bearer kept")
    assert open_benchmark("math").headers == {"Authorization": "Bearer kept"}  # type: ignore[attr-defined]
    given = open_benchmark("math", BenchmarkRequest(headers={"authorization": "Bearer given"}))
    assert given.headers == {"authorization": "Bearer given"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:1", True),
        ("http://localhost", True),
        ("http://a.localhost:3", True),
        ("http://[::1]:80", True),
        ("http://127.0.0.1.example.com", False),
        ("https://example.com", False),
        ("http://192.168.0.4:8001", False),
    ],
)
def test_what_is_on_this_machine(url: str, here: bool) -> None:
    assert ServiceAddress("x", url, "given").on_loopback is here
