"""Durations with their units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.errors import UsageError
from valkyrie.specs.model import MOST_S, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("90s", 90),
        ("5m", 300),
        ("1.5h", 5400),
        (" 2 m ", 120),
        (".5s", 0.5),
        ("0s", 0),
        ("2m40s", 160),
        ("17m30s", 1050),
        ("1h2m3s4ms", 3723.004),
        ("1m30.5s", 90.5),
    ],
)
def test_a_number_and_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "600",
        "-5s",
        "5 minutes",
        "30s1m",
        "1m30",
        "1m 30s",
        "1.5m30s",
        "5M",
        "s",
        "1e3s",
        "٣s",
        "9e99h",
        "400d",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)


def test_a_bare_number_is_shown_with_a_unit() -> None:
    with pytest.raises(UsageError, match="`600s`"):
        parse_duration("600")


def test_longer_than_a_year_is_a_slip() -> None:
    with pytest.raises(UsageError, match="a year"):
        parse_duration("999999999h")


@given(st.integers(1, int(MOST_S * 1000)))
def test_what_is_written_is_read_back(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-5)
