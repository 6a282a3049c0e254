"""Each back end is made once, and everything of it ended."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abilities import need_local_sandboxes
from tests.integration.backends.installations import Installation, embedded, server

FILES = Path(__file__).parent / "files"


def furnish(installation: Installation) -> Installation:
    """The person's own agent and benchmarks."""
    shutil.copytree(FILES, installation.folder, dirs_exist_ok=True)
    return installation


@pytest.fixture(scope="session")
def at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Embedded mode: what the others are compared with."""
    root = tmp_path_factory.mktemp("embedded")
    need_local_sandboxes(root / "trying", network="none")
    with embedded(root) as installation:
        yield furnish(installation)


@pytest.fixture(
    scope="session",
    params=["embedded", "server-sqlite", pytest.param("server-postgres", marks=pytest.mark.slow)],
)
def installation(
    request: pytest.FixtureRequest, at_home: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """One person on one back end."""
    if request.param == "embedded":
        yield at_home
        return
    database = None
    if request.param == "server-postgres":
        postgres = request.getfixturevalue("postgres")
        database = postgres.create()
    with server(tmp_path_factory.mktemp(request.param), database) as made:
        yield furnish(made)
