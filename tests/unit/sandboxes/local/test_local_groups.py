"""Who starved a sandbox: by the files of its memory group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxes.local.restrictions import CgroupFolders

OLD = {
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "memory.limit_in_bytes": "1600000\n",
    "memory.max_usage_in_bytes": "800000\n",
}


@pytest.mark.parametrize(
    ("files", "outside"),
    [
        ({"memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"}, False),
        ({"memory.events": "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n"}, False),
        ({"memory.events": "low 0\nhigh 0\nmax 9\noom 0\noom_kill 1\n"}, True),
        ({**OLD, "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"}, False),
        ({**OLD, "memory.max_usage_in_bytes": "1599999"}, False),
        ({**OLD, "memory.max_usage_in_bytes": "1550000"}, False),
        (OLD, True),
        ({name: text for name, text in OLD.items() if "max" not in name}, False),
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
        groups = CgroupFolders(parents)
        names = [f"{tmp_path}/pids/group", f"{tmp_path}/memory/group"]
        assert groups.starved_from_outside(names) is outside
        assert not groups.starved_from_outside([f"{tmp_path}/pids/none"])
    finally:
        for fd in parents.values():
            os.close(fd)


def test_limits_make_way_once_and_are_set_back(tmp_path: Path) -> None:
    files = {
        "memory.limit_in_bytes": "1600000",
        "memory.memsw.limit_in_bytes": "1700000",
        "memory.max": "max",
        "pids.max": "4099",
        "memory.max_usage_in_bytes": "1599999",
        "memory.oom_control": "oom_kill 3",
    }
    group = tmp_path / "group"
    group.mkdir()
    for name, text in files.items():
        (group / name).write_text(text)
    parent = os.open(tmp_path, os.O_RDONLY)
    try:
        groups = CgroupFolders({str(tmp_path): parent})
        for _ in range(2):
            groups.make_way([str(group), f"{tmp_path}/none"])
            assert (group / "memory.limit_in_bytes").read_text() == "3200000"
            assert (group / "memory.memsw.limit_in_bytes").read_text() == "3400000"
            assert (group / "pids.max").read_text()[0] == "0"
            assert not groups.starved_from_outside([str(group)]), "it was full before its limit was changed"
        for _ in range(2):
            groups.restore([str(group), f"{tmp_path}/none"])
            assert {name: (group / name).read_text() for name in files} == files
    finally:
        os.close(parent)
