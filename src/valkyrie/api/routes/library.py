"""Agents, benchmarks, uploads, and results that came about elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import Path, Query
from starlette.responses import Response

from valkyrie.api.answers import answer
from valkyrie.api.bodies import TasksBody
from valkyrie.api.context import Ask
from valkyrie.api.routes import errors, router
from valkyrie.api.streams import receive_archive, stream
from valkyrie.errors import UsageError
from valkyrie.ingest.sources import ingest_archive
from valkyrie.tracker.checks import LONGEST_TEXT
from valkyrie.views import AgentView, BenchmarkView, IngestedRun, TasksView

agent_routes = router("agents", "/v1/agents")

Name = Annotated[str, Path(description="The agent's name.", max_length=200)]
ZIP = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@agent_routes.get("", response_model=list[AgentView], responses=errors())
async def list_agents(ask: Ask) -> Response:
    """Pushed agents of the organisation, by name."""
    return await ask.slow(lambda tracker: tracker.agents())


@agent_routes.put("/{name}", response_model=AgentView, responses=errors(400, 413, 422), openapi_extra=ZIP)
async def push(
    name: Name,
    ask: Ask,
    origin: Annotated[str | None, Query(description="Where it was installed from.", max_length=1000)] = None,
) -> Response:
    """Take an agent's archive (a zip) in, over an earlier one of that name."""
    async with receive_archive(ask) as received:
        return await ask.slow(lambda tracker: tracker.push_archive(received.file, name, origin))


@agent_routes.get(
    "/{name}/archive",
    responses={200: {"content": {"application/zip": {}}, "description": "The archive."}, **errors(400, 404)},
    response_class=Response,
)
async def archive(name: Name, ask: Ask) -> Response:
    """A pushed agent's archive."""
    lanes, tracker = ask.context.lanes, ask.tracker()
    return await stream(
        lanes.slow,
        lanes.downloads,
        lambda: tracker.agent_archive(name)[1],
        "application/zip",
        stuck_s=ask.context.settings.stuck_s,
    )


@agent_routes.delete("/{name}", status_code=204, responses=errors(400, 404))
async def remove(name: Name, ask: Ask) -> Response:
    """Forget a pushed agent; runs keep their own copy."""
    return await ask.slow(lambda tracker: tracker.remove_agent(name), 204)


# Uploads: folders of the caller that a request will name as `upload:<digest>`.

upload_routes = router("uploads", "/v1/uploads")

_DIGEST = re.compile("[0-9a-f]{64}")
Digest = Annotated[str, Path(description="sha256 of the archive, in hexadecimal.", max_length=64)]


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What a request calls the archive that was sent."""

    ref: str


@upload_routes.put(
    "/{digest}", response_model=Uploaded, responses=errors(400, 404, 413, 422), openapi_extra=ZIP
)
async def upload(digest: Digest, ask: Ask) -> Response:
    """Send an archive (a zip) whose sha256 is `digest`."""
    if not _DIGEST.fullmatch(digest):
        raise UsageError(f"{digest!r} is no sha256 digest: 64 hexadecimal digits.")
    async with receive_archive(ask) as received:
        if received.digest != digest:
            raise UsageError("What was sent is not what its digest says; send it again.", cause="digest")
        await ask.context.lanes.slow.run(lambda: ask.tracker().upload(digest, received.file))
    return answer(Uploaded(f"upload:{digest}"))


@upload_routes.head("/{digest}", responses=errors(404), response_class=Response)
async def exists(digest: Digest, ask: Ask) -> Response:
    """Whether it was sent before: 200 or 404."""
    there = await ask.context.lanes.quick.run(lambda: ask.tracker().has_upload(digest))
    return Response(status_code=200 if there else 404)


# Results that came about elsewhere, sent to be runs here.

ingest_routes = router("ingest", "/v1/ingest")


@ingest_routes.put("", response_model=list[IngestedRun], responses=errors(400, 413, 422), openapi_extra=ZIP)
async def ingest(
    ask: Ask,
    label: Annotated[
        str | None,
        Query(description="A label for the runs; else the variant's name.", max_length=LONGEST_TEXT),
    ] = None,
    dry_run: Annotated[bool, Query(description="Say what would be stored, and store nothing.")] = False,
    replace: Annotated[
        bool, Query(description="Take runs that were ingested before and say something else now.")
    ] = False,
) -> Response:
    """Store results: a zip of one top folder with a `results.jsonl` of evals, or the `run_config.json` of a
    benchmark runner's run, in or below it. All of it is stored, or nothing; the same results are stored once,
    so it is safe to send them again."""
    async with receive_archive(ask) as received:
        return await ask.slow(
            lambda tracker: ingest_archive(
                tracker, received.file, label=label, dry_run=dry_run, replace=replace
            )
        )


# Benchmarks that can be named, and their tasks.

benchmark_routes = router("benchmarks", "/v1/benchmarks")


@benchmark_routes.get("", response_model=list[BenchmarkView], responses=errors(502))
async def list_benchmarks(ask: Ask) -> Response:
    """The benchmarks this tracker knows by name."""
    return await ask.slow(lambda tracker: tracker.benchmarks())


@benchmark_routes.post("/tasks", response_model=TasksView, responses=errors(400, 404, 413, 422, 502))
async def tasks(request: TasksBody, ask: Ask) -> Response:
    """Task ids of a benchmark, in its own order."""
    return await ask.slow(lambda tracker: tracker.benchmark_tasks(request))
