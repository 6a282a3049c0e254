"""Trials' files fetched side by side into the tree of a job's logs."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from valkyrie.cli.options import tracker
from valkyrie.cli.run.take import write_file
from valkyrie.errors import UserError, ValkyrieError
from valkyrie.report.jobs.documents import scenario_run_id
from valkyrie.report.jobs.tree import RESULTS, TEST_OUTPUT, Place, results_file, trial_key
from valkyrie.store.layout import encode_task_id
from valkyrie.tracker.protocol import Tracker
from valkyrie.views import OutputsWanted

AT_ONCE = 8
TASKS_TOGETHER = 25
LONGEST_OUTPUT = 16_384

Results = Mapping[str, Mapping[str, Any]]
"""What the benchmark said of each graded trial of a run, by its key."""


@dataclass(slots=True)
class Fetching:
    """Places below a folder, filled; what could not be is remembered."""

    folder: Path
    results: Mapping[str, Results]
    """By run id."""
    trials: int = 1
    """Of each task."""
    failed: dict[str, str] = field(default_factory=dict)
    """Scenario run id → why its files could not be fetched."""
    _lock: Lock = field(default_factory=Lock)

    def fetch(self, wanted: Sequence[Place]) -> None:
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

    def _fetch(self, batch: Sequence[Place], scratch: Path) -> None:
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

    def _put(self, place: Place, own: Path) -> None:
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

    def _fail(self, places: Sequence[Place], error: Exception) -> None:
        with self._lock:
            for place in places:
                self.failed[scenario_run_id(place.run, place.trial)] = str(error)


def _start_of(file: Path) -> str:
    """What tests printed, as much as one wants to read in a JSON file."""
    if not file.is_file() or file.is_symlink():
        return ""
    with file.open("rb") as opened:
        return opened.read(LONGEST_OUTPUT).decode("utf-8", "replace")


def batches(wanted: Sequence[Place]) -> list[list[Place]]:
    """Some tasks of one run each, all trials of a task together."""
    by_run: dict[str, dict[str, list[Place]]] = {}
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
