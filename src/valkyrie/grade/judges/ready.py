"""Whether judges can be asked at all, before an agent is run for them to judge."""

from __future__ import annotations

from collections.abc import Iterable

from valkyrie.grade.judges.endpoint import Surroundings, find_endpoint
from valkyrie.grade.judges.panel import PanelGrader
from valkyrie.grade.judges.prompt import PromptGrader
from valkyrie.grade.protocol import Asking, Grader


def check_judges(graders: Iterable[Grader], asking: Asking, around: Surroundings | None = None) -> None:
    """Raise UsageError or UserError where a judge has no model, or its model no address. Nobody is asked."""
    around = around or Surroundings.default()
    for grader in graders:
        if isinstance(grader, PromptGrader | PanelGrader):
            for judge in grader.judges:
                find_endpoint(judge, asking, around)
