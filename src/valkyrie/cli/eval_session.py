"""What commands that run evals share: this machine's tracker, the plan they show, who is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valkyrie.cli.options import confirm
from valkyrie.cli.output import Output
from valkyrie.errors import UsageError
from valkyrie.report.formats import plural, safe

if TYPE_CHECKING:
    from valkyrie.evals.console import Printer
    from valkyrie.evals.plan import AgentAsks, PlannedEval, PlannedEvals
    from valkyrie.evals.plugins import ReporterGroup
    from valkyrie.evals.request import EvalRequest
    from valkyrie.evals.results import SpecResult, StimulusResult
    from valkyrie.specs.experiment import Experiment
    from valkyrie.specs.model import Project
    from valkyrie.tracker.foreground import ForegroundJob
    from valkyrie.tracker.local import LocalTracker


@contextmanager
def tracker_here() -> Iterator[LocalTracker]:
    """Evals run on this machine, whatever tracker other commands are configured to use."""
    from valkyrie.config.values import data_folder
    from valkyrie.tracker.local import LocalTracker

    opened = LocalTracker(data_folder())
    try:
        yield opened
    finally:
        opened.close()


def tell_tracker(output: Output, folder: Path | None) -> None:
    """Where a tracker is configured: that it knows nothing of this eval, and how it gets to know."""
    from valkyrie.config.values import effective

    url = effective("tracker_url").value
    if url and folder is not None:
        output.note(f"Evals run on this machine; {url} has none of it yet: `valk ingest {folder}`")


def job_of_folder(folder: Path) -> str:
    """The job that wrote an output folder, or the newest folder in it."""
    from valkyrie.evals.runner import MARKER, find_marker

    within = sorted(folder.glob(f"*/{MARKER}"), reverse=True)
    for place in (folder, *(one.parent for one in within)):
        if found := find_marker(place):
            return str(found["id"])
    raise UsageError(f"--resume {folder}: neither it nor a folder in it holds the {MARKER} of an eval.")


def check_kind(tracker: LocalTracker, ref: str, *, experiment: bool) -> None:
    """UsageError for an experiment where an eval is gone on with, and the other way round."""
    is_experiment = any(item["experiment"] for item in tracker.fetch_foreground(ref)["items"])
    if is_experiment and not experiment:
        raise UsageError(f"{ref} is an experiment; `valk experiment run --resume {ref}` goes on.")
    if experiment and not is_experiment:
        raise UsageError(f"{ref} is an eval; `valk eval --resume {ref}` goes on.")


def reporting_of(output: Output, request: EvalRequest) -> ReporterGroup | None:
    """Whoever is told besides people; None: nobody. Raises UserError for a plugin that cannot be loaded."""
    if not request.reporter_plugins and request.otlp_endpoint is None:
        return None
    from valkyrie.evals.otlp import OtlpReporter
    from valkyrie.evals.plugins import ReporterGroup, load_reporters

    found = load_reporters(request.reporter_plugins)
    if request.otlp_endpoint is not None:
        found.append(OtlpReporter(request.otlp_endpoint))
    return ReporterGroup(found, output.note, request.metadata)


def reporting_again(output: Output, tracker: LocalTracker, ref: str, *, trust: bool) -> ReporterGroup | None:
    """The same for an eval that goes on, whose plugins must still be trusted."""
    from valkyrie.evals.plugins import check_still_trusted
    from valkyrie.evals.request import EvalRequest

    request = EvalRequest.from_json(tracker.fetch_foreground(ref))
    check_still_trusted(request, trust=trust)
    return reporting_of(output, request)


IGNORED = frozenset({"unknown-key", "ignored-key", "stray-grader-key", "unsupported-executor"})
"""Of what an author wrote and nobody reads he is told, key by key."""


class EvalWatch:
    """Tells the printer, and the person beside it."""

    def __init__(
        self, output: Output, printer: Printer, *, verbose: bool, reporting: ReporterGroup | None = None
    ) -> None:
        self._output = output
        self._printer = printer
        self._verbose = verbose
        self._reporting = reporting

    def planned(self, planned: PlannedEvals, job: ForegroundJob | None) -> None:
        warnings = planned.warnings
        told = [one for one in warnings if self._verbose or one.code in IGNORED]
        for finding in told:
            self._output.note(f"{finding.severity}: {finding}")
        if count := len(warnings) - len(told):
            said = f"{count} warning{'s' if count > 1 else ''} in the specs"
            self._output.note(f"{said}; --verbose or `valk lint` shows them.")
        self._output.notices(job.notices if job else ())
        if self._reporting and job:
            from valkyrie.evals.stored_results import skipped_eval

            run_id = job.kept.get("run_id") or job.id
            self._reporting.run_started([skipped_eval(one) for one in planned.evals], run_id, job.name)
        if job and job.shows and self._verbose:
            from valkyrie.report.plan_power import gaps_text

            self._output.notices(dict.fromkeys(f"it can show: {gaps_text(one)}" for one in job.shows))

    def progress(self, done: int, total: int, retries: int) -> None:
        self._printer.progress(done, total, retries)

    def stimulus_done(self, stimulus: StimulusResult, of: SpecResult) -> None:
        self._printer.stimulus_done(stimulus, of)
        if self._reporting:
            self._reporting.stimulus_done(stimulus, of)

    def installing(self, line: str) -> None:
        self._printer.note(line)

    def interrupted(self) -> None:
        self._printer.interrupted()


# What an eval or experiment would run, shown by `--dry-run`. Nothing of the project is loaded or started.

_TITLES = {"eval": "Eval", "model": "Model", "executor": "Executor", "stimuli": "Stimuli", "trials": "Trials"}


def show_eval_plan(
    output: Output, request: EvalRequest, project: Project, *, experiment: Experiment | None = None
) -> int:
    """Print the plan; plugins of the project are named and not loaded."""
    from valkyrie.evals.plan import plan_evals
    from valkyrie.evals.plugins import used_plugins
    from valkyrie.report.formats import Column, Table

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

    from valkyrie.evals.plan import plan_evals

    if request.executor is not None or not output.interactive:
        return request
    names = list(request.pass_env)
    for asks in _asks(plan_evals(request)):
        confirm(output, f"The spec's own agent {safe(str(asks))}. Let it have them?", yes=False)
        names += asks.names()
    return replace(request, pass_env=tuple(dict.fromkeys(names)))


def _asks(planned: PlannedEvals) -> list[AgentAsks]:
    return list(dict.fromkeys(one.asks for one in planned.evals if one.asks))


def _destinations(planned: PlannedEvals) -> list[tuple[str, str]]:
    """Return which key goes where: of agents as the engine plans them, of judges as they would be asked."""
    from dataclasses import replace

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
    from valkyrie.benchmarks.eval_spec.source import asking_of, graders_of
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


def _rows(planned: PlannedEvals, request: EvalRequest, *, variants: bool) -> list[dict[str, Any]]:
    from valkyrie.evals.plan import trials_of

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
