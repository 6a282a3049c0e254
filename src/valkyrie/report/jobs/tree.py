"""The tree of a job's logs: `<agent>_<model>/<scenario>/`, and the `results.json` in each folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valkyrie.nouns import Json
from valkyrie.report.jobs.documents import scenario_outcome, trial_failure
from valkyrie.report.jobs.sides import Trials, sides

if TYPE_CHECKING:
    from valkyrie.job_views import JobView
    from valkyrie.views import RunView, TrialView

RESULTS = "results.json"
TEST_OUTPUT = Path("grading", "test-stdout.txt")
"""Below a trial's folder, where its tests printed anything."""
_FORBIDDEN = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]')
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class Place:
    """Where one trial's files go."""

    run: RunView
    trial: TrialView
    folder: Path
    """Below the job's."""


def folder_name(text: str) -> str:
    r"""One harmless path component: `/\:*?"<>|` become `_`, white space becomes `-`."""
    name = _FORBIDDEN.sub("_", re.sub(r"\s+", "-", text.strip()))
    if name.startswith("."):
        name = "_" + name[1:]
    if len(name.encode()) > _LONGEST:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        name = f"{name.encode()[: _LONGEST - 13].decode(errors='ignore')}-{digest}"
    return name or "_"


class Names:
    """Folder names given out so far; one that is taken gets -1, -2, …"""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def give(self, text: str) -> str:
        """A name unlike those before, also where upper and lower case are the same."""
        plain = name = folder_name(text)
        number = 0
        while name.casefold() in self._taken:
            number += 1
            name = f"{plain}-{number}"
        self._taken.add(name.casefold())
        return name


def places(job: JobView, trials: Trials) -> list[Place]:
    """A folder for every trial that was begun; every repetition of a task has its own."""
    found: list[Place] = []
    agents = Names()
    for side in sides(job):
        first = side.runs[0]
        above = agents.give(f"{first.agent}_{first.model}" if first.model else first.agent)
        scenarios = Names()
        own = [(run, trial) for run in side.runs for trial in trials.get(run.id, ())]
        # The first trials of all tasks get the plain names.
        for run, trial in sorted(own, key=lambda item: item[1].k):
            name = scenarios.give(trial.task_id)
            if trial.attempts:
                found.append(Place(run, trial, Path(above, name)))
    return found


def results_file(
    run: RunView, trial: TrialView, result: Mapping[str, Any] | None, test_output: str = ""
) -> Json:
    """The content of `results.json`; `result` is what the benchmark said of a graded trial."""
    outcome = scenario_outcome(run, trial)
    document: Json = {
        "scenario_run_id": outcome["scenario_run_id"],
        "scenario_id": trial.task_id,
        "scenario_name": trial.task_id,
        "state": outcome["state"].lower(),
        "score": outcome["score"],
        "duration_ms": outcome["duration_ms"],
        "benchmark_run_id": run.id,
        "agent_name": run.agent,
        "model_name": run.model,
        "trial": trial.k,
        "passed": trial.passed,
    }
    if reason := trial_failure(trial):
        document["failure_reason"] = reason
    if functions := _scoring_functions(result, test_output):
        document["scoring_functions"] = functions
    for name in ("counted_as_zero", "confirmed", "score_confirmed", "evidence", "usage"):
        if name in outcome:
            document[name] = outcome[name]
    if result is not None:
        document["result"] = dict(result)
    return document


def _scoring_functions(result: Mapping[str, Any] | None, test_output: str) -> list[Json]:
    """The rewards a grader wrote, each by its name."""
    rewards = (result or {}).get("rewards")
    if not isinstance(rewards, Mapping):
        return []
    return [
        {"name": str(name), "score": score, "state": "complete", "output": test_output}
        for name, score in rewards.items()
    ]


def trial_key(trial: TrialView) -> str:
    """A trial's key in a results file."""
    return f"{trial.task_id}#{trial.k}" if trial.k else trial.task_id


def matching(found: Sequence[Place], wanted: str) -> list[Place]:
    """Places of one scenario: by its run id, `task#k`, `benchmark/task`, or the task with all its trials."""
    return [
        place
        for place in found
        if wanted
        in (
            place.trial.task_id,
            trial_key(place.trial),
            f"{place.trial.task_id}#{place.trial.k}",
            f"{place.run.benchmark}/{place.trial.task_id}",
            f"{place.run.benchmark}@{place.run.dataset}/{place.trial.task_id}",
            f"{place.run.id}/{trial_key(place.trial)}",
        )
    ]
