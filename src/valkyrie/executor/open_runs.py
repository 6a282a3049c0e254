"""Open runs of an executor: fetch what each needs, keep its context, conclude it after its last trial."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxes.errors import SandboxError
from sandboxes.masker import Masker
from sandboxes.protocol import SandboxProvider
from sandboxes.registry import open_provider
from sandboxes.types import DaytonaProviderConfig
from valkyrie import agents, benchmarks
from valkyrie.agents.layers import LayerCache
from valkyrie.agents.protocol import Agent
from valkyrie.artifact_store.protocol import frozen_agent_key, upload_key
from valkyrie.benchmarks.protocol import Benchmark, computed, confirmed_score, grades_of
from valkyrie.config import values as config
from valkyrie.config.schema import networks_in
from valkyrie.domain import Identity, Json, RunState, content_digest
from valkyrie.errors import InfrastructureError, StoreError, ValkyrieError
from valkyrie.executor.proxies import ModelProxies, SandboxProxies, proxy_folder
from valkyrie.plan import Settings
from valkyrie.secrets import delivery
from valkyrie.secrets.delivery import SEALED
from valkyrie.store import notifications, regrades, runs, trials
from valkyrie.store.journal import Writer, log
from valkyrie.store.layout import DataFolder
from valkyrie.trajectory.transcript import configured_limit
from valkyrie.trial.attempt import classify
from valkyrie.trial.context import AgentEnvironment, RunContext
from valkyrie.trial.storage import Carry, KeepLimits, RemoteStorage

if TYPE_CHECKING:
    from valkyrie.artifact_store.protocol import LogKeeper
    from valkyrie.secrets.delivery import Sealer
    from valkyrie.store import Connection, Store
    from valkyrie.store.rows import RunRow
    from valkyrie.tenants import Organisation


@dataclass(frozen=True, slots=True)
class TenantAccess:
    """Embedded: the user's own things. Of a server: each organisation's, opened with the server's key."""

    data: DataFolder
    store: Store
    server: bool = False
    sealer: Sealer | None = None
    _unopened: set[str] = field(default_factory=set)
    """Runs whose values we could not open; said once."""

    def organisation(self, org_id: str, credentials: Mapping[str, str]) -> Organisation:
        """The things of a run's organisation; `credentials` were handed over with the run."""
        from valkyrie.tenants.organisation import open_organisation

        return open_organisation(
            Identity(org_id=org_id, org=org_id),
            self.data,
            store=self.store if self.server else None,
            sealer=self.sealer,
            credentials=credentials,
        )

    def sealed(self, connection: Connection, run_id: str) -> Mapping[str, str] | None:
        """Return what was sealed for a run; None when nothing was, or the key it was sealed with is not
        here."""
        found = runs.handed(connection, run_id) if self.sealer else None
        if not found or not self.sealer:
            return None
        try:
            return self.sealer.open(found, f"run:{run_id}")
        except StoreError as error:
            if run_id not in self._unopened:
                self._unopened.add(run_id)
                log(str(error))
            return None


# Threads that carry artifacts to their places: one that does not answer holds up its own runs only.

THREADS = 64
OF_ONE_PLACE = 8
"""So many threads one place may hold; what comes after them waits without one."""


