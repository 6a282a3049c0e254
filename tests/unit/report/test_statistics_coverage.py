"""What is promised about intervals and sentences, by simulation with fixed seeds, and what the docs say."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load(path: str) -> ModuleType:
    """Import a file that is no part of the package; worker processes find it by its name, too."""
    name = Path(path).with_suffix("").as_posix().replace("/", ".")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec and spec.loader
    module = sys.modules.setdefault(name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


coverage = load("benchmarks/coverage.py")
tables = load("scripts/generate_coverage_tables.py")


def simulated(most: int, **wanted: Any) -> list[Mapping[str, Any]]:
    found = [
        cell for cell in coverage.cells() if all(getattr(cell, key) in value for key, value in wanted.items())
    ]
    assert found
    return [cell.simulate(coverage.repetitions_of(cell, most)) for cell in found]


def test_scores_hold_near_the_ends_and_in_the_middle() -> None:
    rows = simulated(
        60, what=("score",), tasks=(5, 30), trials=(1, 3), setting=("middle", "ceiling", "floor")
    )
    assert coverage.problems(rows) == []


def test_a_few_comparisons_hold() -> None:
    rows = simulated(60, what=("pair",), tasks=(12, 30), trials=(1,), setting=("middle", "beta(½, ½)"))
    rows += simulated(60, what=("failing",), tasks=(12,), trials=(1,))
    assert coverage.problems(rows) == []


def test_a_missed_bar_is_named() -> None:
    head = {"what": "pair", "setting": "middle", "tasks": 30, "trials": 1, "repetitions": 400}
    assert coverage.problems([{**head, "coverage": 0.93, 'false "beats"': 0.05}]) == []
    found = coverage.problems(
        [{**head, "coverage": 0.85, 'false "beats"': 0.1, "power": 0.5, "power before": 0.6}]
    )
    assert len(found) == 3 and found[0] == "pair, middle, 30 tasks × 1: coverage is 0.850, the bar 0.93"


def test_the_kept_numbers_are_of_every_cell_and_clear_every_bar() -> None:
    rows = json.loads(coverage.KEPT.read_text())
    heads = [(row["what"], row["setting"], row["tasks"], row["trials"]) for row in rows]
    assert heads == [(cell.what, cell.setting, cell.tasks, cell.trials) for cell in coverage.cells()]
    assert min(row["repetitions"] for row in rows) >= 50
    assert coverage.problems(rows) == []


def test_the_docs_show_the_kept_numbers() -> None:
    page = tables.PAGE.read_text()
    assert page == tables.render_page(page, json.loads(coverage.KEPT.read_text()))
    shown = page.partition(tables.BEGIN)[2].partition(tables.END)[0]
    assert shown.count("| --- |") == 7 and "| middle × 1 |" in shown and "| 10 families" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("what", ["score", "repeats", "pair", "failing", "families"])
def test_every_cell_in_small(what: str) -> None:
    assert coverage.problems(simulated(40, what=(what,)), noise=4) == []
