"""The public client, `ValkyrieClient`: the verbs of a tracker as coroutines and async iterators."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from benchmark_runner.agent_bundle.bundle import NAME, pack, read_contract, unpack
from benchmark_runner.agent_bundle.contract import load_contract
from valkyrie import views
from valkyrie.agents.library import check_name
from valkyrie.benchmarks.task_dir.upload import pack_upload
from valkyrie.client.connection import (
    PATIENT_S,
    Connection,
    Params,
    SilenceLimits,
    TrackerCall,
    TrackerUnreachableError,
    changed,
    fields_of,
    params,
    path,
)
from valkyrie.client.events import (
    RunChanged,
    RunEvent,
    log_lines,
    log_text,
    read_job_event,
    read_run_event,
    stream_events,
)
from valkyrie.client.files import find_sources, pack_sources, write_outputs
from valkyrie.config import values
from valkyrie.domain import DEFAULT_ORG, Json, RunState, may_be_id
from valkyrie.errors import (
    BundleError,
    InfrastructureError,
    StoreError,
    UnknownError,
    UsageError,
    UserError,
)
from valkyrie.text import did_you_mean

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 60.0
LARGE = 1 << 20
LOOK_EVERY_S = 5.0
NOBODY_WORKS_S = 60.0
"""How long `wait` hopes for an executor of the tracker's to come back."""

View = TypeVar("View")


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


