"""Limits of tasks that name none."""

from __future__ import annotations

import pytest

from sandboxes import protocol
from sandboxes.types import SandboxLimits


@pytest.mark.parametrize(
    ("host", "default"),
    [(256, 128), (1024, 512), (2048, 512), (8192, 1024), (16_384, 2048), (262_144, 2048)],
)
def test_the_default_memory_fits_the_host(host: int, default: int) -> None:
    assert protocol.default_memory_mb(host) == default


def test_the_disk_fits_into_the_memory_it_lies_in() -> None:
    assert protocol.disk_in_memory_mb(2048, 512) == 384
    assert protocol.disk_in_memory_mb(1024, 4096) == 1024
    assert protocol.disk_in_memory_mb(None, 1 << 20) == protocol.DEFAULT_DISK_MB


def test_a_task_that_names_nothing_is_limited_in_everything() -> None:
    found = protocol.with_defaults(SandboxLimits(), 16_384)
    assert (found.memory_mb, found.disk_mb, found.pids) == (2048, 1536, protocol.DEFAULT_PIDS)


def test_what_a_task_names_stays() -> None:
    found = protocol.with_defaults(SandboxLimits(memory_mb=512, disk_mb=100, pids=7, cpus=0.5), 16_384)
    assert found == SandboxLimits(memory_mb=512, disk_mb=100, pids=7, cpus=0.5)


def test_a_disk_that_was_asked_for_makes_the_memory_larger_as_far_as_the_host_has_it() -> None:
    found = protocol.with_defaults(SandboxLimits(disk_mb=6000), 16_384)
    assert (found.memory_mb, found.disk_mb) == (8000, 6000)
    small = protocol.with_defaults(SandboxLimits(disk_mb=6000), 4000)
    assert (small.memory_mb, small.disk_mb) == (3600, 2700)


def test_a_disk_of_its_own_leaves_the_memory_alone() -> None:
    found = protocol.with_defaults(SandboxLimits(disk_mb=6000), 16_384, disk_in_memory=False)
    assert (found.memory_mb, found.disk_mb) == (2048, 6000)
    assert protocol.with_defaults(SandboxLimits(), 16_384, disk_in_memory=False).disk_mb is None
