"""A tracker with canned runs, for what the command line prints."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.cli.fake_library import FakeLibrary
from valkyrie.errors import UsageError, UserError
from valkyrie.views import (
    AttemptView,
    CostView,
    DiskView,
    ErrorGroup,
    LogLine,
    LogQuery,
    OutputsWanted,
    PlanView,
    QueueView,
    ResultsLink,
    ResultsWanted,
    ResumeRequest,
    RetryRequest,
    RunFilter,
    RunPage,
    RunRequest,
    RunView,
    ScoreView,
    StartedRun,
    StopRequest,
    TrialFilter,
    TrialView,
    UpdateRequest,
)

STATES = ("PENDING", "BUILDING", "IN_PROGRESS", "EVALUATING", "FINISHED", "ERROR", "STOPPED")
FULL = ScoreView(1.0, 1.0, 12, 12, 1.0, {}, False, True, 12, (0.757, 1.0), "wilson", 1.0, 12, 0)
PROVISIONAL = ScoreView(
    0.75, 0.9, 10, 12, 10 / 12, {"infrastructure": 2}, True, True, 9, (0.596, 0.982), "wilson", 0.75, 9, 0
)
HALFWAY = ScoreView(None, 0.8, 5, 12, 5 / 12, {}, False, True, 4, (0.376, 0.964), "wilson")


def make_run(run_id: str = "run-aaaa1111", **changed: Any) -> RunView:
    counts = dict.fromkeys(STATES, 0) | changed.pop("counts", {"FINISHED": 12})
    run = RunView(
        id=run_id,
        benchmark="quickstart",
        dataset="default",
        agent="oracle",
        model=None,
        label=None,
        provider="local",
        state="FINISHED",
        counts=counts,
        total=12,
        concurrency=5,
        created_at=1_700_000_000.0,
        started_at=1_700_000_001.0,
        finished_at=1_700_000_066.0,
        started_by=None,
        score=FULL,
        error=None,
        note=None,
        executor="alive",
        folder="/data/runs/" + run_id,
        arguments={"agent": "oracle"},
        enforcement={"memory": "cgroup v2"},
        version=1,
    )
    return replace(run, **changed)


def make_trial(task_id: str = "fix-the-bug", **changed: Any) -> TrialView:
    trial = TrialView(
        task_id=task_id,
        k=0,
        state="FINISHED",
        attempts=1,
        score=1.0,
        passed=True,
        category=None,
        cause=None,
        message=None,
        exit_code=0,
        exit_reason=None,
        retry_at=None,
        started_at=1_700_000_001.0,
        finished_at=1_700_000_004.2,
        timing={},
        digest="d" * 64,
    )
    return replace(trial, **changed)


class FakeTracker(FakeLibrary):
    """Speaks the Tracker protocol; remembers what it was asked."""

    def __init__(self, runs: Sequence[RunView] = ()) -> None:
        self.runs = {run.id: run for run in (runs or [make_run()])}
        self.asked: list[tuple[Any, ...]] = []
        self.problems: list[str] = []
        self.trial_views: list[TrialView] = [make_trial()]
        self.groups: list[ErrorGroup] = []
        self.kept: dict[str, str] = {}
        """Files of trials, below the folder outputs go to."""
        self.log = "hello from the agent\n"
        self.steps: list[RunView] = []
        self.endless = False
        self.lines: list[LogLine] = []
        self.link = ResultsLink("s3://bucket/benchmarks/run/quickstart.json", None)
        self.queued = QueueView([], [])
        self.most_starts: int | None = None
        self.refusal: BaseException = UserError("the disk is full")

    def _get(self, ref: str) -> RunView:
        found = [run for run_id, run in self.runs.items() if run_id.startswith(ref)]
        if len(found) == 1:
            return found[0]
        reason = "no run" if not found else f"several runs ({', '.join(run.id for run in found)})"
        raise UsageError(f"{reason} with id {ref!r}")

    def plan(self, request: RunRequest) -> PlanView:
        self.asked.append(("plan", request))
        return PlanView(
            request.agent, "a" * 64, request.model, request.benchmark, request.dataset, request.provider,
            "bubblewrap", {"memory": "cgroup v2"}, [("a", 0, "d1"), ("b", 0, "d2")], ["API_KEY"],
            self.problems, [],
        )  # fmt: skip

    def start(self, request: RunRequest) -> StartedRun:
        self.asked.append(("start", request))
        if self.problems:
            raise UserError(self.problems[0])
        before = sum(asked[0] == "start" for asked in self.asked) - 1
        if self.most_starts is not None and before >= self.most_starts:
            raise self.refusal
        run = list(self.runs.values())[before % len(self.runs)]
        return StartedRun(run, ["secret API_KEY comes from the environment"])

    def fetch(self, ref: str) -> RunView:
        return self._get(ref)

    def follow(self, ref: str, *, interval: float = 0.2) -> Iterator[RunView]:
        run = self._get(ref)
        steps = [step for step in self.steps if step.id == run.id] or [run]
        for step in steps:
            self.runs[run.id] = step
            yield step
            if self.endless:
                threading.Event().wait()

    def list(self, query: RunFilter) -> RunPage:
        self.asked.append(("list", query))
        runs = list(self.runs.values())
        first = int(query.cursor or 0)
        after = first + query.limit
        return RunPage(runs[first:after], len(runs), str(after) if after < len(runs) else None)

    def trials(self, ref: str, query: TrialFilter) -> tuple[Sequence[TrialView], int]:
        self.asked.append(("trials", query))
        found = [trial for trial in self.trial_views if not query.states or trial.state in query.states]
        return found[query.offset : query.offset + query.limit], len(found)

    def attempts(self, ref: str, task_id: str, k: int = 0) -> Sequence[AttemptView]:
        return []

    def errors(self, ref: str) -> Sequence[ErrorGroup]:
        return self.groups

    def stop(self, ref: str, request: StopRequest = StopRequest()) -> RunView:
        self.asked.append(("stop", ref, request.force, request.task_ids))
        return replace(self._get(ref), state="STOPPING")

    def resume(self, ref: str, request: ResumeRequest = ResumeRequest()) -> StartedRun:
        self.asked.append(("resume", ref, request.concurrency, request.task_ids, request.headers))
        return StartedRun(self._get(ref), [])

    def retry(self, ref: str, request: RetryRequest = RetryRequest()) -> StartedRun:
        again = (request.category, request.headers, request.from_scratch)
        self.asked.append(("retry", ref, request.concurrency, request.task_ids, *again))
        return StartedRun(self._get(ref), [])

    def update(self, ref: str, request: UpdateRequest) -> RunView:
        more = () if request.abort_after is None else (request.abort_after,)
        limits = (request.max_cost, request.priority)
        self.asked.append(("update", ref, request.concurrency, request.label, *limits, *more))
        run = self._get(ref)
        cost = CostView(0.0, 0, request.max_cost) if request.max_cost else run.cost
        priority = 3 if request.priority is None else request.priority
        return replace(run, concurrency=request.concurrency or 5, cost=cost, priority=priority)

    def wait(self, ref: str, *, timeout: float | None = None) -> RunView:
        run = self._get(ref)
        if run.state == "IN_PROGRESS":
            raise TimeoutError
        return run

    def results(self, ref: str, request: ResultsWanted = ResultsWanted()) -> dict[str, Any]:
        self.asked.append(("results", ref, request.task_ids))
        return {"run_id": self._get(ref).id, "final_score": 1.0}

    def results_text(self, ref: str, request: ResultsWanted = ResultsWanted()) -> Iterator[str]:
        yield json.dumps(self.results(ref, request), indent=2) + "\n"

    def upload_results(self, ref: str, request: ResultsWanted = ResultsWanted()) -> ResultsLink:
        self.asked.append(("upload", ref, request.task_ids))
        return self.link

    def outputs(
        self, ref: str, destination: Path, request: OutputsWanted = OutputsWanted()
    ) -> Sequence[Path]:
        self.asked.append(("outputs", ref, destination, request.task_ids))
        for name, text in self.kept.items() if request.files else ():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            (destination / name).write_text(text)
        return [destination / "a"]

    def logs(
        self, ref: str, task_id: str, *, k: int = 0, attempt: int | None = None, follow: bool = False
    ) -> Iterator[str]:
        self.asked.append(("logs", ref, task_id, k, attempt, follow))
        yield self.log

    def run_logs(self, ref: str, query: LogQuery) -> Iterator[LogLine]:
        self.asked.append(("run_logs", ref, query))
        yield from self.lines

    def queue(self) -> QueueView:
        return self.queued

    def delete(self, ref: str) -> None:
        self.asked.append(("delete", ref))

    def shell(self, ref: str, task_id: str, k: int = 0) -> list[str]:  # type: ignore[valid-type]
        return ["echo", "in", "the", "sandbox"]

    def disk(self) -> DiskView:
        return DiskView(
            "/data", 3 * 1024**3, 9 * 1024**3, [("database", 4096)], [("run-a", "FINISHED", 2**20)]
        )

    def executor_status(self) -> dict[str, Any] | None:
        return None

    def on_line(self, tell: Callable[[str | None], None]) -> None:
        """Nothing to lose."""

    def close(self) -> None:
        self.asked.append(("close",))
