"""`benchmark-job logs` and `results`: kept files, fetched side by side."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import click

from benchmark_runner.terminal import safe
from valkyrie.cli.job import job_argument, output_option
from valkyrie.cli.job_status import trials_of
from valkyrie.cli.options import tracker, verb
from valkyrie.cli.output import Output
from valkyrie.cli.run_outputs import target_file, write_file, write_results
from valkyrie.compare.job_documents import (
    RESULTS,
    TEST_OUTPUT,
    TrialFolder,
    folder_name,
    job_document,
    matching,
    places,
    results_file,
    scenario_run_id,
    trial_key,
)
from valkyrie.compare.job_sides import run_names
from valkyrie.errors import UserError, ValkyrieError
from valkyrie.report.formats import plural
from valkyrie.store.layout import encode_task_id
from valkyrie.text import did_you_mean
from valkyrie.tracker.protocol import Tracker
from valkyrie.views import OutputsWanted

if TYPE_CHECKING:
    from valkyrie.views import RunView
    from valkyrie.views.jobs import JobView


AT_ONCE = 8
TASKS_TOGETHER = 25
LONGEST_OUTPUT = 16_384

Results = Mapping[str, Mapping[str, Any]]
"""What the benchmark said of each graded trial of a run, by its key."""


@dataclass(slots=True)
class LogDownload:
    """Places below a folder, filled; what could not be is remembered."""

    folder: Path
    results: Mapping[str, Results]
    """By run id."""
    trials: int = 1
    """Of each task."""
    failed: dict[str, str] = field(default_factory=dict)
    """Scenario run id → why its files could not be fetched."""
    _lock: Lock = field(default_factory=Lock)

    def fetch(self, wanted: Sequence[TrialFolder]) -> None:
        """Fill every place; an earlier copy of one gives way."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(dir=self.folder, prefix=".incoming-"))
        except OSError as error:
            raise UserError(f"{self.folder} cannot be written: {error.strerror}.", cause="os") from error
        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                for done in [pool.submit(self._fetch, batch, scratch) for batch in batches(wanted)]:
                    done.result()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _fetch(self, batch: Sequence[TrialFolder], scratch: Path) -> None:
        """One request for a batch; where that fails, one for each task: none keeps another back."""
        own = Path(tempfile.mkdtemp(dir=scratch))
        tasks = list(dict.fromkeys(place.trial.task_id for place in batch))
        try:
            with tracker() as opened:
                opened.outputs(batch[0].run.id, own, OutputsWanted(task_ids=tasks))
        except (ValkyrieError, OSError) as error:
            if len(tasks) == 1:
                self._fail(batch, error)
                return
            for task in tasks:
                self._fetch([place for place in batch if place.trial.task_id == task], scratch)
            return
        # Repetitions stand inside the first trial's folder: they leave it first.
        for place in sorted(batch, key=lambda place: -place.trial.k):
            try:
                self._put(place, own)
            except (ValkyrieError, OSError) as error:
                self._fail([place], error)

    def _put(self, place: TrialFolder, own: Path) -> None:
        target = self.folder / place.folder
        if target.parent.is_symlink():
            raise UserError(f"{target.parent} is a link; logs are not written through links. Remove it.")
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(exist_ok=True)
        source = own / encode_task_id(place.trial.task_id) / (str(place.trial.k) if place.trial.k else "")
        if source.is_dir():
            for other in range(1, 1 if place.trial.k else self.trials):
                # Repetitions nobody asked for are none of this trial's files.
                shutil.rmtree(source / str(other), ignore_errors=True)
            source.rename(target)
        else:
            target.mkdir()
        result = self.results.get(place.run.id, {}).get(trial_key(place.trial))
        document = results_file(place.run, place.trial, result, _start_of(target / TEST_OUTPUT))
        write_file(target / RESULTS, json.dumps(document, indent=2, ensure_ascii=False) + "\n")

    def _fail(self, places: Sequence[TrialFolder], error: Exception) -> None:
        with self._lock:
            for place in places:
                self.failed[scenario_run_id(place.run, place.trial)] = str(error)


def _start_of(file: Path) -> str:
    """What tests printed, as much as one wants to read in a JSON file."""
    if not file.is_file() or file.is_symlink():
        return ""
    with file.open("rb") as opened:
        return opened.read(LONGEST_OUTPUT).decode("utf-8", "replace")


def batches(wanted: Sequence[TrialFolder]) -> list[list[TrialFolder]]:
    """Some tasks of one run each, all trials of a task together."""
    by_run: dict[str, dict[str, list[TrialFolder]]] = {}
    for place in wanted:
        by_run.setdefault(place.run.id, {}).setdefault(place.trial.task_id, []).append(place)
    found = []
    for tasks in by_run.values():
        groups = list(tasks.values())
        for start in range(0, len(groups), TASKS_TOGETHER):
            found.append([place for group in groups[start : start + TASKS_TOGETHER] for place in group])
    return found


def results_of(opened: Tracker, run_ids: Sequence[str]) -> dict[str, Results]:
    """What the benchmarks said; a run whose results cannot be had is left out: its logs still can."""
    found: dict[str, Results] = {}
    for run_id in run_ids:
        try:
            document = opened.results(run_id)
        except ValkyrieError:
            continue
        found[run_id] = document.get("evaluation_results", {})
    return found


# `benchmark-job logs`.

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

    with tracker() as opened:
        job = opened.fetch_job(ref)
        run = _chosen_run(job, run_ref)
        wanted = _wanted(opened, job, run, scenario)
        results = results_of(opened, list(dict.fromkeys(place.run.id for place in wanted)))
    folder = output_dir / folder_name(job.id)
    fetching = LogDownload(folder, results, job.trials)
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


def _told(place: TrialFolder, folder: Path) -> dict[str, str]:
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


def _wanted(opened: Tracker, job: JobView, run: RunView | None, scenario: str | None) -> list[TrialFolder]:
    """Names are given over the whole job, so that a scenario has the same folder however it is asked for."""
    every = places(job, trials_of(opened, job))
    found = [place for place in every if run is None or place.run.id == run.id]
    if scenario is None:
        return found
    chosen = matching(found, scenario)
    if not chosen and found:
        hint = did_you_mean(scenario, {place.trial.task_id for place in found})
        raise click.UsageError(
            f"--scenario: the job has begun no {scenario!r}.{hint} "
            f"`valk job fetch {job.id[:8]} -e` lists what it has."
        )
    return chosen


# `benchmark-job results`.


@verb(
    "results",
    examples="valk job results nightly --path ./nightly.json\nvalk job results 3f2a --path - | jq .runs",
)
@job_argument
@click.option(
    "--path", metavar="FILE", help="File or folder to write to; - is stdout [default: ./<job>.json]."
)
@click.option("--force", is_flag=True, help="Overwrite the file without asking.")
@output_option
def results(output: Output, *, ref: str, path: str | None, force: bool) -> int:
    """Write the results of a job's runs to one file.

    The job, and under `runs` for each of them its name, its id and what `run results` writes of it. An
    existing file is overwritten only after a yes on a terminal, or with --force; else the command exits 1
    with reason target_exists.
    """
    with tracker() as opened:
        job = opened.fetch_job(ref)
        name = re.sub(r"[^\w.-]+", "-", job.name).strip(".-") or job.id
        target = target_file(path, f"{name}.json", output, force=force)
        names = run_names(job)
        runs = [
            {"name": names[run.id], "run_id": run.id, "results": opened.results(run.id)} for run in job.runs
        ]
    return write_results({**job_document(job), "runs": runs}, target, output)
