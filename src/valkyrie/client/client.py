"""The public client, `ValkyrieClient`, with its verbs about jobs, agents, secrets and benchmarks."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import tempfile
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from valkyrie.client.connection import (
    PATIENT_S,
    Connection,
    SilenceLimits,
    TrackerCall,
    TrackerUnreachableError,
    path,
)
from valkyrie.client.events import job_events
from valkyrie.client.files import find_sources, pack_sources, write_outputs
from valkyrie.client.runs import RunCalls, changed, fields_of, params
from valkyrie.domain import DEFAULT_ORG, Json
from valkyrie.errors import BundleError, UnknownError, UsageError
from valkyrie.text import did_you_mean
from valkyrie.views import (
    AgentView,
    BenchmarkView,
    DiskView,
    IngestedRun,
    OutputsWanted,
    SecretView,
    TasksRequest,
    TasksView,
)
from valkyrie.views.jobs import (
    JobAgent,
    JobChange,
    JobFilter,
    JobPage,
    JobPlan,
    JobRequest,
    JobRetry,
    JobStop,
    JobView,
    StartedJob,
)

Pack = Callable[[Path], object]
LARGE = 1 << 20


@asynccontextmanager
async def packed(pack: Pack) -> AsyncIterator[Path]:
    """An archive made by `pack`, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as folder:
        archive = Path(folder) / "archive.zip"
        await asyncio.to_thread(pack, archive)
        yield archive


async def upload(connection: Connection, archive: Path) -> str:
    """Send an archive unless the tracker has it; how a request names it."""
    digest = await asyncio.to_thread(_sha256, archive)
    where = path("uploads", digest)
    if not await connection.exists(where):
        await put(connection, TrackerCall("PUT", where, file=archive))
    return f"upload:{digest}"


async def put(connection: Connection, call: TrackerCall) -> Any:
    """Send a file. A tracker that takes no more of it hangs up, and its refusal may be lost with the rest."""
    try:
        return await connection.ask(call)
    except TrackerUnreachableError as error:
        size = call.file.stat().st_size if call.file and error.sent else 0
        if size < LARGE:
            raise
        raise TrackerUnreachableError(
            f"{error} It may also be that {size:,} bytes are more than it takes (its VALKYRIE_UPLOAD_LIMIT).",
            sent=True,
        ) from None


async def upload_agent(connection: Connection, source: Path) -> str:
    """Send an agent's folder or zip; its contract is checked first, here."""
    from benchmark_runner.agent_bundle.bundle import pack, read_contract
    from benchmark_runner.agent_bundle.contract import load_contract

    if source.suffix == ".zip" and source.is_file():
        file, text = await asyncio.to_thread(read_contract, source)
        load_contract(text, where=f"{source}/{file}")
        return await upload(connection, source)
    if not source.is_dir():
        raise UsageError(
            f"{source} is no folder. An agent is a folder with a contract.yaml (`valk agent init NAME`)."
        )
    contract = await asyncio.to_thread(load_contract, source)
    async with packed(lambda target: pack(source, contract.name, target)) as archive:
        return await upload(connection, archive)


async def upload_benchmark(connection: Connection, source: Path) -> str:
    """Send a folder of tasks, or a zip of one."""
    from valkyrie.benchmarks.task_dir.benchmark import pack_benchmark

    if source.suffix == ".zip" and source.is_file():
        return await upload(connection, source)
    if not source.is_dir():
        raise UsageError(f"no folder {source}; --benchmark takes a name, or the path of a folder of tasks")
    async with packed(lambda target: pack_benchmark(source, target)) as archive:
        return await upload(connection, archive)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


# Verbs about the library of an organisation: agents, secrets, benchmarks, settings, as coroutines.


