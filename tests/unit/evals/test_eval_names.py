"""Names as folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.evals.result_folder import LONGEST, folder_name, folder_names


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("basic-test-generation", "basic-test-generation"),
        ("My Eval (2) [x]", "My Eval (2) [x]"),
        ("openai/gpt-5.5", "openai-gpt-5.5"),
        ("../../etc/passwd", "-..-etc-passwd"),
        ("..", "unnamed"),
        (".hidden", "hidden"),
        ("", "unnamed"),
        ("a\x00b\nc\x1b[2Jd", "a-b-c-[2Jd"),
        ("größe-日本", "größe-日本"),
        ("trailing. ", "trailing"),
        ("a:b*c?d|e", "a-b-c-d-e"),
        ("con", "con_"),
        ("/", "unnamed"),
    ],
)
def test_names_stay_readable(name: str, folder: str) -> None:
    assert folder_name(name) == folder


def test_names_that_would_meet_are_told_apart_in_any_order() -> None:
    wanted: dict[tuple[str, ...], str] = {(name,): name for name in ("a/b", "a-b", "A-B", "other", "a:b")}
    found = folder_names(wanted)
    assert found == folder_names(dict(reversed(wanted.items())))
    assert found["other",] == "other"
    assert len({name.casefold() for name in found.values()}) == 5
    assert all(found[key].lower().startswith("a-b-") for key in found if key != ("other",))


def test_a_name_that_looks_like_a_digest_is_not_taken() -> None:
    first = folder_names({("a/b",): "a/b", ("a-b",): "a-b"})["a-b",]
    names = ("a/b", "a-b", first)
    assert len(set(folder_names({(name,): name for name in names}).values())) == 3


@given(st.sets(st.text(max_size=300), max_size=8))
def test_any_names_become_distinct_single_parts_of_a_path(names: set[str]) -> None:
    found = folder_names({(name,): name for name in names})
    assert len({name.casefold() for name in found.values()}) == len(names)
    for name in found.values():
        assert name not in ("", ".", "..") and not name.startswith(".") and "/" not in name
        assert len(name.encode()) <= LONGEST and name.isprintable()
        assert Path("a", name).name == name


def test_a_file_system_takes_them(tmp_path: Path) -> None:
    names = ["x" * 500, "é" * 300, "a\tb", "\ud800", "nul.txt", "-rf", "~"]
    for name in folder_names({(name,): name for name in names}).values():
        (tmp_path / name).mkdir()
    assert len(os.listdir(tmp_path)) == len(names)
