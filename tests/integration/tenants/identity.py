"""A stand-in of the identity provider, as the vendor's own SDK speaks to it."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PROJECT = "Ptest"
KEY, OTHER_KEY = "K-acme-key-1234567890", "K-other-key-1234567890"
MANAGEMENT_KEY = "management-key-1234567890"


@dataclass
class Descope:
    """Access keys, sessions, and the management API, as the vendor's SDK speaks to them."""

    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Access key → its tenants."""
    users: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    status: int = 200
    lifetime: int = 3600
    hangs: asyncio.Event | None = None
    """No exchange is answered before this."""
    loop: asyncio.AbstractEventLoop | None = None

    def __post_init__(self) -> None:
        self._key, self._other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def token(self, tenants: dict[str, Any], *, forged: bool = False, **more: Any) -> str:
        claims = {
            "iss": PROJECT,
            "sub": "U1",
            "exp": int(time.time()) + self.lifetime,
            "tenants": tenants,
            **more,
        }
        return jwt.encode(
            claims, self._other if forged else self._key, algorithm="ES256", headers={"kid": "k1"}
        )

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/auth/accesskey/exchange", self._exchange, methods=["POST"]),
                Route(f"/v2/keys/{PROJECT}", self._public),
                Route("/v1/mgmt/{what:path}", self._manage),
            ]
        )

    async def _exchange(self, request: Request) -> Response:
        self.asked.append("exchange")
        self.loop = asyncio.get_running_loop()
        if self.hangs:
            await self.hangs.wait()
        if self.status != 200:
            return JSONResponse({"errorDescription": "out of order"}, self.status)
        _, _, key = request.headers["authorization"].removeprefix("Bearer ").partition(":")
        if key not in self.keys:
            return JSONResponse({"errorDescription": f"unknown access key {key}"}, 401)
        return JSONResponse({"sessionJwt": self.token(self.keys[key], sub=f"id-{key[2:6]}"), "keyId": "K"})

    async def _public(self, _request: Request) -> Response:
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key()))
        return JSONResponse({"keys": [{**public, "kid": "k1", "alg": "ES256", "use": "sig"}]})

    async def _manage(self, request: Request) -> Response:
        what, key = request.path_params["what"], request.headers["authorization"]
        self.asked.append(what)
        if not key.endswith(MANAGEMENT_KEY):
            return JSONResponse({}, 401)
        if what == "accesskey":
            return JSONResponse({"key": {"id": request.query_params["id"], "userId": "U7"}})
        if what == "user":
            email = self.users.get(request.query_params["userId"])
            return JSONResponse({"user": {"email": email}} if email else {}, 200 if email else 404)
        if what == "tenant":
            return JSONResponse({"id": request.query_params["id"], "name": "Acme Inc."})
        return JSONResponse({})
