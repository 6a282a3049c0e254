"""Check that judges can be asked at all, before an agent is run for them to judge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from valkyrie.grade.judges.endpoint import JudgeEndpoint, JudgeSettings, find_endpoint
from valkyrie.grade.judges.panel import PanelGrader, PromptGrader
from valkyrie.grade.protocol import Grader, JudgeDefaults


def check_judges(
    graders: Iterable[Grader], asking: JudgeDefaults, settings: JudgeSettings | None = None
) -> None:
    """Raise UsageError or UserError where a judge has no model, or its model no address. Nobody is asked."""
    for _ in endpoints(graders, asking, settings):
        pass


def endpoints(
    graders: Iterable[Grader], asking: JudgeDefaults, settings: JudgeSettings | None = None
) -> Iterator[JudgeEndpoint]:
    """Yield where each judge would be asked. Raises as `check_judges` does."""
    settings = settings or JudgeSettings.default()
    for grader in graders:
        if isinstance(grader, PromptGrader | PanelGrader):
            for judge in grader.judges:
                yield find_endpoint(judge, asking, settings)
