"""What a place that holds secrets is to the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class SecretSource(Protocol):
    """A place to look a secret up in. A value never appears in an error, a repr or a log."""

    @property
    def place(self) -> str:
        """Where this is, for people: `the environment`, `/home/me/.env`."""
        ...

    @property
    def by_variable(self) -> bool:
        """Whether names here are names of environment variables; then the variable's own name counts too."""
        ...

    @property
    def remote(self) -> bool:
        """Whether it is a service elsewhere, which keeps secrets under the names that are asked for."""
        ...

    def get(self, name: str) -> str | None:
        """The value, or None when there is none. An empty value is none."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """What could not be read, for the message when a secret is missing."""
        ...