class ValkyrieClient:
    """A tracker's verbs as coroutines and async iterators; made for `async with`.

    Errors are those of `valkyrie.errors`, of the class the tracker raised. Requests that may be done twice
    are repeated when the connection breaks; a start carries a key that makes it one of them.

    The `ref` of a run is its id or a unique prefix of it, the name of a job of one run, JOB/AGENT, or
    `latest`: the run you started last. The `ref` of a job is its id, a unique prefix of it, or its name (of
    several jobs of that name the newest).
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

    @classmethod
    def from_config(cls, *, timeout: float = TIMEOUT_S, patience: float = PATIENT_S) -> Self:
        """Return the tracker of environment or config file: `tracker_url` and `api_key`."""
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

    def on_line(self, tell: Callable[[str | None], None]) -> None:
        """Call `tell` with why a stream of events is not heard any more, and with None when it is again."""
        self._connection.on_line = tell

    async def _get(self, kind: type[View], where: str, query: Params = ()) -> View:
        return await self._connection.get(kind, TrackerCall("GET", where, query))

    async def _post(
        self, kind: type[View], where: str, body: Json | None = None, *, repeatable: bool = False
    ) -> View:
        return await self._connection.get(kind, TrackerCall("POST", where, body=body, repeatable=repeatable))

    async def _start(self, kind: type[View], where: str, body: Json, key: str | None) -> View:
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        call = TrackerCall("POST", where, body=body, headers=headers, repeatable=True)
        return await self._connection.get(kind, call)

    async def _delete(self, where: str) -> None:
        await self._connection.ask(TrackerCall("DELETE", where))

    # The tracker and its organisation

    async def health(self) -> Json:
        """Return what the tracker says of itself; needs no key."""
        return await self._get(dict[str, Any], "/health")

    async def me(self) -> Caller:
        """Return whom the key stands for."""
        return await self._get(Caller, path("me"))

    async def init(self) -> Json:
        """Hosted mode: make the organisation of the key's tenant known."""
        return await self._post(dict[str, Any], path("init"), repeatable=True)

    async def organisation(self) -> Json:
        """Settings of the organisation: bucket, region, log group, role."""
        return await self._get(dict[str, Any], path("organisation"))

    async def update_organisation(self, **settings: Any) -> Json:
        """Change some of them."""
        call = TrackerCall("PATCH", path("organisation"), body=settings, repeatable=True)
        return await self._connection.get(dict[str, Any], call)

    async def set_credentials(self, credentials: Mapping[str, str]) -> None:
        """Hand the organisation's AWS keys over, once; they are encrypted at rest and never given back."""
        where = path("organisation", "credentials")
        await self._connection.ask(TrackerCall("PUT", where, body=dict(credentials)))

    async def remove_credentials(self) -> None:
        """Forget them."""
        await self._delete(path("organisation", "credentials"))

    async def disk(self) -> views.DiskView:
        """Return where the tracker's bytes are."""
        return await self._get(views.DiskView, path("disk"))

    async def executor_status(self) -> Json | None:
        """Return what the executor beside the tracker says of itself; None when there is none."""
        answer: Json | None = await self._connection.ask(TrackerCall("GET", path("executor")))
        return answer

    async def queue(self) -> views.QueueView:
        """Open runs in the order they are served, and the executors that live."""
        return await self._get(views.QueueView, path("queue"))

    # Runs

    async def plan(self, request: views.RunRequest) -> views.PlanView:
        """Return what `start` would do, checked in full; starts nothing."""
        return await self._post(views.PlanView, path("runs", "plan"), changed(request), repeatable=True)

    async def start(self, request: views.RunRequest, *, key: str | None = None) -> views.StartedRun:
        """Start a run. Two starts with the same `key` are one run, so it is safe to ask again."""
        return await self._start(views.StartedRun, path("runs"), changed(request), key)

    async def fetch(self, ref: str) -> views.RunView:
        """One run as it stands."""
        word = ref.strip()
        if may_be_id(word):
            return await self._get(views.RunView, path("runs", word))
        if not word:
            raise UsageError("A run is named by its id, a job's name, JOB/AGENT or latest.")
        return await self._get(views.RunView, path("runs", "named"), params({"ref": word}))

    async def _path(self, ref: str, *parts: str) -> str:
        """Return the path of a run, or of a part of it."""
        return path("runs", await self._run_word(ref), *parts)

    async def _run_word(self, ref: str) -> str:
        """Return the run's name as one part of a path: what may not be one is asked for, and its id taken."""
        word = ref.strip()
        return word if may_be_id(word) else (await self.fetch(word)).id

    async def events(
        self, ref: str, *, trials: bool = True, after: int | None = None
    ) -> AsyncGenerator[RunEvent, None]:
        """Changes of the run and, if wanted, of its trials, until it ended; goes on after interruptions.

        `after` is the version of the last event that is known already.
        """
        call = TrackerCall(
            "GET", await self._path(ref, "events"), [("trials", "true" if trials else "false")]
        )
        events: AsyncGenerator[RunEvent, None] = stream_events(self._connection, call, read_run_event, after)
        async with aclosing(events) as found:
            async for event in found:
                yield event

    async def follow(self, ref: str) -> AsyncGenerator[views.RunView, None]:
        """Yield the run now, then again after every change, until it ended (that view is the last)."""
        told = False
        try:
            async with aclosing(self.events(ref, trials=False)) as events:
                async for event in events:
                    if isinstance(event, RunChanged):
                        told = True
                        yield event.run
                        if RunState(event.run.state).terminal:
                            return
        except UnknownError:
            if not told:
                raise  # else it was deleted meanwhile: nothing more will happen to it

    async def wait(self, ref: str, *, timeout: float | None = None) -> views.RunView:
        """Return when the run ended; TimeoutError when it did not in time."""
        run = await self.fetch(ref)
        try:
            async with asyncio.timeout(timeout):
                return await self._ended(run)
        except TimeoutError:
            raise TimeoutError(f"Run {run.id[:8]} did not end within {timeout:g} s; it goes on.") from None

    async def _ended(self, run: views.RunView) -> views.RunView:
        """Changes come as events; that nobody works on the run is seen by looking."""
        worked_at = time.monotonic()
        async with aclosing(self.follow(run.id)) as told:
            coming = asyncio.ensure_future(_next(told))
            try:
                while not RunState(run.state).terminal:
                    await asyncio.wait({coming}, timeout=LOOK_EVERY_S)
                    if coming.done():
                        run = coming.result() or await self.fetch(run.id)
                        coming = asyncio.ensure_future(_next(told))
                    else:
                        run = await self._look(run)
                    if run.executor == "alive":
                        worked_at = time.monotonic()
                    elif time.monotonic() - worked_at > NOBODY_WORKS_S:
                        note = run.note or "no executor of the tracker is at work"
                        raise UserError(f"Run {run.id[:8]} will not end by itself: {note}.")
            finally:
                coming.cancel()
                await asyncio.wait({coming})
        return run

    async def _look(self, run: views.RunView) -> views.RunView:
        """Return the run now, or as it was: when the tracker cannot say, the stream waits for it."""
        try:
            return await self.fetch(run.id)
        except (InfrastructureError, StoreError):
            return run

    async def list(self, query: views.RunFilter | None = None) -> views.RunPage:
        """Runs that match, a page at a time: `cursor` of one page leads to the next."""
        asked = changed(query or views.RunFilter())
        order = {} if asked.pop("newest_first", True) else {"order": "asc"}
        return await self._get(views.RunPage, path("runs"), params({**asked, **order}))

    async def trials(
        self, ref: str, query: views.TrialFilter | None = None
    ) -> tuple[Sequence[views.TrialView], int]:
        """Trials that match, and how many match in all."""
        asked = params(changed(query or views.TrialFilter()))
        answer = await self._get(dict[str, Any], await self._path(ref, "trials"), asked)
        rows = self._connection.view(list[views.TrialView], answer.get("trials"))
        return rows, self._connection.view(int, answer.get("total"))

    async def attempts(self, ref: str, task_id: str, k: int = 0) -> Sequence[views.AttemptView]:
        """Return every attempt of one trial, oldest first."""
        query = params({"task_id": task_id, "k": k})
        return await self._get(list[views.AttemptView], await self._path(ref, "attempts"), query)

    async def errors(self, ref: str) -> Sequence[views.ErrorGroup]:
        """Return the run's open errors, alike ones together."""
        return await self._get(list[views.ErrorGroup], await self._path(ref, "errors"))

    @fields_of(views.StopRequest)
    async def stop(self, ref: str, request: views.StopRequest) -> views.RunView:
        """Pending trials become STOPPED; running ones finish, unless `force` kills them."""
        return await self._post(views.RunView, await self._path(ref, "stop"), changed(request))

    @fields_of(views.ResumeRequest)
    async def resume(self, ref: str, request: views.ResumeRequest) -> views.StartedRun:
        """STOPPED trials run again; what was interrupted goes on. Headers are not stored: give them again."""
        return await self._post(views.StartedRun, await self._path(ref, "resume"), changed(request))

    @fields_of(views.RetryRequest)
    async def retry(self, ref: str, request: views.RetryRequest) -> views.StartedRun:
        """As `resume`, and ERROR trials too (only of `category`, if given)."""
        return await self._post(views.StartedRun, await self._path(ref, "retry"), changed(request))

    @fields_of(views.UpdateRequest)
    async def update(self, ref: str, request: views.UpdateRequest) -> views.RunView:
        """Change a live run."""
        # Setting the same values twice changes nothing.
        call = TrackerCall("PATCH", await self._path(ref), body=changed(request), repeatable=True)
        return await self._connection.get(views.RunView, call)

    async def delete(self, ref: str) -> None:
        """Forget an ended run and everything kept of it."""
        await self._delete(await self._path(ref))

    async def regrade(self, ref: str, request: views.RegradeRequest | None = None) -> views.RegradeView:
        """Grade the kept work of an ended run's trials again, without running agents.

        `tests` is the name of a benchmark, or `upload:<digest>` of a folder that was uploaded.
        """
        body = changed(request or views.RegradeRequest())
        return await self._post(views.RegradeView, await self._path(ref, "regrade"), body)

    async def gradings(self, ref: str) -> Sequence[views.GradingView]:
        """Return the run's gradings by number; 0 is the one its own trials made."""
        return await self._get(list[views.GradingView], await self._path(ref, "gradings"))

    async def use_grading(self, ref: str, number: int) -> views.RunView:
        """Make one grading the run's own: verdicts, counters and final score."""
        where = await self._path(ref, "gradings", str(number), "use")
        return await self._post(views.RunView, where, repeatable=True)

    async def compare_gradings(self, ref: str, a: int, b: int) -> views.GradingComparison:
        """Return which trials two gradings of the run judge differently."""
        where = await self._path(ref, "gradings", "compare")
        return await self._get(views.GradingComparison, where, params({"a": a, "b": b}))

    @fields_of(views.ResultsWanted)
    async def results(self, ref: str, request: views.ResultsWanted) -> Json:
        """Return the results file's content; their service scores some tasks anew, with the headers."""
        where = await self._path(ref, "results")
        return await self._post(dict[str, Any], where, changed(request), repeatable=True)

    async def download_results(
        self, ref: str, target: Path, request: views.ResultsWanted = views.ResultsWanted()
    ) -> None:
        """Write the results file to `target` as it comes; it may be larger than memory."""
        call = TrackerCall("POST", await self._path(ref, "results"), body=changed(request), repeatable=True)
        await self._connection.download(call, target)

    @fields_of(views.ResultsWanted)
    async def upload_results(self, ref: str, request: views.ResultsWanted) -> views.ResultsLink:
        """Put the results file where the tracker keeps artifacts."""
        where = await self._path(ref, "results", "upload")
        return await self._post(views.ResultsLink, where, changed(request), repeatable=True)

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
        body = changed(views.OutputsWanted(task_ids, files))
        call = TrackerCall("POST", await self._path(ref, "outputs"), body=body, repeatable=True)
        with tempfile.TemporaryDirectory(prefix=".valkyrie-", dir=_existing(destination)) as folder:
            archive = Path(folder) / "outputs.tar"
            await self._connection.download(call, archive)
            return await asyncio.to_thread(write_outputs, archive, destination)

    async def logs(
        self, ref: str, task_id: str, *, k: int = 0, attempt: int | None = None, follow: bool = False
    ) -> AsyncGenerator[str, None]:
        """An attempt's log (the last one's unless said), piece by piece; `follow` goes on until it ended."""
        ref = await self._run_word(ref)
        if attempt is None and (found := await self.attempts(ref, task_id, k)):
            attempt = found[-1].number  # the same one when it has to be asked for again
        asked = {"task_id": task_id, "k": k, "attempt": attempt, "follow": follow or None}
        call = TrackerCall("GET", await self._path(ref, "log"), params(asked))
        async with aclosing(log_text(self._connection, call)) as pieces:
            async for piece in pieces:
                yield piece

    async def run_logs(
        self, ref: str, query: views.LogQuery | None = None
    ) -> AsyncGenerator[views.LogLine, None]:
        """Logs of many trials, those of each one's last attempt unless said."""
        where = await self._path(ref, "logs")
        call = TrackerCall("POST", where, body=changed(query or views.LogQuery()), repeatable=True)
        async with aclosing(log_lines(self._connection, call)) as pieces:
            async for piece in pieces:
                yield piece

    async def shell(self, ref: str, task_id: str, k: int = 0) -> Sequence[str]:
        """Return the command that opens a shell in a kept sandbox, on the machine the sandbox is on."""
        query = params({"task_id": task_id, "k": k})
        answer = await self._get(dict[str, Any], await self._path(ref, "shell"), query)
        return self._connection.view(list[str], answer.get("argv"))

    # Jobs: several runs started together

    async def plan_job(self, request: views.JobRequest) -> views.JobPlan:
        """Return what `start_job` would do, checked in full; starts nothing."""
        return await self._post(views.JobPlan, path("jobs", "plan"), _said(request), repeatable=True)

    async def start_job(self, request: views.JobRequest, *, key: str | None = None) -> views.StartedJob:
        """Start a job. Two starts with the same `key` are one job, so it is safe to ask again."""
        return await self._start(views.StartedJob, path("jobs"), _said(request), key)

    async def job(self, ref: str) -> views.JobView:
        """One job as it stands, with its runs."""
        return await self._get(views.JobView, await self._job_path(ref))

    async def jobs(self, query: views.JobFilter | None = None) -> views.JobPage:
        """Jobs that match, newest first, a page at a time: `cursor` of one page leads to the next."""
        return await self._get(views.JobPage, path("jobs"), params(changed(query or views.JobFilter())))

    async def job_events(self, ref: str, *, after: int | None = None) -> AsyncGenerator[views.JobView, None]:
        """Yield the job now, then again after every change, until it ended (that view is the last).

        Goes on after interruptions. `after` is the version that is known already.
        """
        call = TrackerCall("GET", await self._job_path(ref, "events"))
        async with aclosing(stream_events(self._connection, call, read_job_event, after)) as found:
            async for job in found:
                yield job
                if job.ended:
                    return

    @fields_of(views.JobStop)
    async def stop_job(self, ref: str, request: views.JobStop) -> views.JobView:
        """Pending trials of all its runs become STOPPED; running ones finish, unless `force` kills them."""
        return await self._post(views.JobView, await self._job_path(ref, "stop"), changed(request))

    async def resume_job(self, ref: str, change: views.JobChange | None = None) -> views.StartedJob:
        """Go on with what was stopped or interrupted, perhaps with more agents, tasks or trials."""
        body = changed(change or views.JobChange())
        if change and change.agents:
            body["agents"] = _agents(change.agents)
        return await self._post(views.StartedJob, await self._job_path(ref, "resume"), body)

    @fields_of(views.JobRetry)
    async def retry_job(self, ref: str, request: views.JobRetry) -> views.StartedJob:
        """As `resume_job`, and ERROR trials too (only of `category`, if given)."""
        return await self._post(views.StartedJob, await self._job_path(ref, "retry"), changed(request))

    async def delete_job(self, ref: str) -> None:
        """Forget an ended job, its runs, and everything kept of them."""
        await self._delete(await self._job_path(ref))

    async def _job_path(self, ref: str, *parts: str) -> str:
        """Return the path of a job; one whose name can be no part of a path is looked up."""
        text = ref.strip()
        if not text:
            raise UsageError("A job is named by its id, the beginning of it, or its name.")
        if "/" in text or text in (".", ".."):
            found = (await self.jobs(views.JobFilter(name=text, limit=1))).jobs
            if not found:
                raise UnknownError(f"No job {text[:80]!r}. `valk job list --all` shows them.")
            text = found[0].id
        return path("jobs", text, *parts)

    # Agents, secrets, benchmarks, and results that came about elsewhere

    async def agents(self) -> Sequence[views.AgentView]:
        """Pushed agents by name."""
        return await self._get(list[views.AgentView], path("agents"))

    async def push_agent(
        self, folder: Path, name: str | None = None, *, origin: str | None = None
    ) -> views.AgentView:
        """Send an agent's folder, over an earlier one of that name; its contract is checked first."""
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder. An agent is a folder with a contract.yaml.")
        name = check_name(name or folder.resolve().name)
        load_contract(folder)
        async with _packed(lambda target: pack(folder, name, target)) as archive:
            return await self.push_archive(archive, name, origin=origin)

    async def push_archive(self, archive: Path, name: str, *, origin: str | None = None) -> views.AgentView:
        """Send an agent that is an archive already."""
        call = TrackerCall("PUT", path("agents", name), params({"origin": origin}), file=archive)
        return self._connection.view(views.AgentView, await self._put(call))

    async def remove_agent(self, name: str) -> None:
        """Forget a pushed agent; runs keep their own copy."""
        await self._check_agent(name)
        await self._delete(path("agents", name))

    async def download_agent(self, name: str, output_dir: Path) -> Path:
        """Unpack a pushed agent as `output_dir/<name>`, which must not exist."""
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
        if not NAME.fullmatch(name):
            known = [agent.name for agent in await self.agents()]
            hint = did_you_mean(name, known) or f" Pushed: {', '.join(known) or 'none'}."
            raise UnknownError(f"no pushed agent is called {name!r}.{hint}")

    async def upload_agent(self, source: Path) -> str:
        """Send an agent's folder or zip for one run only; the name to give `RunRequest.agent`."""
        if source.suffix == ".zip" and source.is_file():
            file, text = await asyncio.to_thread(read_contract, source)
            load_contract(text, where=f"{source}/{file}")
            return await self._upload(source)
        if not source.is_dir():
            raise UsageError(
                f"{source} is no folder. An agent is a folder with a contract.yaml (`valk agent init NAME`)."
            )
        contract = await asyncio.to_thread(load_contract, source)
        async with _packed(lambda target: pack(source, contract.name, target)) as archive:
            return await self._upload(archive)

    async def upload_benchmark(self, source: Path) -> str:
        """Send a folder of tasks (or its zip); the name to give `RunRequest.benchmark`."""
        if source.suffix == ".zip" and source.is_file():
            return await self._upload(source)
        if not source.is_dir():
            raise UsageError(
                f"no folder {source}; --benchmark takes a name, or the path of a folder of tasks"
            )
        async with _packed(lambda target: pack_upload(source, target)) as archive:
            return await self._upload(archive)

    async def _upload(self, archive: Path) -> str:
        """Send an archive unless the tracker has it; how a request names it."""
        digest = await asyncio.to_thread(_sha256, archive)
        where = path("uploads", digest)
        if not await self._connection.exists(where):
            await self._put(TrackerCall("PUT", where, file=archive))
        return f"upload:{digest}"

    async def _put(self, call: TrackerCall) -> Any:
        """Send a file. A tracker that takes no more of it hangs up, and its refusal may be lost with the
        rest."""
        try:
            return await self._connection.ask(call)
        except TrackerUnreachableError as error:
            size = call.file.stat().st_size if call.file and error.sent else 0
            if size < LARGE:
                raise
            raise TrackerUnreachableError(
                f"{error} It may also be that {size:,} bytes are more than it takes (its "
                "VALKYRIE_UPLOAD_LIMIT).",
                sent=True,
            ) from None

    async def ingest(
        self,
        folders: Sequence[Path],
        *,
        label: str | None = None,
        dry_run: bool = False,
        replace: bool = False,
    ) -> Sequence[views.IngestedRun]:
        """Send results that came about elsewhere: folders of evals' results.jsonl, or of runners' runs.

        The same results are stored once. `replace` takes a run again that says something else now.
        """
        sources = list(dict.fromkeys(source for folder in folders for source in find_sources(folder)))
        names: dict[str, str] = {}
        wish = {"label": label, "dry_run": dry_run or None, "replace": replace or None}
        async with _packed(lambda target: names.update(pack_sources(sources, target))) as archive:
            call = TrackerCall("PUT", path("ingest"), params(wish), file=archive)
            answer = await self._put(call)
        found = self._connection.view(list[views.IngestedRun], answer)
        return [dataclasses.replace(one, file=names.get(one.file, one.file)) for one in found]

    async def secrets(self) -> Sequence[views.SecretView]:
        """Return names of the organisation's secrets; values are never given back."""
        return await self._get(list[views.SecretView], path("secrets"))

    async def set_secret(self, name: str, value: str) -> None:
        """Keep a secret, encrypted, for the organisation."""
        await self._connection.ask(TrackerCall("PUT", path("secrets", name), body={"value": value}))

    async def remove_secret(self, name: str) -> None:
        """Forget a secret."""
        await self._delete(path("secrets", name))

    async def benchmarks(self) -> Sequence[views.BenchmarkView]:
        """Return the benchmarks the tracker knows by name."""
        return await self._get(list[views.BenchmarkView], path("benchmarks"))

    async def benchmark_tasks(self, request: views.TasksRequest) -> views.TasksView:
        """Task ids of a benchmark, in its own order."""
        return await self._post(
            views.TasksView, path("benchmarks", "tasks"), changed(request), repeatable=True
        )


@asynccontextmanager
async def _packed(write: Callable[[Path], object]) -> AsyncIterator[Path]:
    """Yield an archive made by `write`, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as folder:
        archive = Path(folder) / "archive.zip"
        await asyncio.to_thread(write, archive)
        yield archive


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _said(request: views.JobRequest) -> Json:
    """Return what a request for a job says beyond its defaults."""
    template = changed(request.template)
    for name in ("agent", "model"):
        template.pop(name, None)  # of each run its own
    if not request.template.benchmark:
        template.pop("benchmark", None)
    return {**changed(request), "agents": _agents(request.agents), "template": template}


def _agents(agents: Sequence[views.JobAgent]) -> list[Json]:
    return [{name: value for name, value in asdict(one).items() if value} for one in agents]


async def _next(stream: AsyncIterator[views.RunView]) -> views.RunView | None:
    return await anext(stream, None)


def _existing(folder: Path) -> Path:
    """Return the nearest folder above that exists: the archive is unpacked on the same disk."""
    return next(one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir())
