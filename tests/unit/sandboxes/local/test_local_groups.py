"""Who starved a sandbox: by the files of its memory group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxes.local.groups import Groups


@pytest.mark.parametrize(
    ("files", "outside"),
    [
        ({"memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"}, False),
        ({"memory.events": "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n"}, False),
        ({"memory.events": "low 0\nhigh 0\nmax 9\noom 0\noom_kill 1\n"}, True),
        (
            {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", "memory.failcnt": "0"},
            False,
        ),
        (
            {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "memory.failcnt": "7"},
            False,
        ),
        (
            {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "memory.failcnt": "0"},
            True,
        ),
        ({}, False),
    ],
)
def test_lack_of_memory_is_outside_when_the_group_never_came_to_its_limit(
    tmp_path: Path, files: dict[str, str], outside: bool
) -> None:
    for name in ("pids", "memory"):
        (tmp_path / name / "group").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "memory/group" / name).write_text(text)
    parents = {str(tmp_path / name): os.open(tmp_path / name, os.O_RDONLY) for name in ("pids", "memory")}
    try:
        groups = Groups(parents)
        names = [f"{tmp_path}/pids/group", f"{tmp_path}/memory/group"]
        assert groups.starved_from_outside(names) is outside
        assert not groups.starved_from_outside([f"{tmp_path}/pids/none"])
    finally:
        for fd in parents.values():
            os.close(fd)
