"""docs/design/one-trial.md names functions; they must be there."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "one-trial.md"
NAME = re.compile(r"`((?:valkyrie|sandboxes)[\w.]*):([\w.]+)`")
NAMED = NAME.findall(PAGE.read_text())


def test_the_walk_names_a_function_at_every_step() -> None:
    steps = re.findall(r"^\d+\. .*(?:\n(?!\d+\. |\n).*)*", PAGE.read_text(), re.MULTILINE)
    assert len(steps) >= 10
    assert [step for step in steps if not NAME.search(step)] == []


@pytest.mark.parametrize(("module", "name"), NAMED, ids=[f"{module}:{name}" for module, name in NAMED])
def test_the_named_function_exists(module: str, name: str) -> None:
    found: object = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


@pytest.mark.parametrize(("module", "name"), NAMED, ids=[f"{module}:{name}" for module, name in NAMED])
def test_the_named_function_is_in_the_file_that_is_named(module: str, name: str) -> None:
    home = import_module(module)
    found: object = home
    for part in name.split("."):
        found = getattr(found, part)
    found = getattr(found, "callback", found)  # of a command
    assert callable(found) and inspect.getsourcefile(inspect.unwrap(found)) == inspect.getsourcefile(home)
