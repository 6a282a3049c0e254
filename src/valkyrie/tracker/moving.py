"""A benchmark service that has another address than when its run began, as behind a tunnel."""

from __future__ import annotations

from typing import Any

from valkyrie.nouns import Json


def moved(
    row: Any, given: str | None = None, *, trusted: bool = True, allow_local: bool = False
) -> tuple[Json, str] | None:
    """What to change of a run whose service is elsewhere now, and what to say of it.

    `given` is the address a caller of a server has in their own config; here `config service set` says it.
    Where callers may lead us to is this machine only if `allow_local`.
    """
    source: Json = row.benchmark_source
    if source.get("where") != "custom":
        return None
    from valkyrie.benchmarks.service.address import ServiceAddress, custom_service, reach_of

    found = custom_service(source["name"]) if trusted else None
    if given:
        reach = reach_of(trusted=trusted, allow_local=allow_local)
        found = ServiceAddress(source["name"], given.rstrip("/"), "custom", reach=reach)
    if found is None or found.url == source["url"]:
        return None
    here = {"url": found.url, "reaches_sandboxes": "loopback" if found.on_loopback else "public"}
    if found.reach:
        here["reach"] = found.reach
    arguments: Json = row.arguments
    service = {**arguments.get("service", {}), "url": found.url}
    return (
        {"benchmark_source": {**source, **here}, "arguments": {**arguments, "service": service}},
        f"benchmark service {found.name} is at {found.url} now (it was at {source['url']})",
    )
