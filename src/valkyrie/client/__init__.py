"""The tracker from Python: `ValkyrieClient`, its verbs as coroutines, its events as async iterators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

# Embedded mode uses parts of this package and must not pay for an HTTP library.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "valkyrie.client.client": ["ValkyrieClient"],
        "valkyrie.client.events": ["RunChanged", "RunEvent", "TrialChanged"],
    },
)

if TYPE_CHECKING:
    from valkyrie.client.client import *  # noqa: F403
    from valkyrie.client.events import *  # noqa: F403
