"""What an eval or experiment would run, shown by `--dry-run`. Nothing of the project is loaded or started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from valkyrie.cli.output import Output
from valkyrie.report.formats import plural, safe

if TYPE_CHECKING:
    from valkyrie.evals.planning import Planned
    from valkyrie.evals.request import EvalRequest
    from valkyrie.specs.experiment import Experiment
    from valkyrie.specs.model import Project

_TITLES = {"eval": "Eval", "model": "Model", "executor": "Executor", "stimuli": "Stimuli", "trials": "Trials"}


def show_eval_plan(
    output: Output, request: EvalRequest, project: Project, *, experiment: Experiment | None = None
) -> int:
    """Print the plan; plugins of the project are named and not loaded."""
    from valkyrie.evals.planning import plan_evals
    from valkyrie.evals.project_plugins import used_plugins
    from valkyrie.report.layout import Column, Table

    used = used_plugins(request, project)
    planned = plan_evals(request, used)
    rows = _rows(planned, request, variants=experiment is not None)
    if experiment is not None:
        output.emit("experiment_plan", name=experiment.name, baseline=experiment.baseline, evals=rows)
    else:
        output.emit("eval_plan", evals=rows)
    titles = (["Variant"] if experiment is not None else []) + list(_TITLES.values())
    cells: list[Sequence[str]] = [
        [safe(value) if value is not None else "—" for value in row.values()] for row in rows
    ]
    output.table(Table([Column(title) for title in titles], cells))
    if used:
        output.note(f"{safe(str(used))} comes from the plugins of {project.file}, which were not loaded.")
    output.notices(str(one) for one in planned.warnings)
    total = sum(int(row["trials"]) for row in rows)
    output.line(f"{plural(total, 'trial')}, {request.workers} at once. Nothing was run (--dry-run).")
    return 0


def _rows(planned: Planned, request: EvalRequest, *, variants: bool) -> list[dict[str, Any]]:
    from valkyrie.evals.planning import trials_of

    return [
        {
            **({"variant": one.item.variant} if variants else {}),
            "eval": one.spec.name,
            "model": one.model,
            "executor": one.agent.name,
            "stimuli": len(one.stimuli),
            "trials": sum(trials_of(stimulus, one.spec, request.runs) for stimulus in one.stimuli),
        }
        for one in planned.evals
    ]
