"""The attacks every provider has to withstand, by an agent that is root in a container."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator

import pytest

from tests.docker_engine import PrivateEngine
from tests.hostile import test_hostile_agents as attacks
from tests.hostile.test_hostile_agents import (
    Scene,
    test_every_attack_was_graded_zero,
    test_nothing_leaked,
    test_the_host_is_untouched,
)
from tests.integration.conftest import end_executor
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest

__all__ = [
    "test_every_attack_was_graded_zero",
    "test_nothing_leaked",
    "test_the_host_is_untouched",
]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scene(engine: PrivateEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("hostile")
    canary = root / "host-canary"
    canary.write_text("HOST-SECRET")
    attacks.lay_out(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VALKYRIE_HOME", str(root / "home"))
        patch.setenv("VALKYRIE_CONFIG_PATH", str(root / "config.yaml"))
        patch.setenv("VALKYRIE_HOST_CANARY", "HOST_CANARY")
        tracker = LocalTracker(root / "home")
        request = RunRequest(
            agent=str(root / "hostile"),
            benchmark=str(root / "tasks"),
            provider="docker",
            concurrency=4,
            kwargs={"canary": str(canary)},
        )
        try:
            run = tracker.wait(tracker.start(request).run.id, timeout=280)
            yield Scene(root, tracker, run)
        finally:
            tracker.close()
            end_executor(root / "home")
    shutil.rmtree(root / "home")
    assert engine.left() == []


def test_outputs_bring_no_host_file_and_no_monster(scene: Scene) -> None:
    with tarfile.open(scene.kept("outputs") / "agent_output.tar.gz") as tar:
        members = {member.name: member for member in tar.getmembers()}
    # Without a quota the sparse file is cut to nothing when it is made.
    assert {"fine.txt"} <= set(members) <= {"fine.txt", "sparse"}
    assert all(member.isreg() and member.size < 1000 for member in members.values())
    with tarfile.open(scene.kept("crowd") / "agent_output.tar.gz") as tar:
        assert sum(1 for _ in tar) <= 10_001


def test_endings_are_told_apart(scene: Scene) -> None:
    assert scene.trials["hog"].exit_reason == "OS_KILLED"
    assert scene.trials["massacre"].exit_reason == "OS_KILLED"
    assert scene.trials["bomb"].exit_reason in ("TIMEOUT", "OS_KILLED")
    assert scene.trials["spy"].exit_reason is None
