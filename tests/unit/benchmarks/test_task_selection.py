from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.benchmarks.protocol import parse_ids, parse_ids_file, parse_slice, select
from valkyrie.errors import UsageError

IDS = [f"task-{number}" for number in range(10)]
bounds = st.none() | st.integers(-15, 15)
steps = st.none() | st.integers(-4, 4).filter(bool)


@given(bounds, bounds, steps)
def test_slices_mean_what_they_mean_in_python(start: int | None, stop: int | None, step: int | None) -> None:
    text = ":".join("" if part is None else str(part) for part in (start, stop, step))
    expected = IDS[start:stop:step]
    if expected:
        assert select(IDS, slice_text=text) == expected
    else:
        with pytest.raises(UsageError, match="selects none of the 10 tasks"):
            select(IDS, slice_text=text)


@given(st.text(max_size=8))
def test_any_other_text_is_a_usage_error_or_a_slice(text: str) -> None:
    try:
        assert isinstance(parse_slice(text), slice)
    except UsageError as error:
        assert "start:stop:step" in str(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", slice(5, None)),
        (":3", slice(None, 3)),
        ("1:2", slice(1, 2)),
        ("::2", slice(None, None, 2)),
        (":", slice(None)),
    ],
)
def test_one_to_three_parts(text: str, expected: slice) -> None:
    assert parse_slice(text) == expected


@pytest.mark.parametrize("text", ["", " ", "a", "1:b", "1:2:3:4", "::0", "1.5", "1-3", "1,3"])
def test_nonsense(text: str) -> None:
    with pytest.raises(UsageError, match="for example --slice :10"):
        parse_slice(text)


@given(st.lists(st.sampled_from(IDS), min_size=1))
def test_ids_keep_their_order_and_lose_duplicates(asked: list[str]) -> None:
    chosen = select(IDS, task_ids=asked)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) == set(asked)
    assert sorted(chosen, key=asked.index) == chosen


@given(st.lists(st.sampled_from(IDS), min_size=1, unique=True), st.integers(1, 12))
def test_a_slice_beside_ids_is_taken_of_them(asked: list[str], count: int) -> None:
    assert select(IDS, task_ids=asked, slice_text=f"0:{count}") == asked[:count]


def test_all_without_a_choice() -> None:
    assert select(IDS) == IDS


def test_unknown_ids_are_listed_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"unknown task id 'tusk-3'. Did you mean 'task-3'"):
        select(IDS, task_ids=["task-1", "tusk-3"])
    with pytest.raises(UsageError, match=r"unknown task ids 'tusk-3', 'zzz'\. Did you mean 'task-3'\?"):
        select(IDS, task_ids=["tusk-3", "zzz"])
    with pytest.raises(UsageError, match=r"'e'.* and 2 more") as caught:
        select(IDS, task_ids=list("abcdefg"))
    assert "'f'" not in str(caught.value)


@pytest.mark.parametrize(
    ("available", "options", "message"),
    [
        (IDS, {"task_ids": ["task-1"], "slice_text": "1:"}, "none of the 1 tasks"),
        (IDS, {"task_ids": []}, "no task ids"),
        ([], {}, "no tasks"),
        ([], {"slice_text": ":2"}, "no tasks"),
    ],
)
def test_refused(available: list[str], options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select(available, **options)  # type: ignore[arg-type]


def test_lists_of_ids() -> None:
    assert parse_ids(" a, b,,c ,") == ["a", "b", "c"]
    assert parse_ids_file("\ufeffa\r\n\n# note\n  b/c  \n") == ["a", "b/c"]
