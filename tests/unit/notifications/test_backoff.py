"""How long a message waits before it is sent again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandboxes.retry import Backoff
from valkyrie.notifications.outbox import BACKOFF, RESULTS_BACKOFF


@pytest.mark.parametrize(
    ("backoff", "longest"), [(BACKOFF, [1, 4, 16, 64, 120]), (RESULTS_BACKOFF, [5, 20, 80, 120, 120])]
)
def test_pauses(backoff: Backoff, longest: list[float]) -> None:
    for drawn, part in ((0.0, 0.5), (1.0, 1.0)):
        found = [replace(backoff, draw=lambda drawn=drawn: drawn).delay(number) for number in range(1, 6)]
        assert found == [part * seconds for seconds in longest]


def test_a_receiver_gets_the_time_it_asks_for_up_to_five_minutes() -> None:
    assert 60 <= BACKOFF.delay(1, 60.0) <= 61
    assert BACKOFF.delay(1, 3600.0) == 300
