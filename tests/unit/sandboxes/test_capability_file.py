"""What was found out about a machine is kept for its boot and user, and plans start nothing to know it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sandboxes import cgroups, open_provider
from sandboxes.local import provider
from sandboxes.types import Capabilities

FOUND = Capabilities(
    provider="local",
    isolation="walls",
    networks=frozenset({"none", "public"}),
    enforcement={"memory": "cgroup v2"},
    missing=(("gpus", "buy some"),),
    carries_work=True,
)


def test_what_was_found_is_read_back(tmp_path: Path) -> None:
    cgroups.write_capabilities(tmp_path, FOUND)
    assert cgroups.read_capabilities(tmp_path) == FOUND
    assert [path.name for path in tmp_path.iterdir()] == ["capabilities.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"found_by": ["another boot", 0]}', "no json"])
def test_what_others_or_nobody_found_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "capabilities.json").write_text(text)
    assert cgroups.read_capabilities(tmp_path) is None


def test_a_finding_of_another_boot_does_not_count(tmp_path: Path) -> None:
    cgroups.write_capabilities(tmp_path, FOUND)
    kept = json.loads((tmp_path / "capabilities.json").read_text())
    kept["found_by"][0] = "another boot"
    (tmp_path / "capabilities.json").write_text(json.dumps(kept))
    assert cgroups.read_capabilities(tmp_path) is None


def test_nothing_is_written_where_there_is_no_folder(tmp_path: Path) -> None:
    cgroups.write_capabilities(tmp_path / "away", FOUND)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["local", "process"])
def test_expecting_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(provider, "_found", [])
    expected = open_provider(name, tmp_path).expected_capabilities()
    assert expected.provider == name
    assert "not tried yet" in expected.enforcement["memory"]


@pytest.mark.parametrize("name", ["local", "process"])
def test_what_was_found_is_what_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found = open_provider(name, tmp_path).capabilities()
    monkeypatch.setattr(provider, "_found", [])
    assert open_provider(name, tmp_path).expected_capabilities() == found
