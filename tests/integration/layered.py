"""An agent with a layer that costs nothing to install, for a real executor in another process."""

from __future__ import annotations

from typing import ClassVar

from sandboxes.types import Command
from valkyrie.agents.protocol import AgentExit, AgentTrial, LayerSpec
from valkyrie.domain import Json
from valkyrie.testing.null import NapAgent


class LayeredAgent(NapAgent):
    """Looks whether its layer is there."""

    name = "layered"
    frozen: ClassVar[Json] = {"kind": "plugin", "target": "tests.integration.layered:LayeredAgent"}
    digest = "layered:1"
    layer = LayerSpec("layered", "1.0.0")

    async def run(self, trial: AgentTrial) -> AgentExit:
        seen = Command(("test", "-s", f"{self.layer.target}/layer.json"))
        return AgentExit(await trial.sandbox.run(seen))
