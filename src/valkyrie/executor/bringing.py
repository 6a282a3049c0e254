"""What a run needs on this machine before it can go on here, and where it puts what it leaves."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valkyrie import benchmarks
from valkyrie.digest import content_digest
from valkyrie.errors import InfrastructureError
from valkyrie.executor.carrying import Carriers
from valkyrie.executor.premises import Premises
from valkyrie.keeping.keys import frozen_agent_key, upload_key
from valkyrie.nouns import Json
from valkyrie.secrets import delivery
from valkyrie.trial.away import Away

if TYPE_CHECKING:
    from valkyrie.keeping.protocol import LogKeeper
    from valkyrie.organisation import Organisation


class Bringing:
    """Opens runs' places, and fetches from them what another machine has put there. Blocking."""

    def __init__(self, premises: Premises) -> None:
        self._premises = premises
        self._data = premises.data
        self._keepers: dict[str, LogKeeper] = {}
        self._carriers = Carriers()

    def organisation(self, org_id: str, values: Mapping[str, str]) -> Organisation:
        """The things of a run's organisation; `values` were handed over with the run."""
        return self._premises.organisation(org_id, delivery.credentials_of(values))

    def away(self, row: Any, values: Mapping[str, str]) -> Away:
        """Where else the run's attempts put what they leave."""
        if not row.place:
            return Away()
        organisation = self.organisation(row.org_id, values)
        places: Json = row.place
        artifacts, logs = places.get("artifacts"), places.get("logs")
        return Away(
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

    def source(self, row: Any, away: Away) -> Json:
        """The benchmark's source, once the run's agent and an uploaded benchmark are on this machine."""
        self._fetch_agent(row, away)
        return self._here(row.benchmark_source, away)

    def tests(self, run_id: str, source: Json, away: Away) -> Json:
        """Return the source of a regrade's tests, once they are on this machine as they were frozen."""
        digest = source.get("upload")
        archive = self._data.run(run_id).regrade_tests(str(digest))
        if digest and not Path(source["path"]).is_dir() and archive.exists():
            return {**source, "path": str(benchmarks.unpack_upload(archive, self._data.cache, digest))}
        return self._here(source, away)

    def _here(self, source: Json, away: Away) -> Json:
        digest = source.get("upload")
        if not digest or Path(source["path"]).is_dir():
            return source
        if not away.artifacts:
            raise _not_here(f"The uploaded benchmark {source['name']}")
        with tempfile.TemporaryDirectory(dir=self._data.make().root) as part:
            file = Path(part) / "benchmark.zip"
            away.artifacts.get(upload_key(digest), file)
            return {**source, "path": str(benchmarks.unpack_upload(file, self._data.cache, digest))}

    def _fetch_agent(self, row: Any, away: Away) -> None:
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
