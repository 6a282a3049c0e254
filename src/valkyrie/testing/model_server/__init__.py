"""A loopback server that plays a model for agents: four APIs, scripted turns and faults, usage counted.

python -m valkyrie.testing.model_server --script FILE
"""

from __future__ import annotations

from valkyrie.testing.model_server.script import Fault, Say, Script, Shell, TokenCounts, ToolRequest
from valkyrie.testing.model_server.server import ModelServer, Recorded

__all__ = ["Fault", "ModelServer", "Recorded", "Say", "Script", "Shell", "TokenCounts", "ToolRequest"]
