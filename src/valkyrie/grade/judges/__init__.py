"""Models as judges: `prompt` and `panel`, and the comparison of two answers for `compare`."""

from __future__ import annotations

from valkyrie.grade.judges.client import JudgeClient
from valkyrie.grade.judges.panel import PanelGrader
from valkyrie.grade.judges.prompt import PromptGrader
from valkyrie.grade.judges.ready import check_judges
from valkyrie.grade.judges.sharing import shared_client

__all__ = ["JudgeClient", "PanelGrader", "PromptGrader", "check_judges", "shared_client"]
