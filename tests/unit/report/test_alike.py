"""Which error messages say the same."""

from __future__ import annotations

import random
import string
from types import SimpleNamespace
from typing import Any

import pytest

from valkyrie.report.presentation import MOST_COMPARISONS, alike, group_errors, shape


def failed(task_id: str, message: str | None, cause: str = "sandbox_failed", **changed: Any) -> Any:
    row = {"task_id": task_id, "k": 0, "state": "ERROR", "category": "infrastructure", "cause": cause}
    return SimpleNamespace(**{**row, "message": message, **changed})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Sandbox sbx-4f9a2c of a could not start", "Sandbox sbx-77aa01 of b could not start"),
        ("no answer after 12.5 s\n  from /var/lib/x", "no answer after 3 s from /srv/y/z"),
        (
            "container 3f2a9c11de04 of 0f1e2d3c-0000-4000-8000-aabbccddeeff gone",
            "container aaaabbbbcccc of 99999999-1111-4111-8111-000000000000 gone",
        ),
        ("task a: a", "task b: b"),
    ],
)
def test_ids_numbers_and_paths_do_not_tell_messages_apart(one: str, other: str) -> None:
    assert shape(one, "a") == shape(other, "b")


def test_a_task_id_is_not_looked_for_inside_words() -> None:
    assert shape("a task failed at start", "a") == "· task failed at start"
    assert shape("nothing", "") == "nothing"


def test_messages_that_nearly_say_the_same_stand_together() -> None:
    said = ["connection timed out", "judge crashed", "connection timed out after · s", "connection timed out"]
    assert alike(said) == [0, 1, 0, 0]


def test_ten_thousand_different_messages_are_grouped_soon() -> None:
    chance = random.Random(1)
    said = ["".join(chance.choices(string.ascii_letters, k=150)) for _ in range(10_000)]
    assert len(set(alike(said))) == len(said)
    told = [
        f"{number} " + "the judge crashed while it read the answer: " + one for number, one in enumerate(said)
    ]
    groups = group_errors(failed(f"t{n}", one) for n, one in enumerate(told))
    assert sum(group.count for group in groups) == len(said) and len(groups) < MOST_COMPARISONS


def test_groups_keep_category_and_cause_apart_and_open_ones_come_first() -> None:
    groups = group_errors(
        [
            failed("a", "no room on host 1"),
            failed("b", "no room on host 2", state="PENDING"),
            failed("c", "no room on host 3", cause="sandbox_timeout"),
            failed("d", None, category="user", cause="missing_secret"),
            failed("e", "no room on host 4"),
        ]
    )
    assert [(group.cause, group.count, group.retrying, group.disposition) for group in groups] == [
        ("sandbox_failed", 2, False, "retryable"),
        ("sandbox_timeout", 1, False, "retryable"),
        ("missing_secret", 1, False, "fix first"),
        ("sandbox_failed", 1, True, "retryable"),
    ]
    assert groups[0].message == "no room on host 1" and groups[0].task_ids == ["a", "e"]


def test_what_failed_alike_in_two_passes_is_chronic_and_stands_apart() -> None:
    rows = [failed(f"t{number}", "no room") for number in range(7)]
    groups = group_errors(rows, {("t0", 0): 3, ("t1", 0): 2, ("t2", 0): 1})
    assert [(group.disposition, group.passes, group.count) for group in groups] == [
        ("retryable", 1, 5),
        ("chronic", 3, 2),
    ]
    assert groups[1].task_ids == ["t0", "t1"] and len(groups[0].task_ids) == 5


def test_what_must_be_changed_first_stays_so_however_often_it_failed() -> None:
    rows = [failed("a", "pip failed", category="agent", cause="agent_install_failed")]
    [group] = group_errors(rows, {("a", 0): 2})
    assert (group.disposition, group.passes) == ("fix first", 2)
