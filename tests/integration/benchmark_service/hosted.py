"""Stand-ins for what a hosted service leans on, on loopback: the identity provider and two AWS services."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.integration.benchmark_service.scripted_service import serving

PROJECT = "Ptest"


@dataclass
class Descope:
    """Exchanges access keys for signed tokens, as the vendor's SDK expects it."""

    tenants_of: dict[str, list[str]] = field(default_factory=dict)
    exchanges: int = 0
    forged: bool = False
    expired: bool = False
    url: str = ""

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._other = ec.generate_private_key(ec.SECP256R1())

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/auth/accesskey/exchange", self._exchange, methods=["POST"]),
                Route(f"/v2/keys/{PROJECT}", self._keys),
            ]
        )

    async def _exchange(self, request: Request) -> Response:
        self.exchanges += 1
        project, _, key = request.headers["authorization"].removeprefix("Bearer ").partition(":")
        if project != PROJECT or key not in self.tenants_of:
            return JSONResponse({"errorDescription": "unknown access key"}, 401)
        claims = {
            "iss": PROJECT,
            "sub": "K1",
            "exp": int(time.time()) + (-3600 if self.expired else 3600),
            "tenants": {tenant: {} for tenant in self.tenants_of[key]},
        }
        signer = self._other if self.forged else self._key
        token = jwt.encode(claims, signer, algorithm="ES256", headers={"kid": "k1"})
        return JSONResponse({"sessionJwt": token, "keyId": "K1", "expiration": claims["exp"]})

    async def _keys(self, _request: Request) -> Response:
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key()))
        return JSONResponse({"keys": [{**public, "kid": "k1", "alg": "ES256", "use": "sig"}]})


@dataclass
class Aws:
    """As much of S3 and DynamoDB as the service uses, in memory."""

    objects: dict[str, bytes] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    writes: list[dict[str, Any]] = field(default_factory=list)
    broken: bool = False
    replace_after_head: bytes | None = None
    url: str = ""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self._dynamodb, methods=["POST"]),
                Route("/{bucket}/{key:path}", self._s3, methods=["GET", "HEAD", "PUT"]),
            ]
        )

    async def _dynamodb(self, request: Request) -> Response:
        body = await request.json()
        self.writes.append(body)
        if self.broken:
            return Response(status_code=500)
        key = body["Key"]["quota_key"]["S"]
        limit = int(body["ExpressionAttributeValues"][":limit"]["N"])
        if self.counters.get(key, 0) >= limit:
            kind = "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"
            return JSONResponse({"__type": kind, "message": "The conditional request failed"}, 400)
        self.counters[key] = self.counters.get(key, 0) + 1
        return JSONResponse({})

    async def _s3(self, request: Request) -> Response:
        key = request.path_params["key"]
        if request.method == "PUT":
            self.objects[key] = await request.body()
            return Response(headers={"ETag": self.etag(key)})
        if key not in self.objects:
            return _xml(404, "NoSuchKey")
        etag = self.etag(key)
        if request.headers.get("if-match", etag) != etag:
            return _xml(412, "PreconditionFailed")
        answer = Response(self.objects[key], headers={"ETag": etag})
        if request.method == "HEAD" and self.replace_after_head is not None:
            self.objects[key] = self.replace_after_head
        return answer

    def etag(self, key: str) -> str:
        return f'"{hashlib.sha256(self.objects[key]).hexdigest()[:32]}"'


def _xml(status: int, code: str) -> Response:
    return Response(f"<Error><Code>{code}</Code></Error>", status, media_type="application/xml")


StandIn = TypeVar("StandIn", Descope, Aws)


@asynccontextmanager
async def running(standin: StandIn) -> AsyncIterator[StandIn]:
    """The stand-in, served."""
    async with serving(standin.app(), lifespan="off") as url:
        standin.url = url
        yield standin
