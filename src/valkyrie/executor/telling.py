"""What messages to the outside find in an executor: the run's values, organisation, results and links."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from valkyrie.executor.worlds import RunWorlds
from valkyrie.nouns import Json
from valkyrie.report.arguments import told_arguments
from valkyrie.report.links import run_links
from valkyrie.report.present import run_view
from valkyrie.report.results import results_document
from valkyrie.store import Store, hooks, people, runs
from valkyrie.store.secrets import forget_handed
from valkyrie.store.writer import Writer

if TYPE_CHECKING:
    from valkyrie.organisation import Organisation
    from valkyrie.store import Connection


class RunTelling:
    """An executor's side of its hooks (valkyrie.hooks.world.HookWorld)."""

    def __init__(self, store: Store, writer: Writer, worlds: RunWorlds) -> None:
        self._store = store
        self._writer = writer
        self._worlds = worlds

    async def values(self, run_id: str) -> Mapping[str, str] | None:
        return await self._worlds.handed(run_id)

    async def organisation(self, org_id: str, run_id: str) -> Organisation:
        values = await self._worlds.handed(run_id) or {}
        return await asyncio.to_thread(self._worlds.organisation, org_id, values)

    async def results(self, run_id: str) -> Json:
        return await asyncio.to_thread(self._results, run_id)

    def _results(self, run_id: str) -> Json:
        with self._store.reading() as connection:
            row = runs.get(connection, run_id)
            view = run_view(
                row,
                executor="alive",
                folder="",
                scores=runs.scores(connection, run_id),
                families=runs.families(connection, run_id),
                org=_org_name(connection, row.org_id),
                hooks=hooks.of_run(connection, run_id),
                links=run_links(row.place, run_id),
            )
            rows = runs.each_result(connection, run_id)
            view = replace(view, arguments=told_arguments(row))
            return results_document(view, row.final_evaluation, rows, passes=row.passes)

    async def arguments(self, run_id: str) -> Json:
        row = await self._writer.call(lambda connection: runs.get(connection, run_id))
        return told_arguments(row)

    async def links(self, run_id: str) -> Mapping[str, str]:
        row = await self._writer.call(lambda connection: runs.get(connection, run_id))
        return run_links(row.place, run_id)

    async def settled(self, run_id: str) -> None:
        def forget(connection: Connection) -> bool:
            ended = hooks.settled(connection, run_id)  # it may have been resumed just now, with other values
            if ended:
                forget_handed(connection, run_id)
            return ended

        if await self._writer.call(forget):
            self._worlds.settled(run_id)


def _org_name(connection: Connection, org_id: str) -> str:
    org = people.org_by_id(connection, org_id)
    return org.name if org else org_id
