"""What an executor gives to whoever sends messages for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from valkyrie.nouns import Json

if TYPE_CHECKING:
    from valkyrie.organisation import Organisation


class HookWorld(Protocol):
    """Where messages find what they need. Every call may fail with a ValkyrieError."""

    async def values(self, run_id: str) -> Mapping[str, str] | None:
        """Everything the run was handed (valkyrie.secrets.delivery); None when nobody has it now."""
        ...

    async def organisation(self, org_id: str, run_id: str) -> Organisation:
        """Whose run it is, with the credentials the run was handed."""
        ...

    async def results(self, run_id: str) -> Json:
        """The run's results document."""
        ...

    async def arguments(self, run_id: str) -> Json:
        """What the run was asked with, secrets by name only."""
        ...

    async def links(self, run_id: str) -> Mapping[str, str]:
        """Where people can look at the run: artifacts, logs."""
        ...

    async def settled(self, run_id: str) -> None:
        """The run has ended and nothing is left to tell of it: what it was handed can go."""
        ...