class LibraryCalls:
    """Agents, secrets and benchmarks of the caller's organisation."""

    _connection: Connection

    async def agents(self) -> Sequence[AgentView]:
        """Pushed agents by name."""
        return await self._connection.get(list[AgentView], TrackerCall("GET", path("agents")))

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
        async with packed(lambda target: pack(folder, name, target)) as archive:
            return await self.push_archive(archive, name, origin=origin)

    async def push_archive(self, archive: Path, name: str, *, origin: str | None = None) -> AgentView:
        """Send an agent that is an archive already."""
        call = TrackerCall("PUT", path("agents", name), params({"origin": origin}), file=archive)
        return self._connection.view(AgentView, await put(self._connection, call))

    async def remove_agent(self, name: str) -> None:
        """Forget a pushed agent; runs keep their own copy."""
        await self._check_agent(name)
        await self._connection.ask(TrackerCall("DELETE", path("agents", name)))

    async def download_agent(self, name: str, output_dir: Path) -> Path:
        """Unpack a pushed agent as `output_dir/<name>`, which must not exist."""
        from benchmark_runner.agent_bundle.bundle import unpack

        await self._check_agent(name)
        destination = output_dir / name
        if destination.exists() or destination.is_symlink():
            raise BundleError(f"{destination} exists already; nothing is overwritten. Choose another folder.")
        with tempfile.TemporaryDirectory(prefix="valkyrie-") as folder:
            archive = Path(folder) / f"{name}.zip"
            await self._connection.download(TrackerCall("GET", path("agents", name, "archive")), archive)
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
        return await upload_agent(self._connection, source)

    async def upload_benchmark(self, source: Path) -> str:
        """Send a folder of tasks (or its zip); the name to give `RunRequest.benchmark`."""
        return await upload_benchmark(self._connection, source)

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
        sources = list(dict.fromkeys(source for folder in folders for source in find_sources(folder)))
        names: dict[str, str] = {}
        wish = {"label": label, "dry_run": dry_run or None, "replace": replace or None}
        async with packed(lambda target: names.update(pack_sources(sources, target))) as archive:
            call = TrackerCall("PUT", path("ingest"), params(wish), file=archive)
            answer = await put(self._connection, call)
        found = self._connection.view(list[IngestedRun], answer)
        return [dataclasses.replace(one, file=names.get(one.file, one.file)) for one in found]

    async def secrets(self) -> Sequence[SecretView]:
        """Return names of the organisation's secrets; values are never given back."""
        return await self._connection.get(list[SecretView], TrackerCall("GET", path("secrets")))

    async def set_secret(self, name: str, value: str) -> None:
        """Keep a secret, encrypted, for the organisation."""
        await self._connection.ask(TrackerCall("PUT", path("secrets", name), body={"value": value}))

    async def remove_secret(self, name: str) -> None:
        """Forget a secret."""
        await self._connection.ask(TrackerCall("DELETE", path("secrets", name)))

    async def benchmarks(self) -> Sequence[BenchmarkView]:
        """Return the benchmarks the tracker knows by name."""
        return await self._connection.get(list[BenchmarkView], TrackerCall("GET", path("benchmarks")))

    async def benchmark_tasks(self, request: TasksRequest) -> TasksView:
        """Task ids of a benchmark, in its own order."""
        call = TrackerCall("POST", path("benchmarks", "tasks"), body=changed(request), repeatable=True)
        return await self._connection.get(TasksView, call)

    async def disk(self) -> DiskView:
        """Return where the tracker's bytes are."""
        return await self._connection.get(DiskView, TrackerCall("GET", path("disk")))

    async def executor_status(self) -> Json | None:
        """Return what the executor beside the tracker says of itself; None when there is none."""
        answer: Json | None = await self._connection.ask(TrackerCall("GET", path("executor")))
        return answer

    async def organisation(self) -> Json:
        """Settings of the organisation: bucket, region, log group, role."""
        return await self._connection.get(dict[str, Any], TrackerCall("GET", path("organisation")))

    async def update_organisation(self, **settings: Any) -> Json:
        """Change some of them."""
        call = TrackerCall("PATCH", path("organisation"), body=settings, repeatable=True)
        return await self._connection.get(dict[str, Any], call)

    async def set_credentials(self, credentials: Mapping[str, str]) -> None:
        """Hand the organisation's AWS keys over, once; they are encrypted at rest and never given back."""
        await self._connection.ask(
            TrackerCall("PUT", path("organisation", "credentials"), body=dict(credentials))
        )

    async def remove_credentials(self) -> None:
        """Forget them."""
        await self._connection.ask(TrackerCall("DELETE", path("organisation", "credentials")))


