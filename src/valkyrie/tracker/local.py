"""The verbs on a store: embedded mode, and what a server answers with."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from valkyrie.domain import Identity
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.app import CallerContext, TrackerApp
from valkyrie.tracker.run_reader import RunReader

if TYPE_CHECKING:
    from valkyrie.store import Store
    from valkyrie.tracker.foreground import ForegroundJobs
    from valkyrie.tracker.gradings import GradingVerbs
    from valkyrie.tracker.jobs import JobVerbs
    from valkyrie.tracker.library import LibraryVerbs
    from valkyrie.tracker.results import ResultVerbs
    from valkyrie.tracker.runs import RunVerbs

Verb = TypeVar("Verb", bound=Callable[..., object])


def _verb(find: Callable[[LocalTracker], Verb]) -> cached_property[Verb]:
    """Return a verb that opens the group it belongs to when it is first used."""
    return cached_property(find)


class LocalTracker:
    """Everything one person can ask, answered from one store.

    Made for an app and an identity, or, in embedded mode, for a data folder alone. Each verb is a method of
    one of the groups below, which share a context; a command loads only the groups whose verbs it uses.
    """

    def __init__(
        self,
        app: TrackerApp | Path,
        identity: Identity | None = None,
        caller_headers: Mapping[str, str] | None = None,
    ) -> None:
        self._owns_app = identity is None or isinstance(app, Path)
        app = TrackerApp(DataFolder(app)) if isinstance(app, Path) else app
        self.context = CallerContext(app, identity or Identity(person=_user()), caller_headers)
        self._reader = RunReader(self.context)

    # The groups

    @cached_property
    def _runs(self) -> RunVerbs:
        from valkyrie.tracker.runs import RunVerbs

        return RunVerbs(self.context, self._reader)

    @cached_property
    def _results(self) -> ResultVerbs:
        from valkyrie.tracker.results import ResultVerbs

        return ResultVerbs(self.context, self._reader)

    @cached_property
    def _gradings(self) -> GradingVerbs:
        from valkyrie.tracker.gradings import GradingVerbs

        return GradingVerbs(self.context, self._reader, self._runs)

    @cached_property
    def _jobs(self) -> JobVerbs:
        from valkyrie.tracker.jobs import JobVerbs

        return JobVerbs(self.context, self._reader, self._runs)

    @cached_property
    def _foreground(self) -> ForegroundJobs:
        from valkyrie.tracker.foreground import ForegroundJobs

        return ForegroundJobs(self.context, self._runs, self._jobs)

    @cached_property
    def _library(self) -> LibraryVerbs:
        from valkyrie.tracker.library import LibraryVerbs

        return LibraryVerbs(self.context)

    # Runs, looked at: run_reader.py

    fetch = _verb(lambda self: self._reader.fetch)
    follow = _verb(lambda self: self._reader.follow)
    list = _verb(lambda self: self._reader.list)
    trials = _verb(lambda self: self._reader.trials)
    attempts = _verb(lambda self: self._reader.attempts)
    errors = _verb(lambda self: self._reader.errors)
    wait = _verb(lambda self: self._reader.wait)
    queue = _verb(lambda self: self._reader.queue)
    executor_status = _verb(lambda self: self._reader.executor_status)

    # Runs, started and changed: runs.py

    plan = _verb(lambda self: self._runs.plan)
    start = _verb(lambda self: self._runs.start)
    enqueue = _verb(lambda self: self._runs.enqueue)
    resume = _verb(lambda self: self._runs.resume)
    retry = _verb(lambda self: self._runs.retry)
    stop = _verb(lambda self: self._runs.stop)
    update = _verb(lambda self: self._runs.update)
    delete = _verb(lambda self: self._runs.delete)
    shell = _verb(lambda self: self._runs.shell)

    # What runs left: results.py

    results = _verb(lambda self: self._results.results)
    results_text = _verb(lambda self: self._results.results_text)
    upload_results = _verb(lambda self: self._results.upload_results)
    outputs = _verb(lambda self: self._results.outputs)
    output_files = _verb(lambda self: self._results.output_files)
    logs = _verb(lambda self: self._results.logs)
    run_logs = _verb(lambda self: self._results.run_logs)

    # Kept work, graded again: gradings.py

    regrade = _verb(lambda self: self._gradings.regrade)
    gradings = _verb(lambda self: self._gradings.gradings)
    use_grading = _verb(lambda self: self._gradings.use_grading)
    compare_gradings = _verb(lambda self: self._gradings.compare_gradings)

    # Jobs: jobs.py

    plan_job = _verb(lambda self: self._jobs.plan_job)
    start_job = _verb(lambda self: self._jobs.start_job)
    fetch_job = _verb(lambda self: self._jobs.fetch_job)
    follow_job = _verb(lambda self: self._jobs.follow_job)
    list_jobs = _verb(lambda self: self._jobs.list_jobs)
    stop_job = _verb(lambda self: self._jobs.stop_job)
    resume_job = _verb(lambda self: self._jobs.resume_job)
    retry_job = _verb(lambda self: self._jobs.retry_job)
    delete_job = _verb(lambda self: self._jobs.delete_job)

    # Foreground jobs: foreground.py

    start_foreground = _verb(lambda self: self._foreground.start_foreground)
    fetch_foreground = _verb(lambda self: self._foreground.fetch_foreground)
    resume_foreground = _verb(lambda self: self._foreground.resume_foreground)
    foreground_executor = _verb(lambda self: self._foreground.foreground_executor)
    is_taken_over = _verb(lambda self: self._foreground.is_taken_over)
    stop_foreground = _verb(lambda self: self._foreground.stop_foreground)

    # Agents, secrets, benchmarks, uploads, disk: library.py

    agents = _verb(lambda self: self._library.agents)
    push_agent = _verb(lambda self: self._library.push_agent)
    push_archive = _verb(lambda self: self._library.push_archive)
    agent_archive = _verb(lambda self: self._library.agent_archive)
    remove_agent = _verb(lambda self: self._library.remove_agent)
    download_agent = _verb(lambda self: self._library.download_agent)
    secrets = _verb(lambda self: self._library.secrets)
    set_secret = _verb(lambda self: self._library.set_secret)
    remove_secret = _verb(lambda self: self._library.remove_secret)
    benchmarks = _verb(lambda self: self._library.benchmarks)
    benchmark_tasks = _verb(lambda self: self._library.benchmark_tasks)
    has_upload = _verb(lambda self: self._library.has_upload)
    upload = _verb(lambda self: self._library.upload)
    disk = _verb(lambda self: self._library.disk)

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
