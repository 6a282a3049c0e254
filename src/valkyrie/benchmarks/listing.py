"""Which benchmarks can be named."""

from __future__ import annotations

from collections.abc import Sequence

from valkyrie import config
from valkyrie.benchmarks.catalogue import shipped
from valkyrie.views import BenchmarkView


def known_benchmarks() -> Sequence[BenchmarkView]:
    """Those that come along, then the services of the config file and of the registry file."""
    found = [BenchmarkView(name, description, tasks) for name, description, tasks in shipped()]
    named: dict[str, BenchmarkView] = {}
    for source, entries in (
        ("registry", config.registry()),
        ("custom", config.mapping("custom_benchmark_services")),
    ):
        for name, entry in entries.items():
            url = entry if isinstance(entry, str) else entry["url"]
            named[name] = BenchmarkView(name, f"service at {url}", None, url, source)
    return [*found, *(named[name] for name in sorted(named))]
