"""A store with runs that end, and what an executor would give its sender."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from valkyrie.domain import Json, RunState
from valkyrie.errors import InfrastructureError
from valkyrie.notifications.outbox import NotificationRunner, Sender
from valkyrie.secrets.delivery import with_hooks
from valkyrie.store import Store, executors, notifications, runs
from valkyrie.store.journal import Writer
from valkyrie.views import HookView


class Shelf:
    """A place for artifacts that is down as often as told."""

    def __init__(self, down: int = 0) -> None:
        self.down = down
        self.kept: dict[str, str] = {}

    def put_text(self, key: str, text: str) -> None:
        if self.down:
            self.down -= 1
            raise InfrastructureError("the shelf cannot be reached", cause="artifacts")
        self.kept[key] = text

    def url(self, key: str) -> str:
        return f"shelf://{key}"


class Society:
    """An organisation: a shelf, and perhaps a way into AWS."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.session: Any = None

    def aws(self) -> Any:
        return self.session

    def artifacts(self, place: Json | None = None) -> Shelf:
        return self.shelf


class NotifiedRuns:
    """What senders are given."""

    def __init__(self) -> None:
        self.handed: dict[str, Mapping[str, str]] = {}
        self.society = Society()
        self.ended: list[str] = []
        self.trouble: Exception | None = None

    async def values(self, run_id: str) -> Mapping[str, str] | None:
        if self.trouble:
            raise self.trouble
        return self.handed.get(run_id)

    async def organisation(self, org_id: str, run_id: str) -> Any:
        return self.society

    async def results(self, run_id: str) -> Json:
        return {"benchmark_id": run_id}

    async def arguments(self, run_id: str) -> Json:
        return {"model": "m", "concurrency": 4}

    async def links(self, run_id: str) -> Mapping[str, str]:
        return {"artifacts": f"shelf://{run_id}/"}

    async def settled(self, run_id: str) -> None:
        self.ended.append(run_id)


class Stage:
    """Runs on a real store, and executors that send for them."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self.store = store
        self.writer = writer
        self.runs = NotifiedRuns()

    def runner(self, name: str = "me", sender: Sender | None = None) -> NotificationRunner:
        """The sender of an executor that lives."""
        now = time.time()
        values = {"id": name, "host": "h", "pid": 1, "version": "1", "started_at": now, "home": name}
        with self.store.writing() as connection:
            executors.register_executor(connection, {**values, "heartbeat_at": now, "expires_at": now + 30})
        return NotificationRunner(name, self.writer, self.runs, sender or Sender(True), home=name)  # type: ignore[arg-type]

    def add(self, values: Mapping[str, str] | None = None, **columns: Any) -> str:
        """A run of eight trials; `values` by secret name are handed over with it."""
        run_id = str(uuid.uuid4())
        row = {
            "id": run_id,
            "agent": "sweagent",
            "benchmark": "swebench",
            "dataset": "default",
            "provider": "null",
            "concurrency": 4,
            "fraction": True,
            "created_at": time.time(),
            "started_at": time.time(),
            "arguments": {"trials": 1, "model": "m"},
            "agent_frozen": {},
            "benchmark_source": {},
            "enforcement": {},
            **columns,
        }
        with self.store.writing() as connection:
            runs.create(connection, row, [runs.NewTrial(f"t{n}", 0, "d", None, None) for n in range(8)])
        if values is not None:
            self.runs.handed[run_id] = with_hooks(values)
        return run_id

    def stand(self, run_id: str, **columns: Any) -> None:
        with self.store.writing() as connection:
            runs.set_values(connection, run_id, **columns)
            notifications.plan_progress_of(connection, [run_id], time.time())

    def end(self, run_id: str, state: RunState = RunState.FINISHED, **columns: Any) -> None:
        columns = {"n_pending": 0, "n_finished": 8, "final_score": 0.5, **columns}
        with self.store.writing() as connection:
            ending = runs.get(connection, run_id).endings + 1
            runs.set_values(
                connection, run_id, state=state.value, endings=ending, finished_at=time.time(), **columns
            )
            notifications.plan_ending(connection, runs.get(connection, run_id), time.time())

    def die(self, name: str) -> None:
        with self.store.writing() as connection:
            executors.end_executor(connection, name)

    def told(self, run_id: str) -> list[HookView]:
        with self.store.reading() as connection:
            return notifications.of_run(connection, run_id)

    def row(self, run_id: str) -> Any:
        with self.store.reading() as connection:
            return runs.get(connection, run_id)
