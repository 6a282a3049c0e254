"""What tests need of the machine, and why they are skipped without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxes.local.provider import LocalProvider


def need_local_sandboxes(folder: Path, *, network: str = "public") -> None:
    """Skip where no local sandbox with that network can be made; `folder` is for trying."""
    able = LocalProvider(folder).capabilities()
    if able.problem or network not in able.networks:
        ways = [way for what, way in able.missing if "network" in what]
        pytest.skip(f"no local sandboxes with network {network!r} here: {able.problem or '; '.join(ways)}")
