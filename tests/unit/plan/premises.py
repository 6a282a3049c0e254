"""What planning asks for besides a request: the user's own things."""

from __future__ import annotations

from pathlib import Path

from valkyrie.store.layout import DataFolder
from valkyrie.tenants.organisation import EmbeddedOrganisation


def embedded(home: Path) -> tuple[EmbeddedOrganisation, DataFolder]:
    data = DataFolder(home)
    return EmbeddedOrganisation(data), data
