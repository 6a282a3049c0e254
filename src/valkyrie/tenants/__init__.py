"""What an organisation has: people who ask, agents, secrets, a place for artifacts and one for logs.

Embedded mode has one organisation, whose things are the user's own: their environment, config file and
secret store. On a server each organisation has its own, and nothing of the server's environment is theirs.
"""

from __future__ import annotations

from valkyrie.tenants.organisation import Organisation

__all__ = ["Organisation"]
