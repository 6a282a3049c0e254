"""The verbs on a store: embedded mode, and what a server answers with."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.domain import Identity
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.app import CallerContext, TrackerApp
from valkyrie.tracker.foreground import ForegroundJobs
from valkyrie.tracker.gradings import GradingVerbs
from valkyrie.tracker.jobs import JobVerbs
from valkyrie.tracker.library import LibraryVerbs
from valkyrie.tracker.results import ResultVerbs
from valkyrie.tracker.run_reader import RunReader
from valkyrie.tracker.runs import RunVerbs

if TYPE_CHECKING:
    from valkyrie.store import Store


class LocalTracker:
    """Everything one person can ask, answered from one store.

    Made for an app and an identity, or, in embedded mode, for a data folder alone. Each verb is a method of
    one of the groups below, which share a context.
    """

    def __init__(
        self,
        app: TrackerApp | Path,
        identity: Identity | None = None,
        caller_headers: Mapping[str, str] | None = None,
    ) -> None:
        self._owns_app = identity is None or isinstance(app, Path)
        app = TrackerApp(DataFolder(app)) if isinstance(app, Path) else app
        self.context = context = CallerContext(app, identity or Identity(person=_user()), caller_headers)

        reader = RunReader(context)
        runs = RunVerbs(context, reader)
        results = ResultVerbs(context, reader)
        gradings = GradingVerbs(context, reader, runs)
        jobs = JobVerbs(context, reader, runs)
        foreground = ForegroundJobs(context, runs, jobs)
        library = LibraryVerbs(context)
        self._offer_runs(reader, runs)
        self._offer_results(results, gradings)
        self._offer_jobs(jobs, foreground)
        self._offer_library(library)

    def _offer_runs(self, reader: RunReader, runs: RunVerbs) -> None:
        # Runs, looked at: run_reader.py
        self.fetch = reader.fetch
        self.follow = reader.follow
        self.list = reader.list
        self.trials = reader.trials
        self.attempts = reader.attempts
        self.errors = reader.errors
        self.wait = reader.wait
        self.queue = reader.queue
        self.executor_status = reader.executor_status
        # Runs, started and changed: runs.py
        self.plan = runs.plan
        self.start = runs.start
        self.enqueue = runs.enqueue
        self.resume = runs.resume
        self.retry = runs.retry
        self.stop = runs.stop
        self.update = runs.update
        self.delete = runs.delete
        self.shell = runs.shell

    def _offer_results(self, results: ResultVerbs, gradings: GradingVerbs) -> None:
        # What runs left: results.py
        self.results = results.results
        self.results_text = results.results_text
        self.upload_results = results.upload_results
        self.outputs = results.outputs
        self.output_files = results.output_files
        self.logs = results.logs
        self.run_logs = results.run_logs
        # Kept work, graded again: gradings.py
        self.regrade = gradings.regrade
        self.gradings = gradings.gradings
        self.use_grading = gradings.use_grading
        self.compare_gradings = gradings.compare_gradings

    def _offer_jobs(self, jobs: JobVerbs, foreground: ForegroundJobs) -> None:
        # Jobs: jobs.py
        self.plan_job = jobs.plan_job
        self.start_job = jobs.start_job
        self.fetch_job = jobs.fetch_job
        self.follow_job = jobs.follow_job
        self.list_jobs = jobs.list_jobs
        self.stop_job = jobs.stop_job
        self.resume_job = jobs.resume_job
        self.retry_job = jobs.retry_job
        self.delete_job = jobs.delete_job
        # Foreground jobs: foreground.py
        self.start_foreground = foreground.start_foreground
        self.fetch_foreground = foreground.fetch_foreground
        self.resume_foreground = foreground.resume_foreground
        self.foreground_executor = foreground.foreground_executor
        self.is_taken_over = foreground.is_taken_over
        self.stop_foreground = foreground.stop_foreground

    def _offer_library(self, library: LibraryVerbs) -> None:
        # Agents, secrets, benchmarks, uploads, disk: library.py
        self.agents = library.agents
        self.push_agent = library.push_agent
        self.push_archive = library.push_archive
        self.agent_archive = library.agent_archive
        self.remove_agent = library.remove_agent
        self.download_agent = library.download_agent
        self.secrets = library.secrets
        self.set_secret = library.set_secret
        self.remove_secret = library.remove_secret
        self.benchmarks = library.benchmarks
        self.benchmark_tasks = library.benchmark_tasks
        self.has_upload = library.has_upload
        self.upload = library.upload
        self.disk = library.disk

    @property
    def data(self) -> DataFolder:
        return self.context.data

    @property
    def store(self) -> Store:
        return self.context.store

    def on_line(self, tell: Callable[[str | None], None]) -> None:
        """Nothing can be cut: the store is here."""

    def close(self) -> None:
        """Let go of the app, unless others use it too."""
        if self._owns_app:
            self.context.app.close()


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
