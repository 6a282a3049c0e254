"""The forging agent, as root in containers: it gains nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.docker_engine import PrivateEngine
from tests.hostile.forging_tasks import (
    CONTAINED,
    HONEST,
    Scene,
    check_nothing_gained,
    check_whole_score,
    forge,
    make_agent,
    make_tasks,
)
from tests.integration.conftest import end_executor
from valkyrie.tracker.local import LocalTracker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def scene(engine: PrivateEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("forging")
    agent = make_agent(root)
    tasks = make_tasks(root / "tasks", (*CONTAINED, *HONEST))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VALKYRIE_HOME", str(root / "home"))
        patch.setenv("VALKYRIE_CONFIG_PATH", str(root / "config.yaml"))
        tracker = LocalTracker(root / "home")
        try:
            yield forge(tracker, agent, tasks, "docker")
        finally:
            tracker.close()
            end_executor(root / "home")
    shutil.rmtree(root / "home")
    assert engine.left() == []


@pytest.mark.parametrize("way", CONTAINED)
def test_nothing_is_gained(scene: Scene, way: str) -> None:
    for row in scene.of(way):
        check_nothing_gained(row)


@pytest.mark.parametrize("way", HONEST)
def test_honest_agents_pass_beside_forgers(scene: Scene, way: str) -> None:
    for row in scene.of(way):
        assert (row.score, row.passed, row.confirmed, row.attempts) == (1.0, True, True, 1), row


def test_nothing_is_left_out_of_the_score(scene: Scene) -> None:
    check_whole_score(scene)
    assert scene.run.score.passed == scene.run.score.confirmed == len(HONEST)
