"""Query parameters nobody asked for, and texts nothing can keep."""

from __future__ import annotations

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from valkyrie.errors import UsageError
from valkyrie.suggest import did_you_mean


async def _check_words(request: Request) -> None:
    """Refuse an unknown query parameter: a misspelt filter would otherwise filter nothing."""
    route = request.scope.get("route")
    known = _words(route.dependant) if isinstance(route, APIRoute) else []
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise UsageError(f"Unknown query parameter {name[:80]!r}.{did_you_mean(name, known)}")
        if "\0" in value:
            raise UsageError(f"The query parameter {name!r} has a NUL character in it.")
    if any("\0" in str(value) for value in request.path_params.values()):
        raise UsageError("The address has a NUL character in it.")


def _words(dependant: Dependant) -> list[str]:
    """The query parameters of a route, and of what it depends on."""
    own = [one.alias for one in dependant.query_params]
    return own + [word for inner in dependant.dependencies for word in _words(inner)]


known_words = Depends(_check_words)