# Verbs about jobs, as coroutines.


class JobCalls:
    """Start several runs together, look at them, steer them.

    `ref` is a job's id, a unique prefix of it, or its name (of several jobs of that name the newest).
    """

    _connection: Connection

    async def plan_job(self, request: JobRequest) -> JobPlan:
        """Return what `start_job` would do, checked in full; starts nothing."""
        call = TrackerCall("POST", path("jobs", "plan"), body=_said(request), repeatable=True)
        return await self._connection.get(JobPlan, call)

    async def start_job(self, request: JobRequest, *, key: str | None = None) -> StartedJob:
        """Start a job. Two starts with the same `key` are one job, so it is safe to ask again."""
        call = TrackerCall(
            "POST",
            path("jobs"),
            body=_said(request),
            headers={"Idempotency-Key": key or str(uuid.uuid4())},
            repeatable=True,
        )
        return await self._connection.get(StartedJob, call)

    async def job(self, ref: str) -> JobView:
        """One job as it stands, with its runs."""
        return await self._connection.get(JobView, TrackerCall("GET", path("jobs", await self._named(ref))))

    async def jobs(self, query: JobFilter | None = None) -> JobPage:
        """Jobs that match, newest first, a page at a time: `cursor` of one page leads to the next."""
        query = query or JobFilter()
        asked = {
            "since": query.since,
            "states": list(query.states),
            "name": query.name,
            "limit": query.limit,
            "cursor": query.cursor,
        }
        return await self._connection.get(JobPage, TrackerCall("GET", path("jobs"), params(asked)))

    async def job_events(self, ref: str, *, after: int | None = None) -> AsyncGenerator[JobView, None]:
        """Yield the job now, then again after every change, until it ended (that view is the last).

        Goes on after interruptions. `after` is the version that is known already.
        """
        name = await self._named(ref)
        async with aclosing(job_events(self._connection, name, after=after)) as found:
            async for job in found:
                yield job
                if job.ended:
                    return

    @fields_of(JobStop)
    async def stop_job(self, ref: str, request: JobStop) -> JobView:
        """Pending trials of all its runs become STOPPED; running ones finish, unless `force` kills them."""
        call = TrackerCall("POST", path("jobs", await self._named(ref), "stop"), body=changed(request))
        return await self._connection.get(JobView, call)

    async def resume_job(self, ref: str, change: JobChange | None = None) -> StartedJob:
        """Go on with what was stopped or interrupted, perhaps with more agents, tasks or trials."""
        body = changed(change or JobChange())
        if change and change.agents:
            body["agents"] = _agents(change.agents)
        call = TrackerCall("POST", path("jobs", await self._named(ref), "resume"), body=body)
        return await self._connection.get(StartedJob, call)

    @fields_of(JobRetry)
    async def retry_job(self, ref: str, request: JobRetry) -> StartedJob:
        """As `resume_job`, and ERROR trials too (only of `category`, if given)."""
        call = TrackerCall("POST", path("jobs", await self._named(ref), "retry"), body=changed(request))
        return await self._connection.get(StartedJob, call)

    async def delete_job(self, ref: str) -> None:
        """Forget an ended job, its runs, and everything kept of them."""
        await self._connection.ask(TrackerCall("DELETE", path("jobs", await self._named(ref))))

    async def _named(self, ref: str) -> str:
        """A job's name as one part of a path; one that cannot be is looked up."""
        text = ref.strip()
        if not text:
            raise UsageError("A job is named by its id, the beginning of it, or its name.")
        if "/" not in text and text not in (".", ".."):
            return text
        found = (await self.jobs(JobFilter(name=text, limit=1))).jobs
        if not found:
            raise UnknownError(f"No job {text[:80]!r}. `valk job list --all` shows them.")
        return found[0].id


