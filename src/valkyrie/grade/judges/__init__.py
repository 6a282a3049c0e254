"""Models as judges: `prompt` and `panel`, and the comparison of two answers for `compare`.

The names load on first use: most evals ask no judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

if TYPE_CHECKING:
    from valkyrie.grade.judges.client import JudgeClient, check_address, shared_client
    from valkyrie.grade.judges.panel import PanelGrader, PromptGrader, check_judges

_HOME = {
    "valkyrie.grade.judges.client": (
        "JudgeClient",
        "shared_client",
        "check_address",
    ),
    "valkyrie.grade.judges.panel": (
        "PanelGrader",
        "PromptGrader",
        "check_judges",
    ),
}
__getattr__, __dir__ = lazy_names(__name__, _HOME)

__all__ = ["JudgeClient", "PanelGrader", "PromptGrader", "check_address", "check_judges", "shared_client"]
