"""Benchmarks that can be named, and their tasks."""

from __future__ import annotations

from starlette.responses import Response

from valkyrie.api.bodies import TasksBody
from valkyrie.api.context import Ask
from valkyrie.api.routes import errors, router
from valkyrie.views import BenchmarkView, TasksView

routes = router("benchmarks", "/v1/benchmarks")


@routes.get("", response_model=list[BenchmarkView], responses=errors(502))
async def list_benchmarks(ask: Ask) -> Response:
    """The benchmarks this tracker knows by name."""
    return await ask.slow(lambda tracker: tracker.benchmarks())


@routes.post("/tasks", response_model=TasksView, responses=errors(400, 404, 413, 422, 502))
async def tasks(request: TasksBody, ask: Ask) -> Response:
    """Task ids of a benchmark, in its own order."""
    return await ask.slow(lambda tracker: tracker.benchmark_tasks(request))
