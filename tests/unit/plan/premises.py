"""What planning asks for besides a request: the user's own things."""

from __future__ import annotations

from pathlib import Path

from valkyrie.organisation.embedded import EmbeddedOrganisation
from valkyrie.store.layout import DataFolder


def embedded(home: Path) -> tuple[EmbeddedOrganisation, DataFolder]:
    data = DataFolder(home)
    return EmbeddedOrganisation(data), data
