"""What an eval or experiment would run, shown by `--dry-run`. Nothing of the project is loaded or started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from valkyrie.cli.options import confirm
from valkyrie.cli.output import Output
from valkyrie.report.formats import plural, safe

if TYPE_CHECKING:
    from valkyrie.evals.agent_requests import AgentAsks
    from valkyrie.evals.planning import Planned, PlannedEval
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
    planned = plan_evals(request, used, shown_only=True)
    rows = _rows(planned, request, variants=experiment is not None)
    goes = _destinations(planned)
    more = {
        "destinations": dict(goes),
        "asks": [{"agent": one.agent, "secrets": dict(one.secrets)} for one in _asks(planned)],
        "plugins": [*used.graders, *used.executors],
    }
    if experiment is not None:
        output.emit("experiment_plan", name=experiment.name, baseline=experiment.baseline, evals=rows, **more)
    else:
        output.emit("eval_plan", evals=rows, **more)
    titles = (["Variant"] if experiment is not None else []) + list(_TITLES.values())
    cells: list[Sequence[str]] = [
        [safe(value) if value is not None else "—" for value in row.values()] for row in rows
    ]
    output.table(Table([Column(title) for title in titles], cells))
    if used:
        output.note(f"{safe(str(used))} comes from the plugins of {project.file}, which were not loaded.")
    for one in _asks(planned):
        output.note(f"{safe(str(one))}; it gets that with {safe(one.flags())}.")
    for name, place in goes:
        output.line(f"{safe(name)} → {safe(place)}")
    output.notices(str(one) for one in planned.warnings)
    total = sum(int(row["trials"]) for row in rows)
    output.line(f"{plural(total, 'trial')}, {request.workers} at once. Nothing was run (--dry-run).")
    return 0


def with_asked(output: Output, request: EvalRequest) -> EvalRequest:
    """Ask on a terminal for what agents of specs want; elsewhere running refuses it.

    Raises ClickException when the user says no.
    """
    from dataclasses import replace

    from valkyrie.evals.planning import plan_evals

    if request.executor is not None or not output.interactive:
        return request
    names = list(request.pass_env)
    for asks in _asks(plan_evals(request)):
        confirm(output, f"The spec's own agent {safe(str(asks))}. Let it have them?", yes=False)
        names += asks.names()
    return replace(request, pass_env=tuple(dict.fromkeys(names)))


def _asks(planned: Planned) -> list[AgentAsks]:
    return list(dict.fromkeys(one.asks for one in planned.evals if one.asks))


def _destinations(planned: Planned) -> list[tuple[str, str]]:
    """Return which key goes where: of agents as the engine plans them, of judges as they would be asked."""
    from dataclasses import replace

    from valkyrie.cli.eval_watching import tracker_here
    from valkyrie.errors import ValkyrieError

    found: dict[tuple[str, str], None] = {}
    with tracker_here() as tracker:
        for one in planned.evals:
            request = one.request
            if request and request.provider == "local":
                # Addresses only are wanted: what this machine's sandboxes can do is not tried for that.
                request = replace(request, provider="null")
            try:
                view = tracker.plan(request) if request else None
            except ValkyrieError:
                continue  # said when it is to run
            found |= dict.fromkeys(view.destinations.items() if view else ())
    for one in planned.evals:
        if one.judged:
            found |= dict.fromkeys(_judges(one))
    return list(found)


def _judges(planned: PlannedEval) -> Iterator[tuple[str, str]]:
    from valkyrie.benchmarks.eval_spec.needs import asking_of, graders_of
    from valkyrie.errors import UserError
    from valkyrie.grade.judges.readiness import endpoints

    asking = asking_of(planned.spec, planned.options)
    made = [one for each in planned.stimuli for one in graders_of(each, planned.spec, planned.options)]
    try:
        for endpoint in endpoints([one.grader for one in made if one.is_judge], asking):
            key = "its key" if endpoint.key else "no key"
            yield f"judge {endpoint.model} ({key})", endpoint.place
    except UserError as error:
        yield "judge", f"cannot be asked yet: {error}"


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
