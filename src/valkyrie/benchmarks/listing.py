"""Which benchmarks can be named."""

from __future__ import annotations

from collections.abc import Sequence

from valkyrie import config
from valkyrie.benchmarks.catalogue import shipped
from valkyrie.benchmarks.named.shelf import added
from valkyrie.views import BenchmarkView


def known_benchmarks() -> Sequence[BenchmarkView]:
    """Those that come along, those that were added, then the services of the config and the registry file."""
    found = [BenchmarkView(name, description, tasks) for name, description, tasks in shipped()]
    for one in added():
        # A commit or digest is already in a repository's origin.
        revision = "" if one.revision in one.origin else f"@{one.revision[:12]}"
        view = BenchmarkView(one.name, one.description, one.tasks, source=f"added: {one.origin}{revision}")
        found.append(view)
    named: dict[str, BenchmarkView] = {}
    for source, entries in (
        ("registry", config.registry()),
        ("custom", config.mapping("custom_benchmark_services")),
    ):
        for name, entry in entries.items():
            url = entry if isinstance(entry, str) else entry["url"]
            named[name] = BenchmarkView(name, f"service at {url}", None, url, source)
    return [*found, *(named[name] for name in sorted(named))]
