"""Scenarios of the caller's own folders: `./tasks/one`, which a tracker elsewhere cannot read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.errors import UsageError
from valkyrie.tracker.scenarios import Selection, select_scenarios

if TYPE_CHECKING:
    from valkyrie.benchmarks.protocol import Benchmark
    from valkyrie.client.client import ValkyrieClient

_OF_A_PATH = (".", "/", "~")


async def sent_scenarios(client: ValkyrieClient, scenarios: Sequence[str]) -> Sequence[str]:
    """The same scenarios as the tracker knows them: folders are sent."""
    here = [one for one in scenarios if one.startswith(_OF_A_PATH)]
    if not here:
        return scenarios
    # In a thread: benchmarks are read in an event loop of their own.
    selections = await asyncio.to_thread(select_scenarios, here, (), _open_folder)
    known: dict[str, str] = {}
    for one in selections:
        uploaded = await client.upload_benchmark(Path(one.benchmark).expanduser())
        known |= _renamed(one, uploaded)
    return [known.get(one, one) for one in scenarios]


def _open_folder(name: str) -> Benchmark:
    from valkyrie.benchmarks import open_benchmark

    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise UsageError(f"no folder {name}")
    return open_benchmark(str(folder.absolute()))


def _renamed(selection: Selection, uploaded: str) -> dict[str, str]:
    """Every way the caller may have said a task of a folder, and what it is to the tracker."""
    name, dataset = selection.benchmark, selection.dataset
    endings = [f"@{dataset}", *(("@", "") if dataset == "default" else ())]
    return {
        f"{name}{ending}/{task}": f"{uploaded}{ending}/{task}"
        for ending in endings
        for task in selection.task_ids or ()
    }
