"""What the verbs take and give: plain frozen data, the same in embedded mode and over HTTP."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from valkyrie.domain import Json
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
from valkyrie.views.resources import (
    AgentView,
    BenchmarkView,
    DiskView,
    ExecutorView,
    QueueEntry,
    QueueView,
    SecretView,
    TasksView,
)
from valkyrie.views.runs import (
    AttemptView,
    CostView,
    ErrorGroup,
    GradingChange,
    GradingComparison,
    GradingView,
    HookView,
    IngestedRun,
    LogLine,
    PlanView,
    RegradeRequest,
    RegradeView,
    ResultsLink,
    RunPage,
    RunView,
    ScoreView,
    StartedRun,
    TokensView,
    TrialLeftOut,
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
