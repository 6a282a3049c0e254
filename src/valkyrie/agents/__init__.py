"""What is tested: contracts, bundles, the library of pushed agents, and the catalogue.

`open_agent` finds one, `freeze` copies it into a run, `open_frozen` makes it again in the executor.
"""

from __future__ import annotations

from valkyrie.agents.catalog.entries import CATALOG, AgentOptions
from valkyrie.agents.loader import PreparedAgent, freeze, open_agent, open_frozen

__all__ = ["CATALOG", "AgentOptions", "PreparedAgent", "freeze", "open_agent", "open_frozen"]
