"""An empty store, on each of the two databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from valkyrie.store import Store


@pytest.fixture
def store(store_address: Path | str) -> Iterator[Store]:
    opened = Store(store_address)
    yield opened
    opened.close()
