"""Models as judges: `prompt` and `panel`, and the comparison of two answers for `compare`.

The names load on first use: most evals ask no judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

if TYPE_CHECKING:
    from valkyrie.grade.judges.client import JudgeClient, check_address, shared_client
    from valkyrie.grade.judges.config import read_pairwise
    from valkyrie.grade.judges.conversation import summed
    from valkyrie.grade.judges.evidence import ask_for_preference
    from valkyrie.grade.judges.panel import PanelGrader, PromptGrader, check_judges, endpoints

_HOME = {
    "valkyrie.grade.judges.client": ("JudgeClient", "check_address", "shared_client"),
    "valkyrie.grade.judges.config": ("read_pairwise",),
    "valkyrie.grade.judges.conversation": ("summed",),
    "valkyrie.grade.judges.evidence": ("ask_for_preference",),
    "valkyrie.grade.judges.panel": ("PanelGrader", "PromptGrader", "check_judges", "endpoints"),
}
__getattr__, __dir__ = lazy_names(__name__, _HOME)

__all__ = [
    "JudgeClient",
    "PanelGrader",
    "PromptGrader",
    "ask_for_preference",
    "check_address",
    "check_judges",
    "endpoints",
    "read_pairwise",
    "shared_client",
    "summed",
]
