"""A job as one JSON document (docs/reference/job-json), and the tree of its logs."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valkyrie.compare.job_sides import Trials, decision_document, sides
from valkyrie.domain import Json
from valkyrie.report.formats import elapsed, leads_with_graded
from valkyrie.report.tables import ended, trial_seconds
from valkyrie.views import to_json

if TYPE_CHECKING:
    from valkyrie.views import RunView, ScoreView, TrialView
    from valkyrie.views.jobs import JobView


_RUN_STATES = {"IN_PROGRESS": "running", "STOPPING": "running", "STOPPED": "canceled"}
_RUN_STATES |= {"FINISHED": "completed", "ERROR": "failed"}
_TRIAL_STATES = {"PENDING": "PENDING", "EVALUATING": "SCORING", "FINISHED": "COMPLETED"}
_TRIAL_STATES |= {"ERROR": "FAILED", "STOPPED": "CANCELED", "SKIPPED": "SKIPPED"}


def job_document(job: JobView, trials: Trials | None = None, now: float | None = None) -> Json:
    """Everything about a job; `trials`, where given, add the outcome of each scenario."""
    now = time.time() if now is None else now
    document: Json = {
        "id": job.id,
        "name": job.name,
        "create_time_ms": _ms(job.created_at),
        "state": job.state,
        "failure_reason": failure_reason(job),
        "job_source": dict(job.source),
        "job_spec": _spec(job),
        "in_progress_runs": [_in_progress(job, run, now) for run in job.runs if not ended(run)],
        "metadata": dict(job.metadata),
        "started_by": job.started_by,
        "organisation": job.org,
        "end_time_limit_ms": _ms(job.ends_at),
        "runs": [_run(run) for run in job.runs],
        "plan_digest": job.digest,
        "stop_when_decided": None if job.stop_rule is None else dict(job.stop_rule),
        "decision": decision_document(job),
    }
    if trials is not None:
        document["benchmark_outcomes"] = [
            _outcome(run, trials.get(run.id, ()), now) for run in job.runs if trials.get(run.id) is not None
        ]
    return document


def failure_reason(job: JobView) -> str | None:
    """Return why an ended job is not completed, in words; None where it is, or goes on."""
    if not job.ended or job.state == "completed":
        return None
    said = list(dict.fromkeys(run.error or run.note for run in job.runs if run.error or run.note))
    if said:
        return "; ".join(str(one) for one in said)
    if job.state == "timeout":
        return "its time limit was over before all trials ended"
    return "a person cancelled it" if job.state == "cancelled" else None


def _spec(job: JobView) -> Json:
    configs: dict[tuple[str, str | None], Json] = {}
    for run in job.runs:
        configs.setdefault((run.agent, run.model), _agent_config(job, run))
    return {
        "agent_configs": list(configs.values()),
        "scenario_ids": job.source.get("scenario_ids", []),
        "orchestrator_config": {
            "n_attempts": job.trials,
            "n_concurrent_trials": job.concurrency,
            "quiet": False,
            "timeout_multiplier": job.timeout_multiplier,
        },
    }


def _agent_config(job: JobView, run: RunView) -> Json:
    asked: Mapping[str, Any] = run.arguments
    settings: Mapping[str, Any] = asked.get("settings") or {}
    return {
        "type": "job_agent",
        "name": run.agent,
        "model_name": run.model,
        "timeout_seconds": job.agent_timeout,
        "kwargs": dict(asked.get("kwargs") or {}),
        "agent_environment": {
            "environment_variables": dict(settings.get("env_vars") or {}),
            "secrets": dict(asked.get("secrets") or {}),
        },
    }


def _in_progress(job: JobView, run: RunView, now: float) -> Json:
    return {
        "benchmark_run_id": run.id,
        "start_time_ms": _ms(run.started_at),
        "state": _RUN_STATES[run.state],
        "duration_ms": _ms(elapsed(run, now)),
        "agent_config": _agent_config(job, run),
    }


def _run(run: RunView) -> Json:
    return {
        "benchmark_run_id": run.id,
        "agent_name": run.agent,
        "model_name": run.model,
        "benchmark_name": run.benchmark,
        "dataset": run.dataset,
        "state": _RUN_STATES[run.state],
        "counts": dict(run.counts),
        "total": run.total,
        "score": to_json(run.score),
        "cost": to_json(run.cost) if run.cost else None,
        "tokens": to_json(run.tokens) if run.tokens else None,
        "note": run.note,
        "error": run.error,
    }


def leading_score(score: ScoreView) -> float | None:
    """The number tables lead with."""
    return score.score_graded if leads_with_graded(score) else score.final_score


def _outcome(run: RunView, trials: Sequence[TrialView], now: float) -> Json:
    outcomes = [scenario_outcome(run, trial, now) for trial in trials]
    states = [outcome["state"] for outcome in outcomes]
    return {
        "benchmark_run_id": run.id,
        "agent_name": run.agent,
        "model_name": run.model,
        "state": _RUN_STATES[run.state],
        "n_completed": states.count("COMPLETED"),
        "n_failed": states.count("FAILED"),
        "n_timeout": states.count("TIMEOUT"),
        "n_canceled": states.count("CANCELED"),
        **({"n_skipped": states.count("SKIPPED")} if "SKIPPED" in states else {}),
        "average_score": leading_score(run.score),
        "duration_ms": _ms(elapsed(run, now)),
        "scenario_outcomes": outcomes,
    }


def scenario_run_id(run: RunView, trial: TrialView) -> str:
    """Return names one trial of one run."""
    return f"{run.id}/{trial.task_id}" + (f"#{trial.k}" if trial.k else "")


def scenario_state(trial: TrialView) -> str:
    """COMPLETED, FAILED, TIMEOUT, CANCELED, and before the end PENDING, RUNNING, SCORING.

    An agent that ran out of time and did not pass is a TIMEOUT; what it left was graded all the same.
    """
    if trial.state == "FINISHED" and trial.exit_reason == "TIMEOUT" and not trial.passed:
        return "TIMEOUT"
    return _TRIAL_STATES.get(trial.state, "RUNNING")


def scenario_outcome(run: RunView, trial: TrialView, now: float | None = None) -> Json:
    """One trial."""
    now = time.time() if now is None else now
    outcome: Json = {
        "scenario_definition_id": trial.task_id,
        "scenario_name": trial.task_id,
        "scenario_run_id": scenario_run_id(run, trial),
        "trial": trial.k,
        "state": scenario_state(trial),
        "score": trial.score,
        "passed": trial.passed,
        "duration_ms": _ms(trial_seconds(trial, now)),
        "attempts": trial.attempts,
    }
    if trial.counts_as_zero:
        outcome["score"] = 0.0
        outcome["counted_as_zero"] = True
    if trial.confirmed is not None:
        outcome |= {"confirmed": trial.confirmed, "score_confirmed": trial.score_confirmed}
    if trial.evidence:
        outcome["evidence"] = dict(trial.evidence)
    if trial.usage is not None:
        outcome["usage"] = to_json(trial.usage)
    if reason := trial_failure(trial):
        outcome["failure_reason"] = reason
    if trial.state == "SKIPPED":
        outcome["skip_reason"] = trial.cause
    return outcome


def trial_failure(trial: TrialView) -> Json | None:
    """Return what went wrong with a trial, if anything did."""
    if trial.state == "SKIPPED":
        return None
    if trial.cause is not None:
        return {"exception_type": f"{trial.category}/{trial.cause}", "exception_message": trial.message or ""}
    if trial.exit_reason is not None:
        words = {"TIMEOUT": "the agent ran out of time", "OS_KILLED": "the system killed the agent"}
        said = words.get(trial.exit_reason, trial.exit_reason)
        return {"exception_type": f"agent/{trial.exit_reason.lower()}", "exception_message": said}
    return None


def _ms(moment: float | None) -> int | None:
    return None if moment is None else round(moment * 1000)


# The tree of a job's logs: `<agent>_<model>/<scenario>/`, and the `results.json` in each folder.

RESULTS = "results.json"
TEST_OUTPUT = Path("grading", "test-stdout.txt")
"""Below a trial's folder, where its tests printed anything."""
_FORBIDDEN = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]')
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class TrialFolder:
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


def places(job: JobView, trials: Trials) -> list[TrialFolder]:
    """A folder for every trial that was begun; every repetition of a task has its own."""
    found: list[TrialFolder] = []
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
                found.append(TrialFolder(run, trial, Path(above, name)))
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


def matching(found: Sequence[TrialFolder], wanted: str) -> list[TrialFolder]:
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
