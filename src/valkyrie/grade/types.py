"""Every type of grader by name: where its class is. Nothing is imported before a spec names it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_BUILTIN = {
    "texts:OutputGrader": ("output-contains", "output-not-contains", "output-matches", "output-not-matches"),
    "texts:TranscriptGrader": (
        "transcript-contains",
        "transcript-not-contains",
        "transcript-matches",
        "transcript-not-matches",
    ),
    "files:FileExistsGrader": ("file-exists", "file-not-exists"),
    "files:FileTextGrader": ("file-contains", "file-not-contains", "file-matches", "file-not-matches"),
    "diffs:DiffTextGrader": ("diff-contains", "diff-not-contains"),
    "diffs:DiffEmptyGrader": ("diff-empty",),
    "diffs:ExpectedDiffGrader": ("expected-diff",),
    "commands:RunCommandGrader": ("run-command",),
    "programs:ProgramGrader": ("program",),
    "completion:CompletedGrader": ("completed",),
    "completion:ExitSuccessGrader": ("exit-success",),
    "skills:SkillInvocationGrader": ("skill-invocation",),
    "tool_calls:ToolCallsGrader": ("tool-calls",),
    "budgets:BudgetGrader": ("token-budget", "turn-count", "error-count"),
    "budgets:ToolCallCountGrader": ("tool-call-count",),
    "budgets:StepCountGrader": ("step-count",),
    "budgets:WallTimeGrader": ("wall-time",),
    "loops:MaxRepeatGrader": ("max-repeat",),
    "loops:LoopOutcomeGrader": ("loop-outcome",),
    "events:PassedOnGrader": ("assistant-contains-tool-output",),
    "events:CustomMetricsGrader": ("custom-metrics",),
    "events:SystemEventGrader": ("system-event",),
    "pairwise:PairwiseGrader": ("pairwise",),
    "json_schemas:JsonSchemaGrader": ("json-schema",),
    "json_paths:JsonPathGrader": ("json-path",),
}
_JUDGES = {"prompt": "judges:PromptGrader", "panel": "judges:PanelGrader"}
WHERE: dict[str, str] = {
    **{name: f"builtin.{where}" for where, names in _BUILTIN.items() for name in names},
    **_JUDGES,
}
"""Type → `module:Class` below this package."""


def built_in(name: str) -> Any:
    """The class of a built-in type; None when there is no such type."""
    where = WHERE.get(name)
    if where is None:
        return None
    module, _, attribute = where.partition(":")
    return getattr(import_module(f"valkyrie.grade.{module}"), attribute)
