"""The verbs over HTTP: the same words as `LocalTracker`, answered by a tracker elsewhere."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from valkyrie.client import caller
from valkyrie.errors import UserError
from valkyrie.nouns import Json
from valkyrie.tracker.remote_jobs import RemoteJobs
from valkyrie.views import (
    AgentView,
    AttemptView,
    BenchmarkView,
    DiskView,
    ErrorGroup,
    GradingComparison,
    GradingView,
    IngestedRun,
    LogLine,
    LogQuery,
    PlanView,
    QueueView,
    RegradeRequest,
    RegradeView,
    ResultsLink,
    RunFilter,
    RunPage,
    RunRequest,
    RunView,
    SecretView,
    StartedRun,
    TasksRequest,
    TasksView,
    TrialFilter,
    TrialView,
)


class RemoteTracker(RemoteJobs):
    """Everything a person can ask, asked of a tracker."""

    # Runs

    def plan(self, request: RunRequest) -> PlanView:
        async def ask() -> PlanView:
            plan = await self._client.plan(await caller.complete(self._client, request))
            return caller.as_if_supplied(plan) if request.store_secrets else plan

        return self._run(ask())

    def start(self, request: RunRequest) -> StartedRun:
        async def ask() -> StartedRun:
            asked = await caller.complete(self._client, request)
            return await self._supplied(lambda: self._client.start(asked), allowed=request.store_secrets)

        return self._run(ask())

    def fetch(self, ref: str) -> RunView:
        return self._run(self._client.fetch(ref))

    def follow(self, ref: str, *, interval: float = 0.2) -> Iterator[RunView]:  # noqa: ARG002 - told, not asked
        return self._each(self._client.follow(ref))

    def list(self, query: RunFilter) -> RunPage:
        return self._run(self._client.list(query))

    def trials(self, ref: str, query: TrialFilter) -> tuple[Sequence[TrialView], int]:
        return self._run(self._client.trials(ref, query))

    def attempts(self, ref: str, task_id: str, k: int = 0) -> Sequence[AttemptView]:
        return self._run(self._client.attempts(ref, task_id, k))

    def errors(self, ref: str) -> Sequence[ErrorGroup]:
        return self._run(self._client.errors(ref))

    def stop(self, ref: str, *, force: bool = False, task_ids: Sequence[str] | None = None) -> RunView:
        return self._run(self._client.stop(ref, force=force, task_ids=task_ids))

    def resume(
        self,
        ref: str,
        *,
        concurrency: int | None = None,
        task_ids: Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
        benchmark_url: str | None = None,
    ) -> StartedRun:
        async def again(run: RunView) -> StartedRun:
            return await self._client.resume(
                run.id,
                concurrency=concurrency,
                task_ids=task_ids,
                headers=caller.headers_again(run, headers),
                benchmark_url=benchmark_url or caller.service_now(run),
            )

        return self._again(ref, again)

    def retry(
        self,
        ref: str,
        *,
        concurrency: int | None = None,
        task_ids: Sequence[str] | None = None,
        category: str | None = None,
        headers: Mapping[str, str] | None = None,
        from_scratch: bool = False,
        benchmark_url: str | None = None,
    ) -> StartedRun:
        async def again(run: RunView) -> StartedRun:
            return await self._client.retry(
                run.id,
                concurrency=concurrency,
                task_ids=task_ids,
                category=category,
                headers=caller.headers_again(run, headers),
                from_scratch=from_scratch,
                benchmark_url=benchmark_url or caller.service_now(run),
            )

        return self._again(ref, again)

    def _again(self, ref: str, again: Callable[[RunView], Awaitable[StartedRun]]) -> StartedRun:
        """Whether values may be kept by the tracker was said when the run was started."""

        async def ask() -> StartedRun:
            run = await self._client.fetch(ref)
            allowed = run.arguments.get("store_secrets", True)
            return await self._supplied(lambda: again(run), allowed=bool(allowed))

        return self._run(ask())

    def regrade(self, ref: str, request: RegradeRequest) -> RegradeView:
        """A folder of tests is sent along; secrets only this machine has are supplied as for a retry."""

        async def ask() -> RegradeView:
            asked = await caller.with_tests(self._client, request)
            run = await self._client.fetch(ref)
            allowed = bool(run.arguments.get("store_secrets", True))
            return await self._supplied(lambda: self._client.regrade(run.id, asked), allowed=allowed)

        return self._run(ask())

    def gradings(self, ref: str) -> Sequence[GradingView]:
        return self._run(self._client.gradings(ref))

    def use_grading(self, ref: str, number: int) -> RunView:
        return self._run(self._client.use_grading(ref, number))

    def compare_gradings(self, ref: str, a: int, b: int) -> GradingComparison:
        return self._run(self._client.compare_gradings(ref, a, b))

    def update(
        self,
        ref: str,
        *,
        concurrency: int | None = None,
        label: str | None = None,
        max_cost: float | None = None,
        priority: int | None = None,
        abort_after: int | None = None,
    ) -> RunView:
        return self._run(
            self._client.update(
                ref,
                concurrency=concurrency,
                label=label,
                max_cost=max_cost,
                priority=priority,
                abort_after=abort_after,
            )
        )

    def wait(self, ref: str, *, timeout: float | None = None) -> RunView:
        return self._run(self._client.wait(ref, timeout=timeout))

    def results(
        self,
        ref: str,
        *,
        task_ids: Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        async def ask() -> Json:
            again = await self._scored_with(ref, task_ids, headers)
            return await self._client.results(ref, task_ids=task_ids, headers=again)

        return self._run(ask())

    def results_text(
        self,
        ref: str,
        *,
        task_ids: Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[str]:
        async def ask(target: Path) -> None:
            again = await self._scored_with(ref, task_ids, headers)
            await self._client.download_results(ref, target, task_ids=task_ids, headers=again)

        with tempfile.TemporaryDirectory(prefix="valkyrie-results-") as folder:
            file = Path(folder) / "results.json"
            self._run(ask(file))
            with file.open(encoding="utf-8", newline="\n") as lines:
                yield from lines

    def upload_results(
        self,
        ref: str,
        *,
        task_ids: Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ResultsLink:
        async def ask() -> ResultsLink:
            again = await self._scored_with(ref, task_ids, headers)
            return await self._client.upload_results(ref, task_ids=task_ids, headers=again)

        return self._run(ask())

    async def _scored_with(
        self, ref: str, task_ids: Sequence[str] | None, headers: Mapping[str, str] | None
    ) -> Mapping[str, str] | None:
        """Headers for the service that scores some tasks; a whole run's score is known."""
        if task_ids is None:
            return headers
        return caller.headers_again(await self._client.fetch(ref), headers)

    def outputs(
        self,
        ref: str,
        destination: Path,
        *,
        task_ids: Sequence[str] | None = None,
        files: Sequence[str] | None = None,
    ) -> Sequence[Path]:
        return self._run(self._client.outputs(ref, destination, task_ids=task_ids, files=files))

    def logs(
        self, ref: str, task_id: str, *, k: int = 0, attempt: int | None = None, follow: bool = False
    ) -> Iterator[str]:
        return self._each(self._client.logs(ref, task_id, k=k, attempt=attempt, follow=follow))

    def run_logs(self, ref: str, query: LogQuery) -> Iterator[LogLine]:
        return self._each(self._client.run_logs(ref, query))

    def delete(self, ref: str) -> None:
        self._run(self._client.delete(ref))

    def shell(self, ref: str, task_id: str, k: int = 0) -> Sequence[str]:
        """A shell cannot be opened from here: the error says where, and what to type there."""

        async def ask() -> tuple[Sequence[str], Sequence[str]]:
            argv = await self._client.shell(ref, task_id, k)
            executors = (await self._client.queue()).executors
            return argv, sorted({executor.host for executor in executors if executor.host})

        argv, hosts = self._run(ask())
        where = f"on {' or '.join(hosts)}" if hosts else f"where the executor of {self._client.url} runs"
        raise UserError(
            f"The sandbox of task {task_id!r} is {where}, not on this machine. Type there:\n"
            f"  {shlex.join(argv)}",
            cause="elsewhere",
        )

    def queue(self) -> QueueView:
        return self._run(self._client.queue())

    def ingest(
        self,
        folders: Sequence[Path],
        *,
        label: str | None = None,
        dry_run: bool = False,
        replace: bool = False,
    ) -> Sequence[IngestedRun]:
        """Results that came about elsewhere; on a store, `evals.ingesting` takes them."""
        return self._run(self._client.ingest(folders, label=label, dry_run=dry_run, replace=replace))

    # Agents, secrets, benchmarks

    def agents(self) -> Sequence[AgentView]:
        return self._run(self._client.agents())

    def push_agent(self, folder: Path, name: str | None = None, *, origin: str | None = None) -> AgentView:
        return self._run(self._client.push_agent(folder, name, origin=origin))

    def remove_agent(self, name: str) -> None:
        self._run(self._client.remove_agent(name))

    def download_agent(self, name: str, output_dir: Path) -> Path:
        return self._run(self._client.download_agent(name, output_dir))

    def secrets(self) -> Sequence[SecretView]:
        return self._run(self._client.secrets())

    def set_secret(self, name: str, value: str) -> None:
        self._run(self._client.set_secret(name, value))

    def remove_secret(self, name: str) -> None:
        self._run(self._client.remove_secret(name))

    def benchmarks(self) -> Sequence[BenchmarkView]:
        """The tracker's, and the services of the caller's own config, which win."""
        from valkyrie.benchmarks.listing import known_benchmarks

        own = {found.name: found for found in known_benchmarks() if found.source in ("custom", "registry")}
        theirs = self._run(self._client.benchmarks())
        return [*(found for found in theirs if found.name not in own), *own.values()]

    def benchmark_tasks(self, request: TasksRequest) -> TasksView:
        """A folder is read here; everything else is asked of the tracker."""
        folder = caller.local_benchmark(request.benchmark, ignore_custom=request.ignore_custom_services)
        if folder is None or not folder.is_dir():
            return self._run(self._client.benchmark_tasks(caller.with_service(request)))

        async def read() -> TasksView:
            from valkyrie.benchmarks import open_benchmark
            from valkyrie.benchmarks.asking import Asking

            benchmark = open_benchmark(str(folder.absolute()), Asking(headers=request.headers))
            try:
                return TasksView(await benchmark.list_tasks(request.dataset), await benchmark.datasets())
            finally:
                await benchmark.close()

        return self._run(read())

    # The machine

    def disk(self) -> DiskView:
        return self._run(self._client.disk())

    def executor_status(self) -> Json | None:
        return self._run(self._client.executor_status())
