"""A tracker on loopback with two organisations, and runs in it that no executor touches."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from valkyrie.api.capacity import ApiSettings
from valkyrie.api.server import ApiServer
from valkyrie.domain import DEFAULT_ORG, Outcome, Role, TrialState
from valkyrie.store import jobs, journal, leases, runs, tenants
from valkyrie.store.journal import Advance, Finish
from valkyrie.store.layout import DataFolder
from valkyrie.store.leases import Leased, Room, Tick
from valkyrie.tracker.app import TrackerApp

ROOM = Room(1e9, 1e9, idle=False)


@dataclass
class Stage:
    """One tracker_app, and what tests do behind the API's back."""

    tracker_app: TrackerApp
    ours: str
    """A key of the default organisation."""
    theirs: str
    """A key of another one."""
    their_org: str
    keys: dict[str, str] = field(default_factory=dict)
    """Organisation of each key."""

    def add_run(self, org_id: str = DEFAULT_ORG, tasks: int = 4, **more: Any) -> str:
        """A run as if someone had started it."""
        run_id = str(uuid.uuid4())
        values = {
            "id": run_id,
            "org_id": org_id,
            "agent": "an-agent",
            "benchmark": "a-benchmark",
            "dataset": "default",
            "provider": "null",
            "concurrency": 1000,
            "fraction": True,
            "created_at": time.time(),
            "arguments": {},
            "agent_frozen": {},
            "benchmark_source": {},
            "enforcement": {},
            **more,
        }
        trials = [runs.NewTrial(f"t{n}", 0, "digest", None, None) for n in range(tasks)]
        with self.tracker_app.store.writing() as connection:
            runs.create(connection, values, trials)
        return run_id

    def finished_job(self, org_id: str = DEFAULT_ORG, name: str = "a job", **more: Any) -> str:
        """A job of two runs that ended."""
        job_id = str(uuid.uuid4())
        template = {
            "trials": 1,
            "agent_timeout": None,
            "default_agent_timeout": None,
            "timeout_multiplier": 1,
        }
        source = {"type": "benchmark", "benchmark_name": "a-benchmark"}
        arguments = {"agents": [], "template": template, "selections": [], "source": source}
        values = {"id": job_id, "org_id": org_id, "name": name, "created_at": time.time(), "concurrency": 10}
        with self.tracker_app.store.writing() as connection:
            jobs.create(connection, {**values, "about": {}, "arguments": arguments})
        for position in range(2):
            self.finished_run(org_id, job_id=job_id, job_position=position, **more)
        return job_id

    def lease(self, run_id: str) -> Sequence[Leased]:
        """Begin all of a run's pending trials."""
        with self.tracker_app.store.writing() as connection:
            tick = Tick("nobody", time.time(), ROOM, {}, {run_id})
            return leases.lease(connection, tick).leased

    def advance(self, leased: Leased) -> None:
        self._record(Advance(leased, TrialState.BUILDING, TrialState.IN_PROGRESS))

    def finish(
        self,
        leased: Leased,
        *,
        before: TrialState = TrialState.BUILDING,
        score: float = 1.0,
        cost: float | None = None,
    ) -> None:
        """Grade a trial."""
        done = Finish(
            leased,
            before,
            TrialState.FINISHED,
            Outcome.GRADED,
            time.time(),
            score=score,
            passed=score == 1.0,
            result={},
            cost=cost,
        )
        self._record(done)

    def _record(self, change: journal.Change) -> None:
        with self.tracker_app.store.writing() as connection:
            journal.record(connection, [change])

    def relabel(self, run_id: str, label: str) -> None:
        """Change a run, in however small a way."""
        with self.tracker_app.store.writing() as connection:
            runs.set_values(connection, run_id, label=label)

    def conclude(self, run_id: str) -> None:
        """Write the run's score, as an executor does when its last trial has ended."""
        with self.tracker_app.store.writing() as connection:
            runs.conclude(connection, run_id, time.time(), final={"final_score": 1.0}, graded=1.0, error=None)

    def finished_run(self, org_id: str = DEFAULT_ORG, tasks: int = 2, **more: Any) -> str:
        """A run that ended, with a log and a file of each trial."""
        run_id = self.add_run(org_id, tasks, **more)
        folder = self.tracker_app.data.run(run_id)
        for leased in self.lease(run_id):
            self.write_log(run_id, leased, f"log of {leased.task_id}\n")
            attempt = folder.attempt(leased.task_id, 0, 1)
            attempt.mkdir(parents=True)
            (attempt / "answer.txt").write_text(f"answer to {leased.task_id}")
            self.finish(leased)
        self.conclude(run_id)
        return run_id

    def write_log(self, run_id: str, leased: Leased, text: str) -> None:
        log = self.tracker_app.data.run(run_id).log(leased.task_id, 0, 1)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(text)


def open_stage(root: Path) -> Stage:
    """A data folder with two organisations."""
    tracker_app = TrackerApp(DataFolder(root), server=True)
    with tracker_app.store.writing() as connection:
        other = tenants.create_org(connection, "Other people")
        _, ours = tenants.create_key(connection, DEFAULT_ORG, "test", "ada@example.org", role=Role.ADMIN)
        _, theirs = tenants.create_key(connection, other.id, "test", "eve@example.org", role=Role.ADMIN)
    return Stage(tracker_app, ours, theirs, other.id, {ours: DEFAULT_ORG, theirs: other.id})


@asynccontextmanager
async def serving(stage: Stage, settings: ApiSettings | None = None) -> AsyncIterator[ApiServer]:
    """The API on a free port of loopback, ended afterwards."""
    server = ApiServer(stage.tracker_app, settings or ApiSettings())
    try:
        await server.start()
        yield server
    finally:
        await server.close()


@contextmanager
def serving_aside(stage: Stage, settings: ApiSettings | None = None) -> Iterator[str]:
    """The same in a thread of its own, for clients that block; its address."""
    began: queue.Queue[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        over = asyncio.Event()
        async with serving(stage, settings) as server:
            began.put((server.url, asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    url, loop, over = began.get(timeout=60)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


@asynccontextmanager
async def client(server: ApiServer, key: str | None) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(verify=False, base_url=server.url, headers=headers, timeout=60) as made:
        yield made


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    name: str
    id: int
    data: Any


async def read_events(response: httpx.Response) -> AsyncIterator[Event]:
    """Events of a stream as they come; comments are passed over."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and fields:
            yield Event(fields["event"], int(fields["id"]), json.loads(fields["data"]))
            fields = {}
