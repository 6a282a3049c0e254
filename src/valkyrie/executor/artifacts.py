"""Open a run's organisation and artifact store, and fetch what the run needs on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valkyrie import benchmarks
from valkyrie.artifact_store.protocol import frozen_agent_key, upload_key
from valkyrie.domain import Identity, Json, content_digest
from valkyrie.errors import InfrastructureError, StoreError
from valkyrie.secrets import delivery
from valkyrie.store import tenants
from valkyrie.store.layout import DataFolder
from valkyrie.trial.storage import Carry, RemoteStorage

if TYPE_CHECKING:
    from valkyrie.artifact_store.protocol import LogKeeper
    from valkyrie.secrets.delivery import Sealer
    from valkyrie.store import Connection, Store
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
        found = tenants.handed(connection, run_id) if self.sealer else None
        if not found or not self.sealer:
            return None
        try:
            return self.sealer.open(found, f"run:{run_id}")
        except StoreError as error:
            if run_id not in self._unopened:
                self._unopened.add(run_id)
                sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {error}\n")
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
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


# What a run needs on this machine before it can go on here, and where it puts what it leaves.


class ArtifactFetcher:
    """Opens runs' places, and fetches from them what another machine has put there. Blocking."""

    def __init__(self, premises: TenantAccess) -> None:
        self._premises = premises
        self._data = premises.data
        self._keepers: dict[str, LogKeeper] = {}
        self._carriers = TransferPool()

    def organisation(self, org_id: str, values: Mapping[str, str]) -> Organisation:
        """The things of a run's organisation; `values` were handed over with the run."""
        return self._premises.organisation(org_id, delivery.credentials_of(values))

    def away(self, row: Any, values: Mapping[str, str]) -> RemoteStorage:
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

    def source(self, row: Any, away: RemoteStorage) -> Json:
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

    def _fetch_agent(self, row: Any, away: RemoteStorage) -> None:
        name = row.agent_frozen.get("archive")
        archive = self._data.run(row.id).agent / str(name)
        if not name or archive.exists():
            return
        if away.artifacts:
            archive.parent.mkdir(parents=True, exist_ok=True)
            away.artifacts.get(frozen_agent_key(row.id, row.agent), archive)
        elif self._premises.server:
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