def _said(request: JobRequest) -> Json:
    """Return what a request says beyond its defaults."""
    template = changed(request.template)
    for name in ("agent", "model"):
        template.pop(name, None)  # of each run its own
    if not request.template.benchmark:
        template.pop("benchmark", None)
    return {**changed(request), "agents": _agents(request.agents), "template": template}


def _agents(agents: Sequence[JobAgent]) -> list[Json]:
    return [{name: value for name, value in asdict(one).items() if value} for one in agents]


# The public client.

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom the tracker takes us for."""

    org_id: str = DEFAULT_ORG
    org: str = DEFAULT_ORG
    """The organisation's name."""
    person: str | None = None
    key_id: str | None = None
    mode: str = "self-hosted"
    """self-hosted or hosted."""


class ValkyrieClient(RunCalls, JobCalls, LibraryCalls):
    """A tracker's verbs as coroutines and async iterators; made for `async with`.

    Errors are those of `valkyrie.errors`, of the class the tracker raised. Requests that may be done twice
    are repeated when the connection breaks; a start carries a key that makes it one of them.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT_S,
        patience: float = PATIENT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`timeout`: seconds one answer may take to begin. `patience`: seconds a stream waits for a tracker
        that went away before it gives up."""
        self._connection = Connection(
            url, api_key, timeout=timeout, limits=SilenceLimits.within(patience), transport=transport
        )

    def on_line(self, tell: Callable[[str | None], None]) -> None:
        """Call `tell` with why a stream of events is not heard any more, and with None when it is again."""
        self._connection.on_line = tell

    @classmethod
    def from_config(cls, *, timeout: float = TIMEOUT_S, patience: float = PATIENT_S) -> Self:
        """Return the tracker of environment or config file: `tracker_url` and `api_key`."""
        from valkyrie.config import values

        url = values.effective("tracker_url").value
        if not url:
            raise UsageError(
                "No tracker is configured: `valk config set tracker_url URL`, or set TRACKER_SERVICE_URL."
            )
        key = values.effective("api_key").value
        return cls(str(url), str(key) if key else None, timeout=timeout, patience=patience)

    def __repr__(self) -> str:
        return f"ValkyrieClient({self.url!r})"

    @property
    def url(self) -> str:
        """Return the tracker's address."""
        return self._connection.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._connection.close()

    async def health(self) -> Json:
        """Return what the tracker says of itself; needs no key."""
        return await self._connection.get(dict[str, Any], TrackerCall("GET", "/health"))

    async def me(self) -> Caller:
        """Return whom the key stands for."""
        return await self._connection.get(Caller, TrackerCall("GET", path("me")))

    async def init(self) -> Json:
        """Hosted mode: make the organisation of the key's tenant known."""
        return await self._connection.get(dict[str, Any], TrackerCall("POST", path("init"), repeatable=True))

    async def outputs(
        self,
        ref: str,
        destination: Path,
        *,
        task_ids: Sequence[str] | None = None,
        files: Sequence[str] | None = None,
    ) -> Sequence[Path]:
        """Write what was kept of each trial's last attempt to `destination/<task>/…`, archives unpacked.

        `files` names some of them, as patterns (`agent/*`). Everything is on disk, whole, before the first
        file of it appears.
        """
        call = TrackerCall(
            "POST",
            await self._path(ref, "outputs"),
            body=changed(OutputsWanted(task_ids, files)),
            repeatable=True,
        )
        with tempfile.TemporaryDirectory(prefix=".valkyrie-", dir=_existing(destination)) as folder:
            archive = Path(folder) / "outputs.tar"
            await self._connection.download(call, archive)
            return await asyncio.to_thread(write_outputs, archive, destination)


def _existing(folder: Path) -> Path:
    """Return the nearest folder above that exists: the archive is unpacked on the same disk."""
    return next(one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir())
