"""Globs, extended ones too."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.errors import UsageError
from valkyrie.specs.globs import Glob, expand_braces


@pytest.mark.parametrize(
    ("pattern", "fits", "not_"),
    [
        ("*.yaml", ["a.yaml"], ["a.yml", "x/a.yaml", ".a.yaml"]),
        ("?x", ["ax"], ["x", "aax"]),
        ("[a-c]1", ["b1"], ["d1", "-1"]),
        ("[!a-c]1", ["d1"], ["b1"]),
        ("[]x]1", ["]1", "x1"], ["[1"]),
        ("**/eval.yaml", ["eval.yaml", "a/eval.yaml", "a/b/eval.yaml"], ["a/eval.yml", ".git/eval.yaml"]),
        ("a/**", ["a", "a/b", "a/b/c"], ["b/a"]),
        ("a/**/b", ["a/b", "a/x/y/b"], ["a/x", "b"]),
        ("{a,b{c,d}}.md", ["a.md", "bc.md", "bd.md"], ["b.md", "{a.md"]),
        ("{a}", ["{a}"], ["a"]),
        (r"\*", ["*"], ["a"]),
        ("tests/*/!(agent.*)/eval.yaml", ["tests/p/skill/eval.yaml"], ["tests/p/agent.x/eval.yaml"]),
        ("!(a)", ["b", "ab", "aa"], ["a"]),
        ("!(a|b)", ["c", "ab"], ["a", "b"]),
        ("!(*.yml)", ["a.yaml"], ["a.yml"]),
        ("x!(a)y", ["xy", "xby", "xaay"], ["xay"]),
        ("!(a)*", ["b", "ab", "a"], []),
        ("@(a|b)c", ["ac", "bc"], ["c", "abc"]),
        ("?(a|b)c", ["ac", "c"], ["abc"]),
        ("+(ab)c", ["abc", "ababc"], ["c"]),
        ("*(ab)c", ["c", "ababc"], ["ac"]),
        ("!(a", ["!(a"], ["b"]),
        (".github/*", [".github/x"], ["github/x", ".github/.x"]),
    ],
)
def test_what_fits(pattern: str, fits: list[str], not_: list[str]) -> None:
    glob = Glob(pattern)
    assert [path for path in fits if not glob.matches(path)] == []
    assert [path for path in not_ if glob.matches(path)] == []


def test_names_with_a_dot_on_request() -> None:
    assert Glob("**/*", dotfiles=True).matches(".a/.b")


def test_a_pattern_made_to_take_forever_does_not() -> None:
    assert not Glob("*(*(*(a)b)c)*(+(a|aa)|*a)d").matches("a" * 60)
    assert not Glob("*a" * 30 + "b").matches("a" * 200)


def test_finding_files(tmp_path: Path) -> None:
    names = [
        "e/a/eval.yaml",
        "e/b/eval.yaml",
        "e/agent.x/eval.yaml",
        "e/.hid/eval.yaml",
        "e/node_modules/m/eval.yaml",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "e" / "loop").symlink_to(tmp_path)

    def found(pattern: str, folder: Path = tmp_path) -> list[str]:
        return [str(path.resolve().relative_to(tmp_path)) for path in Glob(pattern).find(folder)]

    assert found("**/eval.yaml") == ["e/a/eval.yaml", "e/agent.x/eval.yaml", "e/b/eval.yaml"]
    assert found("e/!(agent.*|loop|node_modules)/eval.yaml") == ["e/a/eval.yaml", "e/b/eval.yaml"]
    assert found("../b/*.yaml", tmp_path / "e" / "a") == ["e/b/eval.yaml"]
    assert found("e/.hid/*.yaml") == ["e/.hid/eval.yaml"]
    assert found("e/none/*.yaml") == []


def test_braces_are_bounded() -> None:
    with pytest.raises(UsageError, match="more than"):
        expand_braces("{a,b}" * 20)
