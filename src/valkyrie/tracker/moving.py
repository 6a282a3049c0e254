"""A benchmark service that has another address than when its run began, as behind a tunnel."""

from __future__ import annotations

from typing import Any

from valkyrie.nouns import Json


def moved(row: Any) -> tuple[Json, str] | None:
    """What to change of a run whose service `config service set` has put elsewhere, and what to say of it."""
    source: Json = row.benchmark_source
    if source.get("where") != "custom":
        return None
    from valkyrie.benchmarks.service.address import custom_service

    found = custom_service(source["name"])
    if found is None or found.url == source["url"]:
        return None
    here = {"url": found.url, "reaches_sandboxes": "loopback" if found.on_loopback else "public"}
    arguments: Json = row.arguments
    service = {**arguments.get("service", {}), "url": found.url}
    return (
        {"benchmark_source": {**source, **here}, "arguments": {**arguments, "service": service}},
        f"benchmark service {found.name} is at {found.url} now (it was at {source['url']})",
    )
