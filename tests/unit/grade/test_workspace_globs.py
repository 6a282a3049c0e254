"""Globs over a hostile workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from valkyrie.errors import UsageError
from valkyrie.specs import globs
from valkyrie.specs.globs import TooManyFilesError, WorkspaceGlob


def found(root: Path, pattern: str) -> list[str]:
    return sorted(str(path.relative_to(root.resolve())) for path in WorkspaceGlob(pattern).find(root))


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.txt", ["a.txt"]),
        ("*", [".env", "a.txt", "b", "x"]),
        ("**", [".env", "a.txt", "b", "b/.c", "b/.c/d.txt", "b/d.txt", "x", "x/y", "x/y/d.txt"]),
        ("**/d.txt", ["b/.c/d.txt", "b/d.txt", "x/y/d.txt"]),
        ("b/**/d.txt", ["b/.c/d.txt", "b/d.txt"]),
        ("{a,e}.txt", ["a.txt"]),
        ("{b,x/{y,z}}/d.txt", ["b/d.txt", "x/y/d.txt"]),
        ("[!a-w]/?/*.txt", ["x/y/d.txt"]),
        ("*/", ["b", "x"]),
        ("{a.txt,*.txt}", ["a.txt"]),
        ("{a.txt}", []),
        ("", []),
        ("..", []),
        ("b/../a.txt", []),
        ("/a.txt", []),
        ("a.txt\0", []),
    ],
)
def test_finds(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    make(tmp_path, "a.txt", ".env", "b/d.txt", "b/.c/d.txt", "x/y/d.txt")
    assert found(tmp_path, pattern) == expected


def test_links_are_followed_inside_only(tmp_path: Path) -> None:
    root = make(tmp_path / "root", "real/a.txt")
    make(tmp_path / "away", "b.txt")
    (root / "in").symlink_to("real")
    (root / "out").symlink_to(tmp_path / "away")
    (root / "loop").symlink_to(".")
    (root / "up").symlink_to("..")
    assert found(root, "in/a.txt") == ["in/a.txt"]
    assert found(root, "*/a.txt") == ["in/a.txt", "real/a.txt"]
    assert found(root, "out/b.txt") == []
    assert found(root, "up/away/b.txt") == []
    assert found(root, "**/a.txt") == ["real/a.txt"]
    assert found(root, "*") == ["in", "loop", "real"]


def test_looking_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(globs, "MAX_ENTRIES", 10)
    make(tmp_path, *(f"f{number}" for number in range(11)))
    with pytest.raises(TooManyFilesError):
        found(tmp_path, "**/nothing")
    assert found(tmp_path, "f3") == ["f3"]


def test_deep_folders_end(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(230):
        deep = deep / "d"
        deep.mkdir()
    assert len(found(tmp_path, "**")) <= 230


def test_too_many_braces_are_refused() -> None:
    with pytest.raises(UsageError):
        WorkspaceGlob("{a,b}" * 12)


NAMES = st.text(alphabet="ab.*?[]{},!-é ", min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..")
)


@settings(max_examples=60)
@given(name=NAMES)
def test_a_name_is_found_by_what_stands_for_it(tmp_path: Path, name: str) -> None:
    root = tmp_path / os.urandom(8).hex()
    make(root, name)
    assert found(root, "*") == [name]
    assert found(root, "?" * len(name)) == [name]
    if not set(name) & set("*?[]{},!\\"):
        assert found(root, name) == [name]


@settings(max_examples=60)
@given(pattern=st.text(alphabet="ab.*?[]{},!-/\\^()|@+", max_size=10))
def test_no_pattern_leads_out_or_breaks(tmp_path: Path, pattern: str) -> None:
    make(tmp_path / "root", "a", "b/a")
    make(tmp_path / "b", "secret")
    for path in WorkspaceGlob(pattern).find(tmp_path / "root"):
        assert path.is_relative_to((tmp_path / "root").resolve())
