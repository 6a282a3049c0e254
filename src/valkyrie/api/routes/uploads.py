"""Uploads: folders of the caller that a request will name as `upload:<digest>`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from valkyrie.api.answers import answer
from valkyrie.api.context import Ask
from valkyrie.api.receiving import receive_archive
from valkyrie.api.routes import errors, router
from valkyrie.api.routes.agents import ZIP
from valkyrie.errors import UsageError

routes = router("uploads", "/v1/uploads")

_DIGEST = re.compile("[0-9a-f]{64}")
Digest = Annotated[str, Path(description="sha256 of the archive, in hexadecimal.", max_length=64)]


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What a request calls the archive that was sent."""

    ref: str


@routes.put("/{digest}", response_model=Uploaded, responses=errors(400, 404, 413, 422), openapi_extra=ZIP)
async def upload(digest: Digest, ask: Ask) -> Response:
    """Send an archive (a zip) whose sha256 is `digest`."""
    if not _DIGEST.fullmatch(digest):
        raise UsageError(f"{digest!r} is no sha256 digest: 64 hexadecimal digits.")
    async with receive_archive(ask) as received:
        if received.digest != digest:
            raise UsageError("What was sent is not what its digest says; send it again.", cause="digest")
        await ask.context.lanes.slow.run(lambda: ask.tracker().upload(digest, received.file))
    return answer(Uploaded(f"upload:{digest}"))


@routes.head("/{digest}", responses=errors(404), response_class=Response)
async def exists(digest: Digest, ask: Ask) -> Response:
    """Whether it was sent before: 200 or 404."""
    there = await ask.context.lanes.quick.run(lambda: ask.tracker().has_upload(digest))
    return Response(status_code=200 if there else 404)
