"""Room for trials: processors, memory, and files to open."""

from __future__ import annotations

import subprocess
import sys

import pytest

from valkyrie.schedule.scheduler import HostRoom, trials_by_files
from valkyrie.store.leases import Leased

RAISED = """
import resource
from valkyrie.schedule.scheduler import HostRoom, trials_by_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
room = HostRoom.measure(1.0)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
print(soft, hard, room.trials == trials_by_files(soft), room.left().trials == room.trials)
"""


def test_the_soft_limit_on_open_files_is_raised_to_the_hard_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RAISED.format(hard=900)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["900", "900", "True", "True"]


@pytest.mark.parametrize(("limit", "trials"), [(64, 1), (1024, 51), (1 << 20, 65523)])
def test_trials_by_files(limit: int, trials: int) -> None:
    assert trials_by_files(limit) == trials


def test_running_trials_take_their_files() -> None:
    room = HostRoom(8.0, 1000.0, trials=2)
    leased = Leased(1, "r", "t", 0, "d", 1, 0, 1, 1.0, 100)
    room.take(leased)
    left = room.left()
    assert (left.cpus, left.memory_mb, left.trials, left.idle) == (7.0, 900.0, 1, False)
    room.give(leased)
    assert room.left().trials == 2 and room.left().idle
