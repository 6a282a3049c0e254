"""Results that came about elsewhere, sent to be runs here."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from valkyrie.api.context import Ask
from valkyrie.api.receiving import receive_archive
from valkyrie.api.routes import errors, router
from valkyrie.api.routes.agents import ZIP
from valkyrie.evals.ingest_archive import ingest_archive
from valkyrie.tracker.bounds import LONGEST_TEXT
from valkyrie.views import IngestedRun

routes = router("ingest", "/v1/ingest")


@routes.put("", response_model=list[IngestedRun], responses=errors(400, 413, 422), openapi_extra=ZIP)
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
