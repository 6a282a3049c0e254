"""The verbs of the platform as one object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from valkyrie.config.values import data_folder, effective
from valkyrie.errors import UserError
from valkyrie.executor.client import ExecutorClient
from valkyrie.store.layout import DataFolder

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker


def open_tracker(*, to_start: bool = False) -> Tracker:
    """Return the tracker the user's settings name (`tracker_url`), else the one on this machine.

    `to_start`: an executor will be needed, so it comes up while everything else is being loaded.
    """
    if url := effective("tracker_url").value:
        from valkyrie.tracker.remote import RemoteTracker

        key = effective("api_key").value
        return RemoteTracker(str(url), str(key) if key else None)
    return _on_this_machine(to_start)


def _on_this_machine(to_start: bool) -> Tracker:
    data = DataFolder(data_folder())
    if data.root.exists() and not data.root.is_dir():
        raise UserError(f"The data folder {data.root} is no folder. Set VALKYRIE_HOME to a folder of yours.")
    starting = ExecutorClient(data).begin() if to_start else None
    from valkyrie.tracker.app import TrackerApp
    from valkyrie.tracker.local import LocalTracker

    return LocalTracker(TrackerApp(data, starting=starting))
