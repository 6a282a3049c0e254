"""An agent that forges its score or breaks what grades it gains nothing, whatever way it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abilities import need_local_sandboxes
from tests.hostile.forging_tasks import (
    HONEST,
    QUICK,
    WAYS,
    Scene,
    check_nothing_gained,
    check_whole_score,
    forge,
    make_agent,
    make_tasks,
)
from tests.integration.conftest import end_executor
from valkyrie.tracker.local import LocalTracker

CANARY = "HOST-SECRET"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a data folder, the agent, and a file of the host nobody may change."""
    root = tmp_path_factory.mktemp("forging")
    need_local_sandboxes(root / "trying", network="none")
    (root / "canary").write_text(CANARY)
    make_agent(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VALKYRIE_HOME", str(root / "home"))
        patch.setenv("VALKYRIE_CONFIG_PATH", str(root / "config.yaml"))
        patch.setenv("VALKYRIE_EXECUTOR_IDLE_S", "60")
        yield root
        end_executor(root / "home")
    assert (root / "canary").read_text() == CANARY
    assert str(root) not in Path("/proc/self/mountinfo").read_text()


@pytest.fixture(scope="module")
def tracker(home: Path) -> Iterator[LocalTracker]:
    made = LocalTracker(home / "home")
    yield made
    made.close()


@pytest.fixture(scope="module")
def quick(home: Path, tracker: LocalTracker) -> Scene:
    tasks = make_tasks(home / "quick", (*QUICK, *HONEST))
    return forge(tracker, home / "forger", tasks)


@pytest.fixture(scope="module")
def whole(home: Path, tracker: LocalTracker) -> Scene:
    tasks = make_tasks(home / "whole", (*WAYS, *HONEST))
    return forge(tracker, home / "forger", tasks)


@pytest.fixture(scope="module")
def undecided(home: Path, tracker: LocalTracker) -> Scene:
    """Tasks whose author says nothing of verification."""
    tasks = make_tasks(home / "undecided", (*WAYS, *HONEST), mode=None)
    return forge(tracker, home / "forger", tasks)


@pytest.mark.parametrize("way", QUICK)
def test_nothing_is_gained(quick: Scene, way: str) -> None:
    for row in quick.of(way):
        check_nothing_gained(row)


@pytest.mark.parametrize("way", HONEST)
def test_honest_agents_pass_beside_forgers(quick: Scene, way: str) -> None:
    for row in quick.of(way):
        assert (row.score, row.passed, row.confirmed, row.attempts) == (1.0, True, True, 1), row


def test_nothing_is_left_out_of_the_score(quick: Scene) -> None:
    check_whole_score(quick)
    assert quick.run.score.passed == len(HONEST)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_gained_by_any_way(whole: Scene, way: str) -> None:
    for row in whole.of(way):
        check_nothing_gained(row)


@pytest.mark.slow
def test_nothing_of_all_ways_is_left_out_of_the_score(whole: Scene) -> None:
    check_whole_score(whole)
    assert whole.run.score.passed == whole.run.score.confirmed == len(HONEST)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_gained_where_the_task_says_nothing(undecided: Scene, way: str) -> None:
    for row in undecided.of(way):
        check_nothing_gained(row)


@pytest.mark.slow
def test_nothing_is_left_out_where_the_task_says_nothing(undecided: Scene) -> None:
    check_whole_score(undecided)
    assert undecided.run.score.confirmed == len(HONEST)
