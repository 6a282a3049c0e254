"""Named benchmarks through the engine: their gold answers pass where no process of the agent ever ran."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.abilities import need_local_sandboxes
from tests.integration.test_code_benchmarks import issue as issue
from tests.integration.test_code_benchmarks import polyglot, pro, verified, with_pytest
from tests.issue_repository import Issue
from tests.named_benchmarks import Sample, converted
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, TrialFilter, TrialView

pytestmark = pytest.mark.slow

SHAPES: Sequence[tuple[str, str, str]] = (
    ("number: int", "return number + @N@", "assert candidate(1) == 1 + @N@"),
    ("text: str", "return text * 2 + '@N@'", "assert candidate('a') == 'aa@N@'"),
    ("values: List[int]", "return sorted(values)[-1] * @N@", "assert candidate([1, 3, 2]) == 3 * @N@"),
    ("value: float", "return math.floor(value) - @N@", "assert candidate(2.5) == 2 - @N@"),
)
"""Parameter, body and check of made-up functions; none is of the published data."""


def human_eval(count: int) -> list[dict[str, Any]]:
    """Records in the published shape."""
    rows = []
    for number in range(count):
        parameter, body, check = (part.replace("@N@", str(number)) for part in SHAPES[number % len(SHAPES)])
        name = f"function_{number}"
        head = f'import math\nfrom typing import List\n\n\ndef {name}({parameter}):\n    """Do it.\n'
        checks = f"def check(candidate):\n    {check}\n"
        rows.append(
            {
                "task_id": f"HumanEval/{number}",
                "prompt": f'{head}    >>> {name}\n    """\n',
                "entry_point": name,
                "canonical_solution": f"    {body}\n",
                "test": f"\n\nMETADATA = {{'author': 'nobody', 'dataset': 'test'}}\n\n\n{checks}",
            }
        )
    return rows


def trials_of(tracker: LocalTracker, agent: str, benchmark: Path, **more: Any) -> list[TrialView]:
    need_local_sandboxes(benchmark.parent / "trying", network="none")
    request = RunRequest(agent, str(benchmark), provider="local", concurrency=2, **more)
    run = tracker.wait(tracker.start(request).run.id, timeout=600)
    found, _ = tracker.trials(run.id, TrialFilter(limit=1000))
    return list(found)


def test_the_oracle_solves_164_of_164_of_humaneval(tracker: LocalTracker, tmp_path: Path) -> None:
    records = tmp_path / "HumanEval.jsonl"
    records.write_text("".join(json.dumps(row) + "\n" for row in human_eval(164)))
    converted(Sample("humaneval", records), tmp_path)
    trials = trials_of(tracker, "oracle", tmp_path / "humaneval")
    assert [(one.task_id, one.message) for one in trials if one.score != 1.0] == []
    assert (len(trials), {one.confirmed for one in trials}) == (164, {True})
    assert {(one.evidence or {}).get("mode") for one in trials} == {"fresh"}


@pytest.mark.parametrize("which", ["verified", "pro"])
def test_swe_bench_in_a_fresh_sandbox(
    which: str, issue: Issue, tracker: LocalTracker, tmp_path: Path
) -> None:
    if which == "verified":
        verified(issue, tmp_path)
    else:
        pro(issue, tmp_path)
    benchmark = tmp_path / f"swe-bench-{which}"
    for agent, score in (("oracle", 1.0), ("nop", 0.0)):
        (trial,) = trials_of(tracker, agent, benchmark, host_image=True)
        assert (trial.score, trial.confirmed, trial.message) == (score, True, None)


def test_polyglot_in_a_fresh_sandbox(tracker: LocalTracker, tmp_path: Path) -> None:
    _, task_id, task = polyglot("python", tmp_path)
    with_pytest(task)
    for agent, score in (("oracle", 1.0), ("nop", 0.0)):
        (trial,) = trials_of(tracker, agent, tmp_path / "aider-polyglot", host_image=True, task_ids=[task_id])
        assert (trial.score, trial.confirmed, trial.message) == (score, True, None)
