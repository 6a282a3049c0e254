"""A benchmark as a web application."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from benchmark_service import auth, responses, routes, sockets
from benchmark_service.admission import from_environment
from benchmark_service.base import BenchmarkService
from benchmark_service.gate import MAX_BODY_BYTES, TenantAdmission
from benchmark_service.schemas import EvalMode
from benchmark_service.v1 import add_v1_routes
from benchmark_service.versions import owning_distribution
from sandboxes.web_gate import RequestGate

if TYPE_CHECKING:
    from benchmark_service.admission import Admission


Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class BenchmarkServiceApp(FastAPI):
    """Serves a `BenchmarkService`; run it with any ASGI server, or with `serve`.

    The service is made when the server starts and is then `app.service`. Keep quiet streams alive with
    protocol pings: `uvicorn main:app --ws-ping-interval 30`.
    """

    service: BenchmarkService

    def __init__(
        self, service_cls: type[BenchmarkService], *, lifespan: Lifespan | None = None, **settings: Any
    ) -> None:
        self._service_cls = service_cls
        self._inner_lifespan = lifespan
        _check_sandbox_providers(service_cls)
        settings.setdefault("title", service_cls.__name__)
        super().__init__(lifespan=_lifespan, **settings)
        responses.install_handlers(self)
        self.add_middleware(
            RequestGate,
            admit=TenantAdmission(self).admit,
            answer=lambda _scope, error: responses.failure_detail(
                error.status_code, error.detail, error.headers
            ),
            limit=lambda _scope: MAX_BODY_BYTES,
        )
        self.add_middleware(responses.FailureMiddleware)
        self._count_inflight()
        routes.add_routes(self)
        sockets.add_sockets(self)
        add_v1_routes(self)

    @property
    def deployment_name(self) -> str:
        """What this service is called where it runs: SERVICE_NAME, else its class."""
        return os.environ.get("SERVICE_NAME", "").strip() or self._service_cls.__name__

    @property
    def declared_eval_mode(self) -> EvalMode | None:
        """How the service says it grades; None when it says nothing."""
        for cls in self._service_cls.__mro__:
            if cls is BenchmarkService:
                break
            if "eval_mode" in vars(cls):
                return EvalMode(self._service_cls.eval_mode)
        return None

    @cached_property
    def admission(self) -> Admission:
        """How much is graded at a time in this process."""
        self.state.admission = made = from_environment()
        return made

    @cached_property
    def _distribution(self) -> tuple[str | None, str | None]:
        return owning_distribution(self._service_cls.__module__)

    @cached_property
    def _service_name(self) -> str | None:
        return self._distribution[0]

    @cached_property
    def _service_version(self) -> str | None:
        return self._distribution[1]

    def _count_inflight(self) -> None:
        name = os.environ.get("SERVICE_NAME", "").strip()
        if name:
            self.add_middleware(InflightMiddleware, service_name=name)


@asynccontextmanager
async def _lifespan(app: BenchmarkServiceApp) -> AsyncIterator[Any]:
    auth.check_settings()
    sockets.prelude_seconds()
    _ = app.admission
    app.service = await app._service_cls.create()
    if app._inner_lifespan is None:
        yield
        return
    async with app._inner_lifespan(app) as state:
        yield state


def _check_sandbox_providers(cls: type[BenchmarkService]) -> None:
    default = cls.default_sandbox_provider
    if default is not None and default not in cls.sandbox_providers:
        known = ", ".join(cls.sandbox_providers) or "(none are declared)"
        raise ValueError(f"default_sandbox_provider must be one of {known}, not {default!r}")


def serve(app: FastAPI, host: str = "127.0.0.1", port: int = 8001, *, head_s: float | None = None) -> None:
    """Run until interrupted, with what long quiet streams need: pings, and room for large frames.

    A connection on which a request's head is not complete after `head_s` seconds (15) is cut.
    """
    import uvicorn

    from sandboxes.web_listener import HEAD_S, http_protocol

    uvicorn.run(
        app,
        host=host,
        port=port,
        http=http_protocol(HEAD_S if head_s is None else head_s),
        ws_ping_interval=20,
        ws_ping_timeout=600,
        ws_max_size=64 << 20,
    )


# How many requests are being served, told to CloudWatch through the log.

INFLIGHT_INTERVAL_SECONDS = 30.0


class InflightMiddleware:
    """Counts requests and sockets, except `/health`, and prints the number as an embedded metric."""

    def __init__(
        self,
        app: ASGIApp,
        service_name: str | None = None,
        interval_s: float = INFLIGHT_INTERVAL_SECONDS,
        output: TextIO | None = None,
    ) -> None:
        self.app = app
        self.service_name = service_name or os.environ.get("SERVICE_NAME", "").strip() or "benchmark-service"
        self.interval_s = interval_s
        self.output = output
        self.inflight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._with_reports(scope, receive, send)
        if scope["path"] == "/health":
            return await self.app(scope, receive, send)
        self.inflight += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.inflight -= 1

    async def _with_reports(self, scope: Scope, receive: Receive, send: Send) -> None:
        reporting = asyncio.create_task(self._report())
        try:
            await self.app(scope, receive, send)
        finally:
            reporting.cancel()
            with suppress(asyncio.CancelledError):
                await reporting

    async def _report(self) -> None:
        while True:
            output = self.output or sys.stdout
            output.write(json.dumps(self.metric()) + "\n")
            output.flush()
            await asyncio.sleep(self.interval_s)

    def metric(self) -> dict[str, object]:
        """The count now, in CloudWatch's embedded metric format."""
        return {
            "_aws": {
                "Timestamp": int(time.time() * 1000),
                "CloudWatchMetrics": [
                    {
                        "Namespace": "Vals/BenchmarkServices",
                        "Dimensions": [["ServiceName"]],
                        "Metrics": [{"Name": "InFlightRequests", "Unit": "Count"}],
                    }
                ],
            },
            "ServiceName": self.service_name,
            "InFlightRequests": self.inflight,
        }
