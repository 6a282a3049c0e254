"""How many requests are being served, told to CloudWatch through the log."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from typing import TextIO

from starlette.types import ASGIApp, Receive, Scope, Send

INTERVAL_SECONDS = 30.0


class InflightMiddleware:
    """Counts requests and sockets, except `/health`, and prints the number as an embedded metric."""

    def __init__(
        self,
        app: ASGIApp,
        service_name: str | None = None,
        interval_s: float = INTERVAL_SECONDS,
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
