"""The verbs on a store: embedded mode, and what a server answers with."""

from __future__ import annotations

from valkyrie.tracker.bound import Bound
from valkyrie.tracker.regrade import GradeAgain
from valkyrie.tracker.taking import Taking


class LocalTracker(Bound, GradeAgain, Taking):
    """Everything one person can ask, answered from one store.

    Made from an office and an identity, or, in embedded mode, from a data folder alone.
    """
