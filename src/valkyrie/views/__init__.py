"""What the verbs take and give: plain frozen data, the same in embedded mode and over HTTP.

Names load on first use: who reads runs need not make the classes of all requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

_HOME = {
    "valkyrie.views.jobs": [
        *("JobAgent", "JobChange", "JobFilter", "JobPage", "JobPlan", "JobRequest", "JobRetry"),
        *("JobStop", "JobView", "StartedJob"),
    ],
    "valkyrie.views.requests": [
        *("AgentFailureRule", "OutputsWanted", "PlanView", "ResultsWanted", "ResumeRequest"),
        *("RetryRequest", "RunRequest", "StartedRun", "StopRequest", "TasksRequest"),
        *("UpdateRequest",),
    ],
    "valkyrie.views.resources": [
        *("AgentView", "BenchmarkView", "DiskView", "ExecutorView", "QueueEntry", "QueueView"),
        *("SecretView", "TasksView"),
    ],
    "valkyrie.views.results": [
        *("GradingChange", "GradingComparison", "GradingView", "IngestedRun", "RegradeRequest"),
        *("RegradeView", "ResultsLink", "TrialLeftOut"),
    ],
    "valkyrie.views.runs": [
        *("AttemptView", "CostView", "ErrorGroup", "HookView", "LogLine", "LogQuery", "RunFilter"),
        *("RunPage", "RunView", "ScoreView", "TokensView", "TrialDetail", "TrialFilter"),
        *("TrialView", "UsageView", "to_json"),
    ],
}
__getattr__, __dir__ = lazy_names(__name__, _HOME)

if TYPE_CHECKING:
    from valkyrie.views.jobs import *  # noqa: F403
    from valkyrie.views.requests import *  # noqa: F403
    from valkyrie.views.resources import *  # noqa: F403
    from valkyrie.views.results import *  # noqa: F403
    from valkyrie.views.runs import *  # noqa: F403
