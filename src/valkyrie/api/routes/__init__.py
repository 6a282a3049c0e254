"""The routes, one module per noun."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path

from valkyrie.api.answers import ErrorAnswer

LONGEST_REF = 1100
"""A job without a name is called by its benchmark and the time."""
RUN_REF = "A run's id or a unique prefix of it, `latest` (your last), or the name of a job of one run."
Ref = Annotated[str, Path(description=RUN_REF, max_length=LONGEST_REF)]

_MEANINGS = {
    400: "The words of the request are wrong: an unknown key, a value that does not fit.",
    401: "No key was sent, or it is unknown, expired or revoked.",
    403: "The key's role is not enough.",
    404: "What is named is not there, or belongs to another organisation.",
    413: "The body is larger than it may be.",
    422: "What was asked cannot be done as asked; the message says why and the way out.",
    502: "The benchmark's service did not do its part.",
    503: "The database, a machine or a lane is not available now; `Retry-After` says when to ask again.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors a route may answer with, described."""
    wanted = (*statuses, 400, 401, 403, 503)
    return {
        status: {"model": ErrorAnswer, "description": _MEANINGS[status]} for status in sorted(set(wanted))
    }


def router(noun: str, prefix: str) -> APIRouter:
    """A router for one noun."""
    return APIRouter(prefix=prefix, tags=[noun])
