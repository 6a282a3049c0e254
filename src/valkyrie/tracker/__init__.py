"""The verbs of the platform as one object."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker


def open_tracker() -> Tracker:
    """The tracker the user's settings name; today that is the one on this machine."""
    from valkyrie.settings import data_folder
    from valkyrie.tracker.local import LocalTracker

    return LocalTracker(data_folder())
