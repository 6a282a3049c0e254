"""The verbs over HTTP: `ValkyrieClient` for code that waits for each answer.

Folders of the caller are sent, their config is said, and secrets only they have are supplied.
"""

from __future__ import annotations

import asyncio
import shlex
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from valkyrie import views
from valkyrie.benchmarks import open_benchmark
from valkyrie.benchmarks.catalog import known_benchmarks
from valkyrie.benchmarks.protocol import BenchmarkRequest
from valkyrie.client import caller
from valkyrie.client.client import ValkyrieClient
from valkyrie.client.connection import changed
from valkyrie.domain import Json
from valkyrie.errors import MissingSecretError, UnknownError, UserError
from valkyrie.tracker.job_plan import job_name, sent_scenarios

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Started = TypeVar("Started", views.StartedRun, views.StartedJob, views.RegradeView)


def _waiting(
    verb: Callable[Concatenate[ValkyrieClient, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[RemoteTracker, Parameters], Result]:
    """Return the client's verb as a method that waits for the answer."""

    @wraps(verb)
    def call(self: RemoteTracker, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        answer: Result = self.wait_for(getattr(self.client, verb.__name__)(*args, **kwargs))
        return answer

    return call


class RemoteTracker:
    """Everything a person can ask, asked of a tracker.

    One event loop is kept and run step by step. Ctrl+C comes through as KeyboardInterrupt, after the
    request under way was given up and its connection closed.
    """

    def __init__(self, url: str, api_key: str | None = None, *, client: ValkyrieClient | None = None) -> None:
        self.client = client or ValkyrieClient(url, api_key)
        self._runner = asyncio.Runner()
        self._closed = False

    def wait_for(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run until the answer is there."""
        return self._runner.run(coroutine)

    def on_line(self, tell: Callable[[str | None], None]) -> None:
        """Call `tell` with why nothing is heard of the tracker, and with None when it is heard again."""
        self.client.on_line(tell)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                self._runner.run(self.client.close())
            finally:
                self._runner.close()

    # Verbs that need nothing of this machine

    fetch = _waiting(ValkyrieClient.fetch)
    list = _waiting(ValkyrieClient.list)
    trials = _waiting(ValkyrieClient.trials)
    attempts = _waiting(ValkyrieClient.attempts)
    errors = _waiting(ValkyrieClient.errors)
    gradings = _waiting(ValkyrieClient.gradings)
    use_grading = _waiting(ValkyrieClient.use_grading)
    compare_gradings = _waiting(ValkyrieClient.compare_gradings)
    wait = _waiting(ValkyrieClient.wait)
    delete = _waiting(ValkyrieClient.delete)
    queue = _waiting(ValkyrieClient.queue)
    ingest = _waiting(ValkyrieClient.ingest)
    fetch_job = _waiting(ValkyrieClient.job)
    list_jobs = _waiting(ValkyrieClient.jobs)
    delete_job = _waiting(ValkyrieClient.delete_job)
    agents = _waiting(ValkyrieClient.agents)
    push_agent = _waiting(ValkyrieClient.push_agent)
    remove_agent = _waiting(ValkyrieClient.remove_agent)
    download_agent = _waiting(ValkyrieClient.download_agent)
    secrets = _waiting(ValkyrieClient.secrets)
    set_secret = _waiting(ValkyrieClient.set_secret)
    remove_secret = _waiting(ValkyrieClient.remove_secret)
    disk = _waiting(ValkyrieClient.disk)
    executor_status = _waiting(ValkyrieClient.executor_status)

    def stop(self, ref: str, request: views.StopRequest = views.StopRequest()) -> views.RunView:
        return self.wait_for(self.client.stop(ref, **changed(request)))

    def stop_job(self, ref: str, request: views.JobStop = views.JobStop()) -> views.JobView:
        return self.wait_for(self.client.stop_job(ref, **changed(request)))

    def update(self, ref: str, request: views.UpdateRequest) -> views.RunView:
        return self.wait_for(self.client.update(ref, **changed(request)))

    def outputs(
        self, ref: str, destination: Path, request: views.OutputsWanted = views.OutputsWanted()
    ) -> Sequence[Path]:
        return self.wait_for(self.client.outputs(ref, destination, **changed(request)))

    # Streams

    def follow(self, ref: str, *, interval: float = 0.2) -> Iterator[views.RunView]:  # noqa: ARG002 - told, not asked
        return self._each(self.client.follow(ref))

    def follow_job(self, ref: str, *, interval: float = 0.2) -> Iterator[views.JobView]:  # noqa: ARG002 - told, not asked
        return self._each(self._job_views(ref))

    def logs(
        self, ref: str, task_id: str, *, k: int = 0, attempt: int | None = None, follow: bool = False
    ) -> Iterator[str]:
        return self._each(self.client.logs(ref, task_id, k=k, attempt=attempt, follow=follow))

    def run_logs(self, ref: str, query: views.LogQuery) -> Iterator[views.LogLine]:
        return self._each(self.client.run_logs(ref, query))

    def _each(self, found: AsyncGenerator[Result, None]) -> Iterator[Result]:
        """One by one: between two of them nothing runs, and nothing is read ahead."""

        async def step() -> tuple[Result, ...]:
            async for one in found:
                return (one,)
            return ()

        try:
            while one := self.wait_for(step()):
                yield one[0]
        finally:
            if not self._closed:
                self.wait_for(found.aclose())

    async def _job_views(self, ref: str) -> AsyncGenerator[views.JobView, None]:
        told = False
        try:
            async with aclosing(self.client.job_events(ref)) as found:
                async for view in found:
                    told = True
                    yield view
        except UnknownError:
            if not told:
                raise  # else it was deleted meanwhile: nothing more will happen to it

    # Runs and jobs, started and gone on with: folders, config and secrets of this machine go along

    def plan(self, request: views.RunRequest) -> views.PlanView:
        async def ask() -> views.PlanView:
            plan = await self.client.plan(await caller.complete(self.client, request))
            return caller.as_if_supplied(plan) if request.store_secrets else plan

        return self.wait_for(ask())

    def start(self, request: views.RunRequest) -> views.StartedRun:
        async def ask() -> views.StartedRun:
            asked = await caller.complete(self.client, request)
            return await self._supplied(lambda: self.client.start(asked), allowed=request.store_secrets)

        return self.wait_for(ask())

    def resume(self, ref: str, request: views.ResumeRequest = views.ResumeRequest()) -> views.StartedRun:
        return self._again(ref, request, lambda run_id, asked: self.client.resume(run_id, **changed(asked)))

    def retry(self, ref: str, request: views.RetryRequest = views.RetryRequest()) -> views.StartedRun:
        return self._again(ref, request, lambda run_id, asked: self.client.retry(run_id, **changed(asked)))

    def _again(
        self,
        ref: str,
        request: views.ResumeRequest,
        again: Callable[[str, views.ResumeRequest], Awaitable[views.StartedRun]],
    ) -> views.StartedRun:
        """Ask for a run to go on; whether the tracker may keep values was said when it was started."""

        async def ask() -> views.StartedRun:
            run = await self.client.fetch(ref)
            asked = replace(
                request,
                headers=caller.headers_again(run, request.headers),
                benchmark_url=request.benchmark_url or caller.service_now(run),
            )
            allowed = bool(run.arguments.get("store_secrets", True))
            return await self._supplied(lambda: again(run.id, asked), allowed=allowed)

        return self.wait_for(ask())

    def regrade(self, ref: str, request: views.RegradeRequest) -> views.RegradeView:
        """A folder of tests is sent along; secrets only this machine has are supplied as for a retry."""

        async def ask() -> views.RegradeView:
            asked = await caller.with_tests(self.client, request)
            run = await self.client.fetch(ref)
            allowed = bool(run.arguments.get("store_secrets", True))
            return await self._supplied(lambda: self.client.regrade(run.id, asked), allowed=allowed)

        return self.wait_for(ask())

    def plan_job(self, request: views.JobRequest) -> views.JobPlan:
        async def ask() -> views.JobPlan:
            plan = await self.client.plan_job(await self._complete_job(request))
            return caller.job_as_if_supplied(plan) if request.template.store_secrets else plan

        return self.wait_for(ask())

    def start_job(self, request: views.JobRequest) -> views.StartedJob:
        async def ask() -> views.StartedJob:
            asked = await self._complete_job(request)
            allowed = request.template.store_secrets
            return await self._supplied(lambda: self.client.start_job(asked), allowed=allowed)

        return self.wait_for(ask())

    async def _complete_job(self, request: views.JobRequest) -> views.JobRequest:
        """A request that means the same to the tracker; its name is made of words the caller used."""
        scenarios = await sent_scenarios(self.client, request.scenarios)
        named = replace(request, name=job_name(request, time.time()), scenarios=scenarios)
        return await caller.complete_job(self.client, named)

    def resume_job(self, ref: str, change: views.JobChange | None = None) -> views.StartedJob:
        async def ask() -> views.StartedJob:
            job = await self.client.job(ref)
            asked = await caller.complete_job_change(self.client, change or views.JobChange(), job)
            asked = replace(asked, scenarios=await sent_scenarios(self.client, asked.scenarios))
            return await self._supplied(
                lambda: self.client.resume_job(job.id, asked), allowed=_may_be_kept(job)
            )

        return self.wait_for(ask())

    def retry_job(self, ref: str, request: views.JobRetry = views.JobRetry()) -> views.StartedJob:
        async def ask() -> views.StartedJob:
            job = await self.client.job(ref)
            asked = replace(request, headers=caller.job_headers_again(job, request.headers))
            return await self._supplied(
                lambda: self.client.retry_job(job.id, **changed(asked)), allowed=_may_be_kept(job)
            )

        return self.wait_for(ask())

    async def _supplied(self, ask: Callable[[], Awaitable[Started]], *, allowed: bool) -> Started:
        """Ask; when secrets are missing that this machine has, let the tracker keep them and ask again."""
        try:
            return await ask()
        except MissingSecretError as error:
            if not error.missing:
                raise
            notices: Sequence[str] = await caller.supply(self.client, error, allowed=allowed)
        started: Started = await ask()
        return replace(started, notices=[*notices, *started.notices])

    # Results

    def results(self, ref: str, request: views.ResultsWanted = views.ResultsWanted()) -> Json:
        async def ask() -> Json:
            return await self.client.results(ref, **changed(await self._with_headers(ref, request)))

        return self.wait_for(ask())

    def results_text(self, ref: str, request: views.ResultsWanted = views.ResultsWanted()) -> Iterator[str]:
        async def ask(target: Path) -> None:
            await self.client.download_results(ref, target, await self._with_headers(ref, request))

        with tempfile.TemporaryDirectory(prefix="valkyrie-results-") as folder:
            file = Path(folder) / "results.json"
            self.wait_for(ask(file))
            with file.open(encoding="utf-8", newline="\n") as lines:
                yield from lines

    def upload_results(
        self, ref: str, request: views.ResultsWanted = views.ResultsWanted()
    ) -> views.ResultsLink:
        async def ask() -> views.ResultsLink:
            return await self.client.upload_results(ref, **changed(await self._with_headers(ref, request)))

        return self.wait_for(ask())

    async def _with_headers(self, ref: str, request: views.ResultsWanted) -> views.ResultsWanted:
        """Headers for the service that scores some tasks; a whole run's score is known."""
        if request.task_ids is None:
            return request
        run = await self.client.fetch(ref)
        return replace(request, headers=caller.headers_again(run, request.headers))

    def shell(self, ref: str, task_id: str, k: int = 0) -> Sequence[str]:
        """A shell cannot be opened from here: the error says where, and what to type there."""

        async def ask() -> tuple[Sequence[str], Sequence[str]]:
            argv = await self.client.shell(ref, task_id, k)
            executors = (await self.client.queue()).executors
            return argv, sorted({executor.host for executor in executors if executor.host})

        argv, hosts = self.wait_for(ask())
        where = f"on {' or '.join(hosts)}" if hosts else f"where the executor of {self.client.url} runs"
        raise UserError(
            f"The sandbox of task {task_id!r} is {where}, not on this machine. Type there:\n"
            f"  {shlex.join(argv)}",
            cause="elsewhere",
        )

    # Benchmarks

    def benchmarks(self) -> Sequence[views.BenchmarkView]:
        """Return the tracker's, and the services of the caller's own config, which win."""
        own = {found.name: found for found in known_benchmarks() if found.source in ("custom", "registry")}
        theirs = self.wait_for(self.client.benchmarks())
        return [*(found for found in theirs if found.name not in own), *own.values()]

    def benchmark_tasks(self, request: views.TasksRequest) -> views.TasksView:
        """A folder is read here; everything else is asked of the tracker."""
        folder = caller.local_benchmark(request.benchmark, ignore_custom=request.ignore_custom_services)
        if folder is None or not folder.is_dir():
            return self.wait_for(self.client.benchmark_tasks(caller.with_service(request)))

        async def read() -> views.TasksView:
            benchmark = open_benchmark(str(folder.absolute()), BenchmarkRequest(headers=request.headers))
            try:
                return views.TasksView(
                    await benchmark.list_tasks(request.dataset), await benchmark.datasets()
                )
            finally:
                await benchmark.close()

        return self.wait_for(read())


def _may_be_kept(job: views.JobView) -> bool:
    """Return whether values may be kept by the tracker, as it was said when the job was started."""
    return all(run.arguments.get("store_secrets", True) for run in job.runs)
