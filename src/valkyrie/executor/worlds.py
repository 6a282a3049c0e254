"""The worlds of an executor's open runs: opened when first seen, concluded when their last trial ended."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes.errors import SandboxError
from sandboxes.protocol import SandboxProvider
from sandboxes.registry import open_provider
from valkyrie import agents, benchmarks, handed
from valkyrie.benchmarks.protocol import Benchmark
from valkyrie.digest import content_digest
from valkyrie.errors import StoreError, ValkyrieError
from valkyrie.executor.doors import SandboxDoors
from valkyrie.nouns import Grade, Json, RunState, TrialState
from valkyrie.plan import Settings
from valkyrie.secrets.mask import Masker
from valkyrie.store import runs
from valkyrie.store.layout import DataFolder
from valkyrie.store.writer import Writer
from valkyrie.trial.failures import classify
from valkyrie.trial.world import World

if TYPE_CHECKING:
    from sandboxes.configs import DaytonaProviderConfig
    from valkyrie.store import Connection


class RunWorlds:
    """Every open run's world, its secrets in memory only."""

    def __init__(self, data: DataFolder, writer: Writer, home: str) -> None:
        self._data = data
        self._writer = writer
        self._home = home
        self._worlds: dict[str, World] = {}
        self._waiting: set[str] = set()
        self._secrets: dict[str, Mapping[str, str]] = {}
        self._providers: dict[str, SandboxProvider] = {}
        self._doors = SandboxDoors(home)
        self._opening = asyncio.Lock()

    def ready(self) -> Collection[str]:
        return self._worlds.keys()

    def waiting(self) -> Collection[str]:
        return self._waiting

    def __getitem__(self, run_id: str) -> World:
        return self._worlds[run_id]

    def give_secrets(self, run_id: str, values: Mapping[str, str]) -> None:
        """What a person resolved for a run; an open world takes it up at once."""
        self._secrets[run_id] = dict(values)
        self._waiting.discard(run_id)
        if world := self._worlds.get(run_id):
            # Attempts under way still hold the old values: those stay hidden as well.
            hidden = [*handed.unspeakable(values), *world.secrets.values()]
            world.give_secrets({name: values.get(name, old) for name, old in world.secrets.items()}, hidden)

    async def provider(self, name: str, settings: Mapping[str, str] | None = None) -> SandboxProvider:
        """One provider object per name and settings; what an earlier executor left behind is reaped when it
        is made."""
        key = f"{name} {content_digest(dict(settings))}" if settings else name
        async with self._opening:  # a second one would reap the sandboxes of the first
            if key not in self._providers:
                provider = open_provider(name, self._data.sandboxes(name), settings)
                await provider.reap({"Home": self._home})
                self._providers[key] = provider
            return self._providers[key]

    async def open(self, run_id: str) -> None:
        try:
            row = await self._writer.call(lambda connection: runs.get(connection, run_id))
            if missing := self._missing(row):
                await self._wait_for(run_id, missing)
                return
            self._worlds[run_id] = await self._make(row)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one run that cannot be opened must not end the others
            await self._fail(run_id, classify(error, self._masker(run_id)).message)

    def _missing(self, row: Any) -> list[str]:
        """What the run must be handed and was not."""
        return [name for name in handed.wanted(row.arguments) if name not in self._secrets.get(row.id, {})]

    async def _make(self, row: Any) -> World:
        arguments: Json = row.arguments
        folder = self._data.run(row.id)
        secrets = self._secrets.get(row.id, {})
        provider = await self.provider(row.provider, handed.settings_of(secrets))
        access = await self._access(row, provider)
        world = World(
            run_id=row.id,
            dataset=row.dataset,
            model=row.model,
            benchmark=benchmarks.open_frozen(row.benchmark_source, secrets, access),
            agent=agents.open_frozen(row.agent_frozen, folder.agent, self._data.bundles),
            provider=provider,
            settings=Settings(**arguments["settings"]),
            keep_sandbox=bool(arguments.get("keep_sandbox")),
            max_attempts=arguments.get("max_attempts"),
            secrets={},
            folder=folder,
            home=self._home,
            hidden=(access.DAYTONA_API_KEY,) if access else (),
        )
        named = {name: secrets[name] for name in arguments.get("secrets", {})}
        world.give_secrets(named, hidden=handed.unspeakable(secrets))
        return world

    async def _access(self, row: Any, provider: SandboxProvider) -> DaytonaProviderConfig | None:
        """How the run's benchmark reaches its sandboxes; None for benchmarks that are given them."""
        from_where = row.benchmark_source.get("reaches_sandboxes")
        if from_where is None:
            return None
        if settings := handed.settings_of(self._secrets.get(row.id, {})):
            from sandboxes.configs import DaytonaProviderConfig

            return DaytonaProviderConfig.model_validate(settings)
        host_image = bool(row.arguments["settings"].get("host_image"))
        return await self._doors.open(row.id, provider, public=from_where == "public", host_image=host_image)

    def _masker(self, run_id: str) -> Masker | None:
        values = self._secrets.get(run_id)
        return Masker(handed.unspeakable(values)) if values else None

    async def _wait_for(self, run_id: str, missing: Sequence[str]) -> None:
        self._waiting.add(run_id)
        names = ", ".join(map(handed.described, missing))
        note = f"waits for {names}; `valk run resume {run_id[:8]}` supplies it"
        await self._writer.call(lambda connection: runs.set_values(connection, run_id, note=note))

    async def _fail(self, run_id: str, message: str) -> None:
        def write(connection: Connection) -> None:
            runs.set_values(
                connection, run_id, state=RunState.ERROR.value, error=message, finished_at=time.time()
            )

        await self._writer.call(write)

    async def conclude(self, run_id: str) -> None:
        # Set aside first: nothing is leased for a run whose world is being closed. One that is reopened
        # meanwhile finds its secrets still here.
        world = self._set_aside(run_id)
        masker = world.masker if world else self._masker(run_id)
        final: Json | None = None
        graded: float | None = None
        error: str | None = None
        try:
            row = await self._writer.call(lambda connection: runs.get(connection, run_id))
            if not world and (missing := self._missing(row)):
                await self._wait_for(run_id, missing)
                return
            benchmark = world.benchmark if world else self._benchmark(row)
            final, graded = await self._score(benchmark, run_id, row.dataset)
            final = masker.data(final) if masker else final
        except StoreError:
            raise
        except Exception as problem:  # noqa: BLE001 - one run's benchmark must not end the other runs
            error = f"The final score could not be computed: {classify(problem, masker).message}"
        await self._end(run_id, final, graded, error)
        if world and run_id not in self._worlds:
            await self._close(world)

    def _benchmark(self, row: Any) -> Benchmark:
        return benchmarks.open_frozen(row.benchmark_source, self._secrets.get(row.id, {}))

    def _set_aside(self, run_id: str) -> World | None:
        """The run's world, no longer among the ready unless sandboxes are kept in it."""
        world = self._worlds.get(run_id)
        if world and not world.kept:
            del self._worlds[run_id]
        return world

    async def _end(self, run_id: str, final: Json | None, graded: float | None, error: str | None) -> None:
        """Write score and last state; what the benchmark computed may be more than the store can take."""

        def write(connection: Connection) -> bool:
            return runs.conclude(connection, run_id, time.time(), final=final, graded=graded, error=error)

        try:
            ended = await self._writer.call(write)
        except StoreError:
            raise
        except Exception as problem:  # noqa: BLE001 - as above: only the store's own failure is everyone's
            await self._fail(run_id, f"The final score could not be stored: {classify(problem).message}")
            ended = True
        if ended and run_id not in self._worlds:
            self._secrets.pop(run_id, None)

    async def _score(self, benchmark: Benchmark, run_id: str, dataset: str) -> tuple[Json, float | None]:
        grades = await self._writer.call(lambda connection: _grades(connection, run_id))
        final = await benchmark.final_score(grades, dataset)
        evaluation = {"final_score": final.score, "properties": final.properties}
        if all(all(found) for found in grades.values()):
            return evaluation, final.score
        only = {task: [grade for grade in found if grade] for task, found in grades.items()}
        only = {task: found for task, found in only.items() if found}
        graded = await benchmark.final_score(only, dataset) if only else None
        return evaluation, graded.score if graded else None

    @property
    def kept(self) -> int:
        """Sandboxes that stay for a person to look into."""
        return sum(len(world.kept) for world in self._worlds.values())

    async def shell(self, run_id: str, task_id: str, k: int) -> list[str] | None:
        """The command that opens a shell in a kept sandbox, where the agent worked."""
        world = self._worlds.get(run_id)
        sandbox = world.kept.get((task_id, k)) if world else None
        if world is None or sandbox is None:
            return None
        task = await world.benchmark.describe(task_id, world.dataset)
        return sandbox.shell_argv(task.cwd)

    async def forget(self, run_id: str) -> None:
        """A person is done with a run: its kept sandboxes end."""
        world = self._worlds.pop(run_id, None)
        self._secrets.pop(run_id, None)
        self._waiting.discard(run_id)
        if world:
            kept, world.kept = world.kept, {}
            for sandbox in kept.values():
                with contextlib.suppress(SandboxError):  # reaped when an executor starts
                    await world.provider.delete_sandbox(sandbox.id)
            await self._close(world)

    async def close(self) -> None:
        """End every sandbox and let go of everything."""
        for run_id in list(self._worlds):
            await self.forget(run_id)
        await self._doors.close()
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

    async def _close(self, world: World) -> None:
        """Let go of a run: its key, and the sandboxes its service made for itself and left."""
        if self._doors.shut(world.run_id):
            with contextlib.suppress(SandboxError, OSError):  # reaped when an executor starts
                await world.provider.reap({"Home": self._home, "Id": world.run_id})
        await _close_benchmark(world)


async def _close_benchmark(world: World) -> None:
    try:
        await world.benchmark.close()
    except Exception as error:  # noqa: BLE001 - other people's code; the run has ended, and its score stands
        sys.stderr.write(
            f"closing benchmark {world.benchmark.name}: {classify(error, world.masker).message}\n"
        )


def _grades(connection: Connection, run_id: str) -> dict[str, list[Grade | None]]:
    found: dict[str, list[Grade | None]] = {}
    for row in runs.each_grade(connection, run_id):
        graded = row.state == TrialState.FINISHED
        grade = Grade(row.score, row.passed, row.result or {}) if graded else None
        found.setdefault(row.task_id, []).append(grade)
    return found
