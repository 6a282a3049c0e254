"""What the verbs take and give: plain frozen data, the same in embedded mode and over HTTP."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from valkyrie.nouns import Json
from valkyrie.views.engine import DiskView, ExecutorView, QueueEntry, QueueView
from valkyrie.views.gradings import (
    GradingChange,
    GradingComparison,
    GradingView,
    RegradeRequest,
    RegradeView,
    TrialLeftOut,
)
from valkyrie.views.library import AgentView, BenchmarkView, SecretView, TasksView
from valkyrie.views.requests import (
    AgentFailureRule,
    LogQuery,
    OutputsWanted,
    ResultsWanted,
    ResumeRequest,
    RetryRequest,
    RunFilter,
    RunRequest,
    StopRequest,
    TasksRequest,
    TrialDetail,
    TrialFilter,
    UpdateRequest,
)
from valkyrie.views.runs import (
    CostView,
    HookView,
    IngestedRun,
    PlanView,
    ResultsLink,
    RunPage,
    RunView,
    ScoreView,
    StartedRun,
    TokensView,
)
from valkyrie.views.trials import (
    AttemptView,
    ErrorGroup,
    LogLine,
    TrialView,
    UsageView,
)

__all__ = [
    "AgentFailureRule",
    "AgentView",
    "AttemptView",
    "BenchmarkView",
    "CostView",
    "DiskView",
    "ErrorGroup",
    "ExecutorView",
    "GradingChange",
    "GradingComparison",
    "GradingView",
    "HookView",
    "IngestedRun",
    "LogLine",
    "LogQuery",
    "OutputsWanted",
    "PlanView",
    "QueueEntry",
    "QueueView",
    "RegradeRequest",
    "RegradeView",
    "ResultsLink",
    "ResultsWanted",
    "ResumeRequest",
    "RetryRequest",
    "RunFilter",
    "RunPage",
    "RunRequest",
    "RunView",
    "ScoreView",
    "SecretView",
    "StartedRun",
    "StopRequest",
    "TasksRequest",
    "TasksView",
    "TokensView",
    "TrialDetail",
    "TrialFilter",
    "TrialLeftOut",
    "TrialView",
    "UpdateRequest",
    "UsageView",
    "to_json",
]


def to_json(view: Any) -> Json:
    """A view as plain JSON data."""
    data: Json = asdict(view)
    return data
