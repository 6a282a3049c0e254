"""The count of requests in flight."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from benchmark_service import InflightMiddleware


class Recorder(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()

    def flush(self) -> None:
        self.written.set()


async def nothing(*_args: Any) -> Any: ...


async def test_requests_and_sockets_are_counted_while_they_last_and_health_is_not() -> None:
    seen: list[int] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(counting.inflight)
        if scope["path"] == "/fails":
            raise ValueError("no")

    counting = InflightMiddleware(app, service_name="toy")
    for kind, path in (("http", "/a"), ("websocket", "/ws/b"), ("http", "/health")):
        await counting({"type": kind, "path": path}, nothing, nothing)
    with pytest.raises(ValueError, match="no"):
        await counting({"type": "http", "path": "/fails"}, nothing, nothing)
    assert seen == [1, 1, 0, 1]
    assert counting.inflight == 0


async def test_the_metric_is_written_while_the_app_lives() -> None:
    output = Recorder()

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        await output.written.wait()

    counting = InflightMiddleware(app, service_name="toy", output=output)
    await counting({"type": "lifespan"}, nothing, nothing)
    metric = json.loads(output.getvalue().splitlines()[0])
    assert (metric["ServiceName"], metric["InFlightRequests"]) == ("toy", 0)
    (described,) = metric["_aws"]["CloudWatchMetrics"]
    assert described["Namespace"] == "Vals/BenchmarkServices"
    assert described["Dimensions"] == [["ServiceName"]]
    assert described["Metrics"][0]["Name"] == "InFlightRequests"
