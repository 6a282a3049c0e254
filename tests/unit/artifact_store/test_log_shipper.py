"""Logs on their way, while nobody takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.artifact_store.logs import BACKOFF, ShippedLogs, _Followed
from valkyrie.artifact_store.protocol import LogName
from valkyrie.errors import InfrastructureError


class Away(ShippedLogs):
    """Where logs are kept cannot be reached."""

    def _begin(self, name: LogName) -> int:
        raise InfrastructureError("away", cause="logs")

    def _ship(self, name: LogName, data: bytes) -> int:
        raise AssertionError("never begun")

    def _finish(self, name: LogName) -> None:
        raise AssertionError("never begun")


@pytest.fixture
def followed(tmp_path: Path) -> _Followed:
    file = tmp_path / "log"
    file.write_text("a line\n")
    return _Followed(LogName("run", "task", 0, 1, 1.0), file)


def test_pauses_grow_to_half_a_minute_however_long_it_lasts(followed: _Followed) -> None:
    logs = Away()
    pauses = [logs._turn([followed], closing=False) for _ in range(2000)]
    assert 0.25 <= pauses[0] <= 0.5 and 0.5 <= pauses[1] <= 1
    assert all(15 <= pause <= BACKOFF.longest_s for pause in pauses[7:])
    assert logs.problem == "away"


def test_pauses_are_short_at_the_end(followed: _Followed) -> None:
    logs = Away()
    assert {logs._turn([followed], closing=True) for _ in range(20)} == {0.5}
