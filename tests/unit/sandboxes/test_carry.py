"""Parts of carrying work that need no sandbox."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes import work
from sandboxes.protocol import CarryRules
from sandboxes.work import Links, _Choice
from sandboxes.work_archive import Ids

NAMES = ("a", "b", ".c", "home", "root", "usr", "local", "tests", "app")


def some_path(chance: random.Random, most: int) -> str:
    return "/" + "/".join(chance.choice(NAMES) for _ in range(chance.randint(1, most)))


@pytest.mark.parametrize("seed", range(40))
def test_the_shortcut_says_what_the_rules_say(seed: int) -> None:
    chance = random.Random(seed)
    some = {
        field: tuple(some_path(chance, 3) for _ in range(chance.randint(0, 4)))
        for field in ("carried", "left", "forbidden", "homes")
    }
    homes = tuple(f"{home}/*" if chance.random() < 0.5 else home for home in some["homes"])
    rules = CarryRules(("/", *some["carried"]), some["left"], homes, some["forbidden"])
    choice = _Choice(rules)
    for _ in range(500):
        path = some_path(chance, 6)
        assert choice.carries(path) == rules.carries(path), (path, rules)


def test_ids_inside_and_outside() -> None:
    shifted, plain, alone = Ids(1_000_000), Ids(0), Ids(4242, alone=True)
    assert (shifted.inside(1_001_234), shifted.outside(1234)) == (1234, 1_001_234)
    assert (shifted.inside(0), shifted.inside(1_065_536), shifted.outside(70_000)) == (
        65534,
        65534,
        1_065_534,
    )
    assert (plain.inside(7), plain.outside(7)) == (7, 7)
    assert (alone.inside(4242), alone.inside(1), alone.outside(7)) == (0, 65534, 4242)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    for name in ("app/sub", "tests", "proc/self"):
        (tmp_path / name).mkdir(parents=True)
    for name, text in {
        "app/file": "sub/x",
        "app/abs": "/tests/x",
        "app/loop": "loop",
        "app/chain": "/app/abs",
        "app/up": "../../../../tests",
        "app/magic": "/proc/self/root/tests",
        "app/folder": "/app/sub",
    }.items():
        (tmp_path / name).symlink_to(text)
    fd = os.open(tmp_path, os.O_PATH)
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    ("at", "text", "end"),
    [
        ("/app/new", "file", "/app/sub/x"),
        ("/app/new", "abs", "/tests/x"),
        ("/app/new", "chain", "/tests/x"),
        ("/app/new", "up/y", "/tests/y"),
        ("/app/new", "folder/../..", "/"),
        ("/app/new", "./none/../../tests", "/tests"),
        ("/app/new", "magic/x", "/proc/self/root/tests/x"),
        ("/app/new", "loop", None),
        ("/app/new", "/", "/"),
        ("/app/new", "../../..", "/"),
    ],
)
def test_links_are_followed_below_the_root(root: int, at: str, text: str, end: str | None) -> None:
    assert Links(root).end_of(at, text) == end


def test_a_way_that_is_too_long_is_forbidden(root: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = CarryRules(forbidden=("/tests",))
    assert Links(root).is_forbidden("/app/new", "sub/../" * 600 + "file", rules)
    assert not Links(root).is_forbidden("/app/new", "sub/../" * 100 + "file", rules)
    monkeypatch.setattr(work, "MOST_STEPS_IN_ALL", 10)
    some = Links(root)
    assert not some.is_forbidden("/app/new", "file", rules)
    assert some.is_forbidden("/app/new", "sub/../sub/../sub/../sub/../file", rules)
    assert some.is_forbidden("/app/new", "file", rules)


def test_the_folders_of_a_path_are_resolved_and_not_its_end(root: int) -> None:
    assert Links(root).real_path("/app/folder/abs") == "/app/sub/abs"
    assert Links(root).real_path("/app/abs") == "/app/abs"
    assert Links(root).real_path("/none/at/all") == "/none/at/all"
