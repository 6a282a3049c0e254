"""Models as judges: `prompt` and `panel`, and the comparison of two answers for `compare`."""

from __future__ import annotations

from valkyrie.grade.judges.client import JudgeClient, shared_client
from valkyrie.grade.judges.panel import PanelGrader, PromptGrader
from valkyrie.grade.judges.readiness import check_judges

__all__ = ["JudgeClient", "PanelGrader", "PromptGrader", "check_judges", "shared_client"]
