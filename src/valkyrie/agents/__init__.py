"""What is tested: contracts, bundles, the library of pushed agents, and the catalogue.

`open_agent` finds one, `freeze` copies it into a run, `open_frozen` makes it again in the executor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

if TYPE_CHECKING:
    from valkyrie.agents.catalog import CATALOG
    from valkyrie.agents.loader import freeze, open_agent, open_frozen
    from valkyrie.agents.protocol import AgentOptions, PreparedAgent

__all__ = ["CATALOG", "AgentOptions", "PreparedAgent", "freeze", "open_agent", "open_frozen"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "valkyrie.agents.catalog": ["CATALOG"],
        "valkyrie.agents.loader": ["freeze", "open_agent", "open_frozen"],
        "valkyrie.agents.protocol": ["AgentOptions", "PreparedAgent"],
    },
)
