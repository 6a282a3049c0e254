"""The verbs on a store: embedded mode, and what a server answers with."""

from __future__ import annotations

from valkyrie.tracker.belongings import Belongings
from valkyrie.tracker.starting import Starting
from valkyrie.tracker.steering import Steering
from valkyrie.tracker.taking import Taking


class LocalTracker(Starting, Steering, Taking, Belongings):
    """Everything one person can ask, answered from one store.

    Made from an office and an identity, or, in embedded mode, from a data folder alone.
    """
