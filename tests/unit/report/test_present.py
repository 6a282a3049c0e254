"""Rows as views: what is new beside the score."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from valkyrie.domain import Category, TrialState
from valkyrie.report.formats import score_rows
from valkyrie.report.presentation import run_links, run_view, score_view
from valkyrie.views import CostView, HookView

HOOK = HookView("slack", "ended:1", "done", None, 1, 0.0, 1.0)


def a_row(**changed: Any) -> Any:
    row: dict[str, Any] = {
        "id": "r", "benchmark": "b", "dataset": "default", "agent": "a", "model": None, "label": None,
        "provider": "local", "state": "FINISHED", "concurrency": 5, "created_at": 0.0, "started_at": 0.0,
        "finished_at": 60.0, "started_by": "ann", "error": None, "note": None, "arguments": {},
        "stop_reason": None, "worked_s": 0.0, "working_since": None, "exit_codes": None,
        "enforcement": {}, "version": 1, "priority": 3, "max_cost": None, "cost_sum": 0.0, "n_costed": 0,
        "job_id": None, "input_tokens": 0, "cached_tokens": 0, "output_tokens": 0,
        "fraction": True, "n_passed": 0, "n_partial": 0, "score_sum": 0.0, "score_graded": None,
        "final_score": None, "score_confirmed": None, "final_evaluation": None, "n_confirmed": 0,
        "confirmed_sum": 0.0, "n_verified": 0, "n_open": 0,
        **{f"n_{state.value.lower()}": 0 for state in TrialState},
        **{f"e_{category.value}": 0 for category in Category},
    }  # fmt: skip
    return SimpleNamespace(**{**row, **changed})


@pytest.mark.parametrize(
    ("changed", "cost"),
    [
        ({}, None),
        ({"n_costed": 2, "cost_sum": 1.5}, CostView(1.5, 2, None)),
        ({"max_cost": 10.0}, CostView(0.0, 0, 10.0)),
    ],
)
def test_cost_is_said_when_reported_or_limited(changed: dict[str, Any], cost: CostView | None) -> None:
    assert run_view(a_row(**changed), executor="none", folder="").cost == cost


def test_what_goes_on_with_a_run_nobody_works_on() -> None:
    row = a_row(state="IN_PROGRESS")
    assert "valk run resume" in (run_view(row, executor="none", folder="/here").note or "")
    of_a_tracker = run_view(row, executor="none", folder="").note or ""
    assert "valkyrie executor" in of_a_tracker and "resume" not in of_a_tracker
    assert run_view(row, executor="alive", folder="").note is None


def test_whose_it_is_where_it_is_and_who_was_told() -> None:
    view = run_view(
        a_row(priority=0), executor="none", folder="", org="acme", hooks=[HOOK], links={"logs": "g/r"}
    )
    assert (view.org, view.priority, view.started_by) == ("acme", 0, "ann")
    assert view.hooks == [HOOK] and view.links == {"logs": "g/r"}


@pytest.mark.parametrize(
    ("place", "links"),
    [
        (None, {}),
        ({}, {}),
        (
            {"artifacts": {"kind": "s3", "bucket": "bkt"}, "logs": {"group": "benchmarks"}},
            {"artifacts": "s3://bkt/benchmarks/r/", "logs": "benchmarks/r"},
        ),
        (
            {
                "artifacts": {"kind": "s3", "bucket": "bkt", "prefix": "orgs/7", "page": "https://s3"},
                "logs": {"group": "benchmarks", "page": "https://cw"},
            },
            {
                "artifacts": "s3://bkt/orgs/7/benchmarks/r/",
                "logs": "benchmarks/r",
                "artifacts_url": "https://s3",
                "logs_url": "https://cw",
            },
        ),
        (
            {"artifacts": {"kind": "disk", "folder": "/srv/kept"}, "logs": {"folder": "/srv/kept/logs"}},
            {"artifacts": "/srv/kept/benchmarks/r/", "logs": "/srv/kept/logs/r"},
        ),
    ],
)
def test_links_are_addresses(place: dict[str, Any] | None, links: dict[str, str]) -> None:
    assert run_links(place, "r") == links


def scored(scores: dict[str, list[float | None]], **changed: Any) -> Any:
    return score_view(a_row(**changed), scores)


def test_final_score_has_an_interval_of_its_own_where_trials_are_ungraded() -> None:
    counts = {"n_finished": 8, "n_passed": 8, "score_sum": 8.0, "n_error": 4, "e_infrastructure": 4}
    found = score_view(a_row(**counts, final_score=8 / 12, score_graded=1.0), None)
    assert found.interval and found.interval[1] == 1.0
    assert found.final_interval and found.final_interval[0] < 8 / 12 < found.final_interval[1] < 1.0
    said = dict(score_rows(found, ended=True))
    assert "66.7 % (95 % interval " in said["final_score"]
    several = {"arguments": {"trials": 2}, **counts}
    scores: dict[str, list[float | None]] = {f"t{number}": [1.0, 1.0] for number in range(4)}
    scores |= {"u": [None, None], "v": [None, None]}
    again = scored(scores, final_score=4 / 6, score_graded=1.0, **several)
    assert again.final_interval and again.final_interval[0] < 4 / 6 < again.final_interval[1]


def test_a_mean_on_a_scale_of_its_own_has_an_interval_and_what_else_is_computed_has_none() -> None:
    counts = {"n_finished": 3, "score_sum": 9.0, "fraction": False}
    scores: dict[str, list[float | None]] = {"a": [2.0], "b": [3.0], "c": [4.0]}
    found = scored(scores, final_score=3.0, score_graded=3.0, **counts)
    assert found.final_interval and found.final_interval[0] < 3.0 < found.final_interval[1]
    assert "interval" not in dict(score_rows(found, ended=True))
    other = scored(scores, final_score=17.0, score_graded=17.0, **counts)
    assert other.final_interval is None and "interval" in dict(score_rows(other, ended=True))