class TransferPool:
    """One pool for all places, and each place's share of it."""

    def __init__(self, threads: int = THREADS, of_one_place: int = OF_ONE_PLACE) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="artifacts")
        self._shares: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(of_one_place)
        )

    def to(self, place: Json) -> Carry:
        """Return what carries to and from one place."""
        return partial(self._carry, content_digest(place))

    async def _carry(self, place: str, work: Callable[[], None]) -> None:
        share, loop = self._shares[place], asyncio.get_running_loop()

        def returned(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before a place that did not answer
                loop.call_soon_threadsafe(share.release)

        await share.acquire()
        carrying = self._pool.submit(work)
        carrying.add_done_callback(returned)
        try:
            # A thread that has begun cannot be called back: its share is free when it returns, not before.
            await asyncio.shield(asyncio.wrap_future(carrying))
        except asyncio.CancelledError:
            carrying.cancel()
            raise

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


# What a run needs on this machine before it can go on here, and where it puts what it leaves.


class ArtifactFetcher:
    """Opens runs' places, and fetches from them what another machine has put there. Blocking."""

    def __init__(self, tenant_access: TenantAccess) -> None:
        self._tenant_access = tenant_access
        self._data = tenant_access.data
        self._keepers: dict[str, LogKeeper] = {}
        self._carriers = TransferPool()

    def organisation(self, org_id: str, values: Mapping[str, str]) -> Organisation:
        """The things of a run's organisation; `values` were handed over with the run."""
        return self._tenant_access.organisation(org_id, delivery.credentials_of(values))

    def away(self, row: RunRow, values: Mapping[str, str]) -> RemoteStorage:
        """Return where else the run's attempts put what they leave."""
        if not row.place:
            return RemoteStorage()
        organisation = self.organisation(row.org_id, values)
        places: Json = row.place
        artifacts, logs = places.get("artifacts"), places.get("logs")
        return RemoteStorage(
            organisation.artifacts(artifacts) if artifacts else None,
            self._log_keeper(row.org_id, logs, organisation) if logs else None,
            self._carriers.to({"org": row.org_id, **(artifacts or {})}),
        )

    def _log_keeper(self, org_id: str, place: Json, organisation: Organisation) -> LogKeeper | None:
        """One keeper for all runs of an organisation: it has a thread of its own."""
        key = f"{org_id} {content_digest(place)}"
        if key not in self._keepers and (made := organisation.logs(place)):
            self._keepers[key] = made
        return self._keepers.get(key)

    def source(self, row: RunRow, away: RemoteStorage) -> Json:
        """The benchmark's source, once the run's agent and an uploaded benchmark are on this machine."""
        self._fetch_agent(row, away)
        return self._here(row.benchmark_source, away)

    def tests(self, run_id: str, source: Json, away: RemoteStorage) -> Json:
        """Return the source of a regrade's tests, once they are on this machine as they were frozen."""
        digest = source.get("upload")
        archive = self._data.run(run_id).regrade_tests(str(digest))
        if digest and not Path(source["path"]).is_dir() and archive.exists():
            return {**source, "path": str(benchmarks.unpack_upload(archive, self._data.cache, digest))}
        return self._here(source, away)

    def _here(self, source: Json, away: RemoteStorage) -> Json:
        digest = source.get("upload")
        if not digest or Path(source["path"]).is_dir():
            return source
        if not away.artifacts:
            raise _not_here(f"The uploaded benchmark {source['name']}")
        with tempfile.TemporaryDirectory(dir=self._data.make().root) as part:
            file = Path(part) / "benchmark.zip"
            away.artifacts.get(upload_key(digest), file)
            return {**source, "path": str(benchmarks.unpack_upload(file, self._data.cache, digest))}

    def _fetch_agent(self, row: RunRow, away: RemoteStorage) -> None:
        name = row.agent_frozen.get("archive")
        archive = self._data.run(row.id).agent / str(name)
        if not name or archive.exists():
            return
        if away.artifacts:
            archive.parent.mkdir(parents=True, exist_ok=True)
            away.artifacts.get(frozen_agent_key(row.id, row.agent), archive)
        elif self._tenant_access.server:
            raise _not_here(f"The run's copy of agent {row.agent}")

    def close(self) -> None:
        """Ship what is left of logs; carry nothing more."""
        self._carriers.close()
        for keeper in self._keepers.values():
            keeper.close()


def _not_here(what: str) -> InfrastructureError:
    return InfrastructureError(
        f"{what} is not on the executor's machine: a tracker and executors on several machines need a common "
        "place for artifacts (S3_BUCKET, or artifacts_folder)."
    )


# The context of an executor's open runs: opened when first seen, concluded when their last trial ended.

LOOK_AGAIN_S = 5.0


class OpenRuns:
    """Every open run's context, its secrets in memory only."""

    def __init__(self, tenant_access: TenantAccess, writer: Writer, home: str) -> None:
        self._tenant_access = tenant_access
        self._data = tenant_access.data
        self._writer = writer
        self._home = home
        self._contexts: dict[str, RunContext] = {}
        self._waiting: dict[str, float] = {}
        self._secrets: dict[str, Mapping[str, str]] = {}
        self._providers: dict[str, SandboxProvider] = {}
        self.on_ended: Callable[[], None] = lambda: None
        """Called when a run has ended: someone may have to be told."""
        self._sandbox_proxies = SandboxProxies(home)
        self._graders: defaultdict[str, dict[int, Benchmark]] = defaultdict(dict)
        """What regrades grade with, by run and number."""
        self._opening: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._fetcher = ArtifactFetcher(tenant_access)
        self.layers = LayerCache(tenant_access.data.cache / "layers", labels={"Home": home})
        self._model_proxies = ModelProxies(
            proxy_folder(tenant_access.data.root / "doors" / home), guarded=tenant_access.server
        )

    def ready(self) -> Collection[str]:
        return self._contexts.keys()

    def waiting(self) -> Collection[str]:
        now = time.monotonic()
        self._waiting = {run_id: until for run_id, until in self._waiting.items() if until > now}
        return self._waiting.keys()

    def __getitem__(self, run_id: str) -> RunContext:
        return self._contexts[run_id]

    def give_secrets(self, run_id: str, values: Mapping[str, str]) -> None:
        """Take the values a person resolved for a run; an open run uses them at once."""
        self._secrets[run_id] = dict(values)
        self._waiting.pop(run_id, None)
        if context := self._contexts.get(run_id):
            # Attempts under way still hold the old values: those stay hidden as well.
            hidden = [*delivery.unspeakable(values), *context.secrets.values()]
            context.give_secrets(
                {name: values.get(name, old) for name, old in context.secrets.items()}, hidden
            )

    async def provider(self, name: str, settings: Mapping[str, str] | None = None) -> SandboxProvider:
        """One provider object per name and settings; what an earlier executor left behind is reaped when it
        is made."""
        key = f"{name} {content_digest(dict(settings))}" if settings else name
        # A second one would reap the sandboxes of the first; and a remote one that does not answer, which
        # anyone can name, must keep nobody else's runs waiting.
        async with self._opening[key]:
            if key not in self._providers:
                provider = open_provider(
                    name, self._data.sandboxes(name), settings or config.provider_options(name)
                )
                try:
                    await provider.reap({"Home": self._home})
                except BaseException:
                    await provider.close()
                    raise
                self._providers[key] = provider
            return self._providers[key]

    async def open(self, run_id: str) -> None:
        try:
            row = await self._writer.call(lambda connection: runs.get(connection, run_id))
            await self._unseal(run_id)
            if missing := self._missing(row):
                await self._wait_for(run_id, missing)
                return
            self._contexts[run_id] = await self._make(row)
        except Exception as error:  # one run that cannot be opened must not end the others
            if isinstance(error, StoreError) and error.cause != SEALED:
                raise
            await self._fail(run_id, classify(error, self._masker(run_id)).message)

    async def _unseal(self, run_id: str) -> None:
        """Take up what a server has sealed for the run by now: it may have been handed other values, for
        another address, since it was last open here."""
        if self._tenant_access.server:
            found = await self._writer.call(lambda connection: self._tenant_access.sealed(connection, run_id))
            if found and found != self._secrets.get(run_id):
                self.give_secrets(run_id, found)

    async def handed(self, run_id: str) -> Mapping[str, str] | None:
        """Return what was handed over for a run, as far as it is known here."""
        await self._unseal(run_id)
        return self._secrets.get(run_id)

    def organisation(self, org_id: str, values: Mapping[str, str]) -> Organisation:
        """The things of a run's organisation; `values` were handed over with the run."""
        return self._fetcher.organisation(org_id, values)

    def _missing(self, row: RunRow) -> list[str]:
        return [name for name in delivery.wanted(row.arguments) if name not in self._secrets.get(row.id, {})]

    async def _make(self, row: RunRow) -> RunContext:
        arguments: Json = row.arguments
        folder = self._data.run(row.id)
        secrets = self._secrets.get(row.id, {})
        provider = await self.provider(row.provider, delivery.settings_of(secrets))
        away = await asyncio.to_thread(self._fetcher.away, row, secrets)
        source = await asyncio.to_thread(self._fetcher.source, row, away)
        access = await self._access(row, provider)
        agent = agents.open_frozen(row.agent_frozen, folder.agent, self._data.bundles)
        settings = Settings(**arguments["settings"])
        context = RunContext(
            run_id=row.id,
            dataset=row.dataset,
            model=row.model,
            benchmark=benchmarks.open_frozen(source, delivery.given_to_benchmark(secrets, arguments), access),
            agent=agent,
            provider=provider,
            settings=settings,
            keep_sandbox=bool(arguments.get("keep_sandbox")),
            max_attempts=arguments.get("max_attempts"),
            secrets={},
            folder=folder,
            home=self._home,
            hidden=(access.DAYTONA_API_KEY,) if access else (),
            away=away,
            agent_environment=self._agent_environment(agent, settings),
            keep_limits=KeepLimits.configured(),
            trajectory_limit=configured_limit(),
            allowed_networks=networks_in(str(config.effective("allowed_networks").value or "")),
        )
        context.told = bool(row.notify)
        given = delivery.given_to_benchmark(secrets, arguments)
        context.open_grader = partial(self._grader, row.id, away, given)
        named = {name: secrets[name] for name in arguments.get("secrets", {})}
        context.give_secrets(named, hidden=delivery.unspeakable(secrets))
        return context

    async def _grader(
        self, run_id: str, away: RemoteStorage, given: Mapping[str, str], number: int
    ) -> Benchmark | None:
        """Return what a regrade grades with, opened once; None where that is the run's own benchmark."""
        async with self._opening[f"{run_id} {number}"]:
            if number in self._graders[run_id]:
                return self._graders[run_id][number]
            row = await self._writer.call(lambda connection: regrades.of_number(connection, run_id, number))
            source = row.arguments.get("source") if row else None
            if source is None:
                return None
            found: Json = await asyncio.to_thread(self._fetcher.tests, run_id, source, away)
            opened = benchmarks.open_frozen(found, given)
            self._graders[run_id][number] = opened
            return opened

    def _agent_environment(self, agent: Agent, settings: Settings) -> AgentEnvironment:
        """Return what the run's sandboxes are given: the agent's layer, a door to the model it is to use."""
        url = settings.model_url
        # Without isolation there is no wall, and no door is needed.
        proxy = self._model_proxies.to(url) if url and settings.provider != "process" else None
        return AgentEnvironment(self.layers, agent.layer, url, proxy)

    async def _access(self, row: RunRow, provider: SandboxProvider) -> DaytonaProviderConfig | None:
        """Return how the run's benchmark reaches its sandboxes; None for benchmarks that are given them."""
        from_where = row.benchmark_source.get("reaches_sandboxes")
        if from_where is None:
            return None
        if settings := delivery.settings_of(self._secrets.get(row.id, {})):
            return DaytonaProviderConfig.model_validate(settings)
        host_image = bool(row.arguments["settings"].get("host_image"))
        return await self._sandbox_proxies.open(
            row.id, provider, public=from_where == "public", host_image=host_image
        )

    def _masker(self, run_id: str) -> Masker | None:
        values = self._secrets.get(run_id)
        return Masker(delivery.unspeakable(values)) if values else None

    async def _wait_for(self, run_id: str, missing: Sequence[str]) -> None:
        # What is sealed in the store may come at any time; what a person supplies comes through the door.
        self._waiting[run_id] = time.monotonic() + (LOOK_AGAIN_S if self._tenant_access.server else math.inf)
        names = ", ".join(map(delivery.described, missing))
        note = f"waits for {names}; `valk run resume {run_id[:8]}` supplies it"

        def write(connection: Connection) -> None:
            if runs.get(connection, run_id).note != note:
                runs.set_values(connection, run_id, note=note)

        await self._writer.call(write)

    async def _fail(self, run_id: str, message: str) -> None:
        def write(connection: Connection) -> None:
            row = runs.locked(connection, run_id)
            runs.set_values(
                connection,
                run_id,
                state=RunState.ERROR.value,
                error=message,
                finished_at=time.time(),
                endings=row.endings + 1,
                **runs.worked(row, time.time()),
            )
            notifications.plan_ending(connection, runs.get(connection, run_id), time.time())
            if not notifications.unfinished(connection, run_id):
                runs.forget_handed(connection, run_id)

        await self._writer.call(write)
        await self._let_go(run_id)

    async def conclude(self, run_id: str) -> None:
        # Set aside first: nothing is leased for a run whose context is being closed. One that is reopened
        # meanwhile finds its secrets still here.
        context = self._set_aside(run_id)
        masker = context.masker if context else self._masker(run_id)
        final: Json | None = None
        graded: float | None = None
        confirmed: float | None = None
        error: str | None = None
        try:
            row = await self._writer.call(lambda connection: runs.get(connection, run_id))
            await self._unseal(run_id)
            if not context and (missing := self._missing(row)):
                await self._wait_for(run_id, missing)
                return
            await self._writer.call(partial(_settle_regrade, run_id))
            benchmark = context.benchmark if context else self._benchmark(row)
            final, graded, confirmed = await self._score(benchmark, run_id, row.dataset)
            final = masker.data(final) if masker else final
        except StoreError:
            raise
        except Exception as problem:  # noqa: BLE001 - one run's benchmark must not end the other runs
            error = f"The final score could not be computed: {classify(problem, masker).message}"
        await self._end(run_id, final, graded, error, confirmed)
        if context and run_id not in self._contexts:
            await self._close(context)

    def _benchmark(self, row: RunRow) -> Benchmark:
        given = delivery.given_to_benchmark(self._secrets.get(row.id, {}), row.arguments)
        return benchmarks.open_frozen(row.benchmark_source, given)

    def _set_aside(self, run_id: str) -> RunContext | None:
        """The run's context, no longer among the ready unless sandboxes are kept in it."""
        context = self._contexts.get(run_id)
        if context and not context.kept:
            del self._contexts[run_id]
        return context

    async def _end(
        self,
        run_id: str,
        final: Json | None,
        graded: float | None,
        error: str | None,
        confirmed: float | None = None,
    ) -> None:
        """Write score and last state; what the benchmark computed may be more than the store can take."""

        def write(connection: Connection) -> bool:
            before = runs.version(connection, run_id)
            ended = runs.conclude(
                connection,
                run_id,
                time.time(),
                final=final,
                graded=graded,
                error=error,
                confirmed=confirmed,
            )
            if ended and before != runs.version(connection, run_id):
                if runs.was_regraded(connection, run_id):
                    regrades.finish(connection, run_id, time.time())
                # In the same transaction: whom to tell of it is not forgotten in a crash.
                notifications.plan_ending(connection, runs.get(connection, run_id), time.time())
                if not notifications.unfinished(connection, run_id):
                    runs.forget_handed(connection, run_id)
            return ended

        try:
            ended = await self._writer.call(write)
        except StoreError:
            raise
        except Exception as problem:  # noqa: BLE001 - as above: only the store's own failure is everyone's
            await self._fail(run_id, f"The final score could not be stored: {classify(problem).message}")
            ended = True
        self.on_ended()
        if ended:
            await self._let_go(run_id)

    async def _let_go(self, run_id: str) -> None:
        """Forget what was handed over for an ended run, unless someone is still to be told of it."""

        def over(connection: Connection) -> bool:
            return runs.version(connection, run_id) is None or notifications.settled(connection, run_id)

        if await self._writer.call(over):
            self.settled(run_id)

    def settled(self, run_id: str) -> None:
        """Nobody is to be told of the ended run any more: what was handed over for it is let go."""
        if run_id not in self._contexts:
            self._secrets.pop(run_id, None)

    async def _score(
        self, benchmark: Benchmark, run_id: str, dataset: str
    ) -> tuple[Json, float | None, float | None]:
        grades = await self._writer.call(lambda connection: grades_of(trials.each_grade(connection, run_id)))
        final, graded = await computed(benchmark, grades, dataset)
        return final, graded, await confirmed_score(benchmark, grades, dataset)

    @property
    def kept(self) -> int:
        return sum(len(context.kept) for context in self._contexts.values())

    async def shell(self, run_id: str, task_id: str, k: int) -> list[str] | None:
        """The command that opens a shell in a kept sandbox, where the agent worked."""
        context = self._contexts.get(run_id)
        sandbox = context.kept.get((task_id, k)) if context else None
        if context is None or sandbox is None:
            return None
        task = await context.benchmark.describe(task_id, context.dataset)
        return sandbox.shell_argv(task.placed(sandbox.image_defaults).cwd)

    async def forget(self, run_id: str) -> None:
        """A person is done with a run: its kept sandboxes end."""
        context = self._contexts.pop(run_id, None)
        self._secrets.pop(run_id, None)
        self._waiting.pop(run_id, None)
        if context:
            kept, context.kept = context.kept, {}
            for sandbox in kept.values():
                with contextlib.suppress(SandboxError):  # reaped when an executor starts
                    await context.provider.delete_sandbox(sandbox.id)
            await self._close(context)

    async def close(self) -> None:
        """End every sandbox and let go of everything."""
        for run_id in list(self._contexts):
            await self.forget(run_id)
        await self._sandbox_proxies.close()
        await self._model_proxies.clear()
        await asyncio.to_thread(self._fetcher.close)
        for name, provider in self._providers.items():
            try:
                await provider.close()
            except (SandboxError, OSError) as error:
                sys.stderr.write(f"closing {name}: {error}\n")  # reaped when an executor starts

    async def sweep(self) -> None:
        """Reap what earlier executors left, of every provider that was used here.

        One that cannot be opened (any more) says so to the runs that want it, not to all others.
        """
        root: Path = self._data.root / "sandboxes"
        for folder in sorted(root.iterdir()) if root.exists() else ():
            try:
                await self.provider(folder.name)
            except (SandboxError, ValkyrieError, OSError) as error:
                sys.stderr.write(f"what is left of {folder.name} sandboxes was not removed: {error}\n")
        await self._model_proxies.clear()

    async def _close(self, context: RunContext) -> None:
        """Let go of a run: its key, and the sandboxes its service made for itself and left."""
        if self._sandbox_proxies.shut(context.run_id):
            with contextlib.suppress(SandboxError, OSError):  # reaped when an executor starts
                await context.provider.reap({"Home": self._home, "Id": context.run_id})
        for benchmark in (context.benchmark, *self._graders.pop(context.run_id, {}).values()):
            await _close_benchmark(benchmark, context)


def _settle_regrade(run_id: str, connection: Connection) -> None:
    if runs.was_regraded(connection, run_id):
        regrades.settle(connection, run_id)


async def _close_benchmark(benchmark: Benchmark, context: RunContext) -> None:
    try:
        await benchmark.close()
    except Exception as error:  # noqa: BLE001 - other people's code; the run has ended, and its score stands
        sys.stderr.write(f"closing benchmark {benchmark.name}: {classify(error, context.masker).message}\n")
