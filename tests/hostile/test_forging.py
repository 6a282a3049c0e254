"""An agent that forges its score or breaks what grades it gains nothing, whatever way it takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxes.cgroups import Cgroup
from sandboxes.errors import SandboxError
from sandboxes.local.provider import LocalProvider
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
from tests.integration.conftest import end_executor, until
from valkyrie.store.layout import DataFolder
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
    until(lambda: not _groups_left(root / "home"), timeout=300)
    assert (root / "canary").read_text() == CANARY
    assert str(root) not in Path("/proc/self/mountinfo").read_text()


def _groups_left(home: Path) -> list[str]:
    """The cgroups of a data folder's sandboxes that are still there once its provider has swept."""
    state = DataFolder(home).sandboxes("local")

    async def swept() -> list[str]:
        async with LocalProvider(state) as provider:
            with contextlib.suppress(SandboxError):  # the processes of a bomb may take their time
                _ = [sandbox async for sandbox in provider.list_sandboxes()]
            return Cgroup.find(provider._cgroup_prefix)

    return asyncio.run(swept())


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


@pytest.mark.slow
def test_an_agent_that_breaks_what_it_cannot_solve_is_shown_as_it_is(home: Path) -> None:
    """It solves 3 of the 12 tasks of quickstart, beside the oracle and an agent that does nothing."""
    picky = make_agent(home, "picky", "picky")
    agents = ("--agent", picky, "--agent", "oracle", "--agent", "nop")
    valk("job", "run", *agents, "--benchmark", "quickstart", "-n", "picky", "--n-concurrent-trials", 4)
    valk("job", "watch", "picky", "--json")
    summary = valk("job", "summary", "picky", "--json")
    for number, share in (("final_score", 0.25), ("score_graded", 0.25), ("score_confirmed", 0.25)):
        assert _by_agent(summary["runs"], number) == {"picky": share, "oracle": 1.0, "nop": 0.0}
    assert _by_agent(summary["benchmark_outcomes"], "average_score")["picky"] == 0.25
    (compared,) = (one for one in valk("compare", "picky", "--json")["agents"] if one["name"] == "picky")
    assert {one["mean"] for one in compared["scores"].values()} == {0.25}
    assert (compared["graded"], compared["ungraded"], compared["errors"]) == (12, 0, {})
    run = compared["run_id"]
    shown = valk("run", "fetch", run, "--json")["run"]["score"]
    assert (shown["score_low"], shown["score_high"]) == (0.25, 0.25)
    assert [row["attempts"] for row in valk("run", "tasks", run, "--json")["trials"]] == [1] * 12
    results = home / "results.json"
    valk("run", "results", run, "--path", results)
    written = json.loads(results.read_text())
    assert written["final_evaluation"]["final_score"] == written["score"]["score_graded"] == 0.25


def valk(*words: object) -> Any:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "valkyrie", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if "--json" in words else None


def _by_agent(rows: list[Any], number: str) -> dict[str, float]:
    return {row["agent_name"]: row[number] if number in row else row["score"][number] for row in rows}


@pytest.mark.slow
def test_an_agent_that_kills_its_sandbox_has_one_try(home: Path, tracker: LocalTracker) -> None:
    """It solves with p = 1/3: the score is the share of what it solved."""
    tasks = make_tasks(home / "gambled", ("gambler",))
    scene = forge(tracker, home / "forger", tasks, trials=60)
    check_whole_score(scene)
    assert [row.attempts for row in scene.trials] == [1] * 60
    lost = [
        row.k for row in scene.trials if "LOST" in "".join(tracker.logs(scene.run.id, "gambler", k=row.k))
    ]
    assert [row.k for row in scene.trials if not row.passed] == lost
    assert scene.run.score.final_score == pytest.approx(1 - len(lost) / 60)
    assert 22 <= len(lost) <= 58, "five standard deviations around 40"
