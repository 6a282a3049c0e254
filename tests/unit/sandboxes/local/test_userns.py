"""What an ordinary user is told where bubblewrap cannot work. The kernels that do this are not at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxes.cgroups import CgroupSupport
from sandboxes.local import provider, root_filesystem, warden
from sandboxes.local.provider import Machine, _rlimits
from sandboxes.local.skeleton import hidden_files
from sandboxes.types import SandboxLimits


@pytest.fixture
def bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bubblewrap that says what the test wants and fails."""
    program = tmp_path / "bwrap"
    monkeypatch.setattr(warden, "BWRAP", str(program))
    return program


def fail_with(program: Path, message: str) -> None:
    program.write_text(
        f"#!/bin/sh\n[ \"$1\" = --version ] && echo bubblewrap 0.6.1 && exit\necho '{message}' >&2; exit 1\n"
    )
    program.chmod(0o755)


@pytest.mark.parametrize(
    "message",
    [
        "bwrap: setting up uid map: Permission denied",
        "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
    ],
)
def test_ubuntus_restriction_has_two_ways_out(bwrap: Path, tmp_path: Path, message: str) -> None:
    fail_with(bwrap, message)
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "apparmor_restrict_unprivileged_userns").write_text("1\n")
    (tmp_path / "kernel" / "unprivileged_userns_clone").write_text("1\n")
    said = provider.userns_problem(tmp_path)
    assert said is not None and message.removeprefix("bwrap: ") in said
    assert "sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser -r /etc/apparmor.d/bwrap" in said
    assert "userns," in said
    assert "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" in said
    assert "unprivileged_userns_clone" not in said


@pytest.mark.parametrize(
    ("switch", "way_out"),
    [
        ("kernel/unprivileged_userns_clone", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "sysctl -w user.max_user_namespaces="),
    ],
)
def test_other_switches_are_named(bwrap: Path, tmp_path: Path, switch: str, way_out: str) -> None:
    fail_with(bwrap, "bwrap: No permissions to create new namespace")
    (tmp_path / switch).parent.mkdir()
    (tmp_path / switch).write_text("0\n")
    assert way_out in (provider.userns_problem(tmp_path) or "")


def test_where_no_switch_is_set_it_may_be_a_container(bwrap: Path, tmp_path: Path) -> None:
    fail_with(bwrap, "bwrap: Cannot mount proc on /newroot/proc: Operation not permitted")
    said = provider.userns_problem(tmp_path) or ""
    assert "mount proc" in said and "--privileged" in said and "sysctl" not in said


def test_an_old_bubblewrap_is_told_from_a_closed_kernel(bwrap: Path, tmp_path: Path) -> None:
    fail_with(bwrap, "bwrap: Unknown option --disable-userns")
    said = provider.userns_problem(tmp_path) or ""
    assert "bubblewrap 0.6.1 is too old" in said and "0.8" in said and "sysctl" not in said


def test_limits_without_cgroups() -> None:
    limits = SandboxLimits(memory_mb=512, pids=64)
    apart = _rlimits(limits, 64, Machine(root_filesystem.ROOTLESS, CgroupSupport(), counts_apart=True))
    assert apart == {"data": 512 << 20, "nproc": 66}  # and two of ours
    together = _rlimits(limits, 64, Machine(root_filesystem.ROOTLESS, CgroupSupport()))
    assert together["nproc"] > 64  # and whatever else the user runs
    both = CgroupSupport(memory="cgroup v2", pids="cgroup v2")
    assert _rlimits(limits, 64, Machine(root_filesystem.ROOTLESS, both)) == {}


def test_what_only_a_group_may_read_is_hidden(tmp_path: Path) -> None:
    for name, mode in (("open", 0o755), ("open/closed", 0o750), ("open/closed/below", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    for name, text, mode in (
        ("open/fine", "x", 0o644),
        ("open/of-a-group", "x", 0o640),
        ("open/with-a-password", "http://me:secret@host/", 0o644),
        ("open/closed/any", "x", 0o644),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    os.symlink("/etc/shadow", tmp_path / "open/link")
    hidden = {Path(path).name for path in hidden_files([str(tmp_path / "open")])}
    assert hidden == {"closed", "of-a-group", "with-a-password"}
