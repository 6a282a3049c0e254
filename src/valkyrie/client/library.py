"""Verbs about the library of an organisation: agents, secrets, benchmarks, settings, as coroutines."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from valkyrie.client import uploads
from valkyrie.client.connection import Call, Connection, path
from valkyrie.client.runs import changed, params
from valkyrie.errors import BundleError, UnknownError, UsageError
from valkyrie.nouns import Json
from valkyrie.suggest import did_you_mean
from valkyrie.views import (
    AgentView,
    BenchmarkView,
    DiskView,
    IngestedRun,
    SecretView,
    TasksRequest,
    TasksView,
)


class LibraryCalls:
    """Agents, secrets and benchmarks of the caller's organisation."""

    _connection: Connection

    async def agents(self) -> Sequence[AgentView]:
        """Pushed agents by name."""
        return await self._connection.get(list[AgentView], Call("GET", path("agents")))

    async def push_agent(
        self, folder: Path, name: str | None = None, *, origin: str | None = None
    ) -> AgentView:
        """Send an agent's folder, over an earlier one of that name; its contract is checked first."""
        from benchmark_runner.agent_bundle.bundle import pack
        from benchmark_runner.agent_bundle.contract import load_contract
        from valkyrie.agents.library import check_name

        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder. An agent is a folder with a contract.yaml.")
        name = check_name(name or folder.resolve().name)
        load_contract(folder)
        async with uploads.packed(lambda target: pack(folder, name, target)) as archive:
            return await self.push_archive(archive, name, origin=origin)

    async def push_archive(self, archive: Path, name: str, *, origin: str | None = None) -> AgentView:
        """Send an agent that is an archive already."""
        call = Call("PUT", path("agents", name), params({"origin": origin}), file=archive)
        return self._connection.view(AgentView, await uploads.put(self._connection, call))

    async def remove_agent(self, name: str) -> None:
        """Forget a pushed agent; runs keep their own copy."""
        await self._check_agent(name)
        await self._connection.ask(Call("DELETE", path("agents", name)))

    async def download_agent(self, name: str, output_dir: Path) -> Path:
        """Unpack a pushed agent as `output_dir/<name>`, which must not exist."""
        from benchmark_runner.agent_bundle.bundle import unpack

        await self._check_agent(name)
        destination = output_dir / name
        if destination.exists() or destination.is_symlink():
            raise BundleError(f"{destination} exists already; nothing is overwritten. Choose another folder.")
        with tempfile.TemporaryDirectory(prefix="valkyrie-") as folder:
            archive = Path(folder) / f"{name}.zip"
            await self._connection.download(Call("GET", path("agents", name, "archive")), archive)
            await asyncio.to_thread(unpack, archive, destination)
        return destination

    async def _check_agent(self, name: str) -> None:
        """Refuse here what cannot be part of a path, in the words the tracker has for it."""
        from benchmark_runner.agent_bundle.bundle import NAME

        if not NAME.fullmatch(name):
            known = [agent.name for agent in await self.agents()]
            hint = did_you_mean(name, known) or f" Pushed: {', '.join(known) or 'none'}."
            raise UnknownError(f"no pushed agent is called {name!r}.{hint}")

    async def upload_agent(self, source: Path) -> str:
        """Send an agent's folder or zip for one run only; the name to give `RunRequest.agent`."""
        return await uploads.upload_agent(self._connection, source)

    async def upload_benchmark(self, source: Path) -> str:
        """Send a folder of tasks (or its zip); the name to give `RunRequest.benchmark`."""
        return await uploads.upload_benchmark(self._connection, source)

    async def ingest(
        self,
        folders: Sequence[Path],
        *,
        label: str | None = None,
        dry_run: bool = False,
        replace: bool = False,
    ) -> Sequence[IngestedRun]:
        """Send results that came about elsewhere: folders of evals' results.jsonl, or of runners' runs.

        The same results are stored once. `replace` takes a run again that says something else now.
        """
        from valkyrie.client.result_sources import find_sources, pack_sources

        sources = list(dict.fromkeys(source for folder in folders for source in find_sources(folder)))
        names: dict[str, str] = {}
        wish = {"label": label, "dry_run": dry_run or None, "replace": replace or None}
        async with uploads.packed(lambda target: names.update(pack_sources(sources, target))) as archive:
            call = Call("PUT", path("ingest"), params(wish), file=archive)
            answer = await uploads.put(self._connection, call)
        found = self._connection.view(list[IngestedRun], answer)
        return [dataclasses.replace(one, file=names.get(one.file, one.file)) for one in found]

    async def secrets(self) -> Sequence[SecretView]:
        """Names of the organisation's secrets; values are never given back."""
        return await self._connection.get(list[SecretView], Call("GET", path("secrets")))

    async def set_secret(self, name: str, value: str) -> None:
        """Keep a secret, encrypted, for the organisation."""
        await self._connection.ask(Call("PUT", path("secrets", name), body={"value": value}))

    async def remove_secret(self, name: str) -> None:
        """Forget a secret."""
        await self._connection.ask(Call("DELETE", path("secrets", name)))

    async def benchmarks(self) -> Sequence[BenchmarkView]:
        """Return the benchmarks the tracker knows by name."""
        return await self._connection.get(list[BenchmarkView], Call("GET", path("benchmarks")))

    async def benchmark_tasks(self, request: TasksRequest) -> TasksView:
        """Task ids of a benchmark, in its own order."""
        call = Call("POST", path("benchmarks", "tasks"), body=changed(request), repeatable=True)
        return await self._connection.get(TasksView, call)

    async def disk(self) -> DiskView:
        """Return where the tracker's bytes are."""
        return await self._connection.get(DiskView, Call("GET", path("disk")))

    async def executor_status(self) -> Json | None:
        """Return what the executor beside the tracker says of itself; None when there is none."""
        answer: Json | None = await self._connection.ask(Call("GET", path("executor")))
        return answer

    async def organisation(self) -> Json:
        """Settings of the organisation: bucket, region, log group, role."""
        return await self._connection.get(dict[str, Any], Call("GET", path("organisation")))

    async def update_organisation(self, **settings: Any) -> Json:
        """Change some of them."""
        call = Call("PATCH", path("organisation"), body=settings, repeatable=True)
        return await self._connection.get(dict[str, Any], call)

    async def set_credentials(self, credentials: Mapping[str, str]) -> None:
        """Hand the organisation's AWS keys over, once; they are encrypted at rest and never given back."""
        await self._connection.ask(Call("PUT", path("organisation", "credentials"), body=dict(credentials)))

    async def remove_credentials(self) -> None:
        """Forget them."""
        await self._connection.ask(Call("DELETE", path("organisation", "credentials")))
