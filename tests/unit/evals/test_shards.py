"""Shards of an experiment: every trial once, contradictions refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from valkyrie.errors import UserError
from valkyrie.evals.experiments import experiment_result
from valkyrie.evals.records import dump_line, to_line
from valkyrie.evals.results import TrialResult
from valkyrie.evals.shards import merge, told

Write = Callable[..., Path]


def trial(stimulus: str, *, passed: bool = True, variant: str = "plain", **more: Any) -> TrialResult:
    about = {"name": "x", "variant": variant, "baseline": variant == "plain", "configHash": variant}
    about |= more.pop("about", {})
    said = {
        "eval_name": "e",
        "index": 0,
        "model": "m",
        "run_id": None,
        "graded_at": "2025-01-01T00:00:00Z",
        **more,
    }
    return TrialResult(
        stimulus=stimulus,
        variant=variant,
        passed=passed,
        score=float(passed),
        experiment=about,
        **said,
    )


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, *trials: TrialResult) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        text = "".join(f"{dump_line(to_line(one))}\n" for one in trials)
        (folder / "results.jsonl").write_text(text)
        return folder

    return write


def test_shards_become_one_eval_per_variant(write: Write) -> None:
    one = write("1", trial("a", run_id="r1", eval_file="/one/e.yaml"), trial("a", index=1, run_id="r1"))
    two = write("2", trial("b", run_id="r2", eval_file="/two/e.yaml"), trial("a", variant="new"))
    merged = merge([one, two])
    found = merged.invocation.evals
    assert [(one.variant, [len(s.trials) for s in one.stimuli]) for one in found] == [
        ("plain", [2, 1]),
        ("new", [1]),
    ]
    assert found[0].run_id is None
    assert told(merged) == "4 trials from 2 files"
    result = experiment_result(merged.invocation)
    assert (result.name, [one.name for one in result.variants if one.is_baseline]) == ("x", ["plain"])


def test_the_same_trial_twice_counts_once(write: Write) -> None:
    merged = merge([write("1", trial("a")), write("2", trial("a"), trial("b"))])
    assert (merged.repeated, told(merged)) == (1, "2 trials from 2 files, 1 of them twice")


def test_contradictions_are_refused_unless_the_newest_is_preferred(write: Write) -> None:
    old = write("1", trial("a", passed=False))
    new = write("2", trial("a", graded_at="2025-01-02T00:00:00Z"))
    with pytest.raises(UserError, match=r"1 trial has different results .*\n  plain / e \[m\] / a / trial 1"):
        merge([old, new])
    for folders in ([old, new], [new, old]):
        merged = merge(folders, prefer_newest=True)
        [found] = merged.invocation.evals
        assert (merged.replaced, found.trials[0].passed) == (1, True)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"name": "y"}, "different experiments: 'x'"),
        ({"configHash": "changed"}, "plain / e ran with different configurations"),
    ],
)
def test_what_is_not_the_same_is_not_mixed(write: Write, other: dict[str, str], why: str) -> None:
    with pytest.raises(UserError, match=why):
        merge([write("1", trial("a")), write("2", trial("b", about=other))], prefer_newest=True)


def test_nothing_to_merge(write: Write) -> None:
    with pytest.raises(UserError, match="nothing to merge"):
        merge([write("1")])
