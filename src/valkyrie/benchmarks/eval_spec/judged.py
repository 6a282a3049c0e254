"""What graders other than judges found in a trial, so that only its judges are asked again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from valkyrie.benchmarks.eval_spec.needs import graders_of
from valkyrie.benchmarks.eval_spec.opening import open_spec
from valkyrie.benchmarks.eval_spec.options import EvalOptions
from valkyrie.nouns import Json


class JudgedSpec:
    """The graders of one eval spec."""

    def __init__(self, source: Json) -> None:
        self._options = EvalOptions.from_json(source["options"])
        self._spec = open_spec(Path(source["file"]), self._options).spec
        self._stimuli = {one.name: one for one in self._spec.stimuli}

    def checked(self, task_id: str, graders: Sequence[Json]) -> list[Json] | str:
        """Return the results of graders that are no judges, in order; or why judges cannot be asked alone.

        `graders` are all results of the trial's grading, as its result has them.
        """
        stimulus = self._stimuli.get(task_id)
        if stimulus is None:
            return f"{self._spec.file.name} has no stimulus of that name any more"
        made = graders_of(stimulus, self._spec, self._options)
        if not any(one.is_judge for one in made):
            return "no judge graded it"
        if len(made) != len(graders):
            return f"{self._spec.file.name} has other graders for it than when it was graded"
        return [found for one, found in zip(made, graders, strict=True) if not one.is_judge]
