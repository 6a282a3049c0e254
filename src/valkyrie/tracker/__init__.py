"""The verbs of the platform as one object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from valkyrie.errors import UserError

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker


def open_tracker(*, to_start: bool = False) -> Tracker:
    """The tracker the user's settings name; today that is the one on this machine.

    `to_start`: an executor will be needed, so it comes up while everything else is being loaded.
    """
    from valkyrie.executor.client import ExecutorClient
    from valkyrie.settings import data_folder
    from valkyrie.store.layout import DataFolder

    folder = data_folder()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"The data folder {folder} is no folder. Set VALKYRIE_HOME to a folder of yours.")
    starting = ExecutorClient(DataFolder(folder)).begin() if to_start else None
    from valkyrie.tracker.local import LocalTracker

    return LocalTracker(folder, starting)
