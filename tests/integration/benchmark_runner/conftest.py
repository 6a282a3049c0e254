"""The example service, live for all tests of a worker, and a project for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.benchmark_runner.runner_project import (
    Live,
    RunnerProject,
    live,
    load_trivia,
    sums_app,
)

READ = (
    *("SERVICE_URL", "VALS_AUTH_KEY", "VALS_API_KEY", "BENCHMARK_API_KEY", "AUTH_REQUIRED"),
    *("CUSTOM_ENDPOINT", "CUSTOM_API_KEY", "QUIZ_GENERATION_VERSION", "QUIZ_BROKEN", "VALKYRIE_API_KEY"),
)


@pytest.fixture(scope="session")
def trivia_service() -> Iterator[Live]:
    with live(load_trivia().app) as service:
        yield service


@pytest.fixture(scope="session")
def sums_service() -> Iterator[Live]:
    with live(sums_app()) as service:
        yield service


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, and an environment that says nothing; both are as before afterwards."""
    before = dict(os.environ)
    for name in READ:
        os.environ.pop(name, None)
    os.environ["QUIZ_JOURNAL"] = str(tmp_path / "journal")
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    yield tmp_path / "project"
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def trivia(trivia_service: Live, place: Path) -> RunnerProject:
    trivia_service.forget()
    return RunnerProject(place, trivia_service)


@pytest.fixture
def sums(sums_service: Live, place: Path) -> RunnerProject:
    sums_service.forget()
    return RunnerProject(place, sums_service)
