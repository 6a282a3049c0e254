"""What Prometheus is told. Numbers over all organisations; no name of any of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from valkyrie.errors import ValkyrieError
from valkyrie.nouns import RunState, TrialState

if TYPE_CHECKING:
    from valkyrie.api.lanes import Lanes
    from valkyrie.store import Store

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
_COUNT_EVERY_S = 5.0
_PATIENCE_S = 1.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One server's numbers, in a registry of their own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "valkyrie_requests", "Requests answered", ["method", "route", "status"], registry=registry
        )
        self._latency = Histogram(
            "valkyrie_request_seconds",
            "Seconds until a request was answered; streams are not in it",
            ["method", "route"],
            registry=registry,
            buckets=_BUCKETS,
        )
        self._streams = Gauge("valkyrie_streams", "Streams now open", ["kind"], registry=registry)
        self._runs = Gauge("valkyrie_runs", "Runs by state", ["state"], registry=registry)
        self._trials = Gauge("valkyrie_trials", "Trials by state", ["state"], registry=registry)
        self._executors = Gauge("valkyrie_executors_alive", "Executors with a live lease", registry=registry)
        self._database = Gauge("valkyrie_database_up", "Whether the database answers", registry=registry)
        self._restarts = Counter(
            "valkyrie_executor_restarts",
            "Times the server's own executor was started again",
            registry=registry,
        )
        self._counted_at = float("-inf")

    def observe(
        self, method: str, route: str, status: int, seconds: float, *, streamed: bool = False
    ) -> None:
        """One request has been answered."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        if not streamed:
            self._latency.labels(method, route).observe(seconds)

    def restarted(self) -> None:
        """The executor was started again."""
        self._restarts.inc()

    def text(self, store: Store, lanes: Lanes) -> bytes:
        """Everything, as Prometheus reads it. Blocking."""
        from prometheus_client import generate_latest

        now = time.monotonic()
        if now - self._counted_at >= _COUNT_EVERY_S:
            self._count(store)
            self._counted_at = now
        for kind, seats in (
            ("watchers", lanes.watchers),
            ("followers", lanes.followers),
            ("transfers", lanes.downloads),
        ):
            self._streams.labels(kind).set(seats.taken)
        return generate_latest(self._registry)

    def _count(self, store: Store) -> None:
        from valkyrie.store import executors
        from valkyrie.store.totals import totals

        try:
            with store.reading(_PATIENCE_S) as connection:
                counted, alive = totals(connection), len(executors.living(connection))
        except ValkyrieError:
            self._database.set(0)
            return
        self._database.set(1)
        self._executors.set(alive)
        for state in RunState:
            self._runs.labels(state.value).set(counted.runs.get(state.value, 0))
        for one in TrialState:
            self._trials.labels(one.value).set(counted.trials.get(one.value, 0))


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
