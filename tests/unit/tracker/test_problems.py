"""Refusals that list everything at once."""

from __future__ import annotations

from valkyrie.errors import MissingSecretError, UserError
from valkyrie.tracker.checks import Problem, refuse


def test_a_list_in_a_list_becomes_part_of_it() -> None:
    inner = refuse(["no folder ./a", "no secret KEY"])
    outer = refuse([Problem(inner), Problem(UserError("no such agent"))])
    assert str(outer) == (
        "3 things stand in the way:\n  1. no folder ./a\n  2. no secret KEY\n  3. no such agent"
    )


def test_the_only_list_is_told_once() -> None:
    inner = refuse(["no folder ./a", "no secret KEY"], {"KEY": "KEY"})
    again = refuse([Problem(inner), Problem(inner)], {"KEY": "KEY"})
    assert str(again).count("stand in the way") == 1 and str(again) == str(inner)
    assert isinstance(again, MissingSecretError) and again.missing == {"KEY": "KEY"}
