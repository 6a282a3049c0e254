"""A loopback server that plays a model for agents: four APIs, scripted turns and faults, usage counted.

python -m valkyrie.testing.model_server --script FILE
"""

from __future__ import annotations

from valkyrie.testing.model_server.script import Call, Fault, Say, Script, Shell, Tokens
from valkyrie.testing.model_server.server import ModelServer, Recorded

__all__ = ["Call", "Fault", "ModelServer", "Recorded", "Say", "Script", "Shell", "Tokens"]
