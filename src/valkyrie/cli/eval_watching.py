"""What commands that run evals share: the tracker of this machine, who is told, and which job goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.cli.output import Output
from valkyrie.errors import UsageError

if TYPE_CHECKING:
    from valkyrie.evals.console import Printer
    from valkyrie.evals.planning import Planned
    from valkyrie.evals.reporters import Reporting
    from valkyrie.evals.request import EvalRequest
    from valkyrie.evals.results import EvalResult, StimulusResult
    from valkyrie.tracker.foreground import ForegroundJob
    from valkyrie.tracker.local import LocalTracker


@contextmanager
def tracker_here() -> Iterator[LocalTracker]:
    """Evals run on this machine, whatever tracker other commands are configured to use."""
    from valkyrie.settings import data_folder
    from valkyrie.tracker.local import LocalTracker

    opened = LocalTracker(data_folder())
    try:
        yield opened
    finally:
        opened.close()


def tell_tracker(output: Output, folder: Path | None) -> None:
    """Where a tracker is configured: that it knows nothing of this eval, and how it gets to know."""
    from valkyrie.config import effective

    url = effective("tracker_url").value
    if url and folder is not None:
        output.note(f"Evals run on this machine; {url} has none of it yet: `valk ingest {folder}`")


def job_of_folder(folder: Path) -> str:
    """The job that wrote an output folder, or the newest folder in it."""
    from valkyrie.evals.running import MARKER, find_marker

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


def reporting_of(output: Output, request: EvalRequest) -> Reporting | None:
    """Whoever is told besides people; None: nobody. Raises UserError for a plugin that cannot be loaded."""
    if not request.reporter_plugins and request.otlp_endpoint is None:
        return None
    from valkyrie.evals.otlp import OtlpReporter
    from valkyrie.evals.reporters import Reporting, load_reporters

    found = load_reporters(request.reporter_plugins)
    if request.otlp_endpoint is not None:
        found.append(OtlpReporter(request.otlp_endpoint))
    return Reporting(found, output.note, request.metadata)


def reporting_again(output: Output, tracker: LocalTracker, ref: str, *, trust: bool) -> Reporting | None:
    """The same for an eval that goes on, whose plugins must still be trusted."""
    from valkyrie.evals.project_plugins import check_still_trusted
    from valkyrie.evals.request import EvalRequest

    request = EvalRequest.from_json(tracker.fetch_foreground(ref))
    check_still_trusted(request, trust=trust)
    return reporting_of(output, request)


IGNORED = frozenset({"unknown-key", "ignored-key", "stray-grader-key", "unsupported-executor"})
"""Of what an author wrote and nobody reads he is told, key by key."""


class Watching:
    """Tells the printer, and the person beside it."""

    def __init__(
        self, output: Output, printer: Printer, *, verbose: bool, reporting: Reporting | None = None
    ) -> None:
        self._output = output
        self._printer = printer
        self._verbose = verbose
        self._reporting = reporting

    def planned(self, planned: Planned, job: ForegroundJob | None) -> None:
        warnings = planned.warnings
        told = [one for one in warnings if self._verbose or one.code in IGNORED]
        for finding in told:
            self._output.note(f"{finding.severity}: {finding}")
        if count := len(warnings) - len(told):
            said = f"{count} warning{'s' if count > 1 else ''} in the specs"
            self._output.note(f"{said}; --verbose or `valk lint` shows them.")
        self._output.notices(job.notices if job else ())
        if self._reporting and job:
            from valkyrie.evals.loading import skipped_eval

            run_id = job.kept.get("run_id") or job.id
            self._reporting.run_started([skipped_eval(one) for one in planned.evals], run_id, job.name)
        if job and job.shows and self._verbose:
            from valkyrie.report.plan_power import gaps_text

            self._output.notices(dict.fromkeys(f"it can show: {gaps_text(one)}" for one in job.shows))

    def progress(self, done: int, total: int, retries: int) -> None:
        self._printer.progress(done, total, retries)

    def stimulus_done(self, stimulus: StimulusResult, of: EvalResult) -> None:
        self._printer.stimulus_done(stimulus, of)
        if self._reporting:
            self._reporting.stimulus_done(stimulus, of)

    def installing(self, line: str) -> None:
        self._printer.note(line)

    def interrupted(self) -> None:
        self._printer.interrupted()
