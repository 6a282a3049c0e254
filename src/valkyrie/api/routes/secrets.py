"""Secrets of the organisation: names only, ever."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from valkyrie.api.bodies import SecretBody
from valkyrie.api.context import Ask
from valkyrie.api.routes import errors, router
from valkyrie.views import SecretView

routes = router("secrets", "/v1/secrets")

Name = Annotated[str, Path(description="The secret's name; it may contain `/`.", max_length=512)]


@routes.get("", response_model=list[SecretView], responses=errors())
async def list_secrets(ask: Ask) -> Response:
    """Names of the secrets that are kept."""
    return await ask.quick(lambda tracker: tracker.secrets())


@routes.put("/{name:path}", status_code=204, responses=errors(400, 413, 422))
async def set_secret(name: Name, secret: SecretBody, ask: Ask) -> Response:
    """Keep a secret, encrypted, over an earlier one of that name."""
    return await ask.quick(lambda tracker: tracker.set_secret(name, secret.value), 204)


@routes.delete("/{name:path}", status_code=204, responses=errors(400, 404))
async def remove(name: Name, ask: Ask) -> Response:
    """Forget a secret."""
    return await ask.quick(lambda tracker: tracker.remove_secret(name), 204)
