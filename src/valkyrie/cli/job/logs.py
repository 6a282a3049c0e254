"""`benchmark-job logs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from valkyrie.cli.job.options import job_argument
from valkyrie.cli.job.summary import trials_of
from valkyrie.cli.options import tracker, verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import plural, safe
from valkyrie.report.jobs.documents import scenario_run_id
from valkyrie.report.jobs.tree import Place, folder_name, matching, places

if TYPE_CHECKING:
    from valkyrie.job_views import JobView
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import RunView

_MOST_WARNINGS = 10


@verb(
    "logs",
    examples="valk job logs 3f2a\n"
    "valk job logs nightly -o ./nightly-logs\n"
    "valk job logs 3f2a --run 91bc --scenario fix-the-bug",
)
@job_argument
@click.option(
    "--output-dir",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("logs"),
    help="Folder to write below [default: ./logs].",
)
@click.option("--run", "run_ref", metavar="RUN", help="Only this run of the job: its agent, or its id.")
@click.option("--scenario", metavar="ID", help="Only this scenario: a task, or one trial of it as `task#k`.")
def logs(output: Output, *, ref: str, output_dir: Path, run_ref: str | None, scenario: str | None) -> int:
    """Write a job's logs and kept files to a folder.

    Below the output folder: <job-id>/<agent>_<model>/<scenario>/, each with results.json, the log of the
    trial's last attempt (attempt.log) and what was kept of it, archives unpacked. Further trials of a
    task get -1, -2, …. What cannot be fetched is told and left out; exit code 1 only if nothing could be.
    """
    from valkyrie.cli.job.fetching import Fetching, results_of

    with tracker() as opened:
        job = opened.fetch_job(ref)
        run = _chosen_run(job, run_ref)
        wanted = _wanted(opened, job, run, scenario)
        results = results_of(opened, list(dict.fromkeys(place.run.id for place in wanted)))
    folder = output_dir / folder_name(job.id)
    fetching = Fetching(folder, results, job.trials)
    if wanted:
        fetching.fetch(wanted)
    failed = fetching.failed
    written = [place for place in wanted if scenario_run_id(place.run, place.trial) not in failed]
    output.emit(
        "job_logs",
        job_id=job.id,
        folder=str(folder.absolute()),
        scenarios=[_told(place, folder) for place in written],
        failed=failed,
    )
    if wanted:
        output.line(f"{plural(len(written), 'scenario')} in {folder}")
    else:
        output.line("Nothing was begun yet; there are no logs.")
    for name, reason in list(failed.items())[:_MOST_WARNINGS]:
        output.note(f"Not fetched: {safe(name)}: {safe(reason)}")
    if len(failed) > _MOST_WARNINGS:
        output.note(f"… and {len(failed) - _MOST_WARNINGS} more were not fetched.")
    return 1 if failed and not written else 0


def _told(place: Place, folder: Path) -> dict[str, str]:
    return {
        "scenario_run_id": scenario_run_id(place.run, place.trial),
        "folder": str((folder / place.folder).absolute()),
    }


def _chosen_run(job: JobView, ref: str | None) -> RunView | None:
    if ref is None:
        return None
    names = [run for run in job.runs if ref in (run.agent, f"{run.agent}:{run.model}")]
    found = names or [run for run in job.runs if run.id.startswith(ref)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{run.id} ({safe(run.agent)})" for run in found or job.runs)
    reason = f"{len(found)} runs of the job are called" if found else "the job has no run"
    raise click.UsageError(f"--run: {reason} {ref!r}. There are: {known}.")


def _wanted(opened: Tracker, job: JobView, run: RunView | None, scenario: str | None) -> list[Place]:
    """Names are given over the whole job, so that a scenario has the same folder however it is asked for."""
    every = places(job, trials_of(opened, job))
    found = [place for place in every if run is None or place.run.id == run.id]
    if scenario is None:
        return found
    chosen = matching(found, scenario)
    if not chosen and found:
        from valkyrie.suggest import did_you_mean

        hint = did_you_mean(scenario, {place.trial.task_id for place in found})
        raise click.UsageError(
            f"--scenario: the job has begun no {scenario!r}.{hint} "
            f"`valk job fetch {job.id[:8]} -e` lists what it has."
        )
    return chosen
