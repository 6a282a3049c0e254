"""What follows from results: jobs stop when they are decided, messages tell of runs. Loaded on demand."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from valkyrie.compare.anytime import gather_evidence, positions_after
from valkyrie.domain import Json, RunState
from valkyrie.report.presentation import run_links, run_view
from valkyrie.report.results import results_document, told_arguments
from valkyrie.report.statistics.anytime import decide
from valkyrie.store import Store, jobs, notifications, runs, tenants, trials

if TYPE_CHECKING:
    from valkyrie.store import Connection
    from valkyrie.store.rows import JobRow, RunRow


_SHARE = 0.01
"""Evidence is looked at again when it grew by this share: with many tasks, not after each of them."""


@dataclass(slots=True)
class StopRules:
    """Decides open jobs on the writer's thread. What it remembers only saves work."""

    _looked_at: dict[str, int] = field(default_factory=dict)

    def apply(self, connection: Connection, job_ids: Collection[str], now: float) -> bool:
        """Decide what can be decided of these jobs; return whether trials were skipped."""
        skipped = [self._apply(connection, job_id, now) for job_id in sorted(job_ids)]
        return any(skipped)

    def _apply(self, connection: Connection, job_id: str, now: float) -> bool:
        rows = jobs.runs_of(connection, [job_id])[job_id]
        ended = sum(row.n_finished + row.n_error for row in rows)
        before = self._looked_at.get(job_id)
        open_trials = sum(row.n_pending for row in rows)
        if before is not None and open_trials and ended < before + max(1, int(before * _SHARE)):
            return False
        job = jobs.locked(connection, job_id)
        rows = jobs.runs_of(connection, [job_id])[job_id]
        found = _look(connection, job, rows, now)
        if found is None:
            # Only then: what is written may have to be written again.
            self._looked_at[job_id] = ended
            return bool((job.decision or {}).get("skipped"))
        decision, cuts = found
        message = f"the comparison was decided without it: `valk job fetch {job_id[:8]}`"
        for row in rows:
            if row.id in cuts and row.id not in decision["skipped"]:
                spared = jobs.skip_decided(connection, row.id, cuts[row.id], message, now)
                decision["skipped"][row.id] = {
                    "not_run": spared.not_run,
                    "set_aside": spared.set_aside,
                    "saved_cost": spared.not_run * row.cost_sum / row.n_costed if row.n_costed else None,
                }
        jobs.store_decision(connection, job_id, decision)
        return bool(cuts)


def pairs_of(rows: Sequence[RunRow]) -> list[tuple[RunRow, RunRow]]:
    """Return the runs of a job that are compared: all pairs on the same benchmark and dataset."""
    return [(a, b) for a, b in combinations(rows, 2) if (a.benchmark, a.dataset) == (b.benchmark, b.dataset)]


def _look(
    connection: Connection, job: JobRow, rows: Sequence[RunRow], now: float
) -> tuple[Json, dict[str, int]] | None:
    """Return the decision with what is new in it, and where runs end all of whose pairs are decided."""
    known: Mapping[tuple[str, str], Json] = {
        (one["a_run"], one["b_run"]): one for one in (job.decision or {}).get("pairs", [])
    }
    pairs = pairs_of(rows)
    read: dict[str, Sequence[Any]] = {}
    new: list[Json] = []
    for a, b in pairs:
        if (a.id, b.id) not in known and RunState.ERROR not in (a.state, b.state):
            mine, theirs = (_read(connection, read, one.id) for one in (a, b))
            if found := _decide_pair(job.stop_rule or {}, (a.id, mine), (b.id, theirs)):
                new.append({**found, "decided_at": now})
    if not new:
        return None
    decided = [*known.values(), *new]
    decision: Json = {"pairs": decided, "skipped": dict((job.decision or {}).get("skipped", {}))}
    return decision, _cuts(rows, pairs, decided)


def _decide_pair(rule: Json, a: tuple[str, Sequence[Any]], b: tuple[str, Sequence[Any]]) -> Json | None:
    """Return what the rule decides of two runs (id and trials), as it is stored; None: nothing yet."""
    (a_run, mine), (b_run, theirs) = a, b
    evidence = gather_evidence(mine, theirs, planned_order=True)
    found = decide(
        evidence.units,
        error=rule["error"],
        margin=rule["margin"],
        comparisons=rule["comparisons"],
        scale=evidence.scale,
        planned=evidence.planned_units,
        whole=evidence.whole,
    )
    if found is None or found.outcome is None or found.interval is None:
        return None
    tasks = evidence.tasks_of(found.units)
    return {
        "a_run": a_run,
        "b_run": b_run,
        "outcome": found.outcome.value,
        "tasks": len(tasks),
        "planned_tasks": evidence.planned,
        "families": None if evidence.families is None else found.units,
        "difference": found.difference,
        "interval": list(found.interval),
        "e_value": found.e_value,
        "last_look": found.last,
        "lead": found.lead,
        "lead_needed": found.needed,
        "ends": {a_run: positions_after(mine, tasks), b_run: positions_after(theirs, tasks)},
    }


def _read(connection: Connection, read: dict[str, Sequence[Any]], run_id: str) -> Sequence[Any]:
    if run_id not in read:
        read[run_id] = jobs.decision_evidence(connection, run_id)
    return read[run_id]


def _cuts(
    rows: Sequence[RunRow], pairs: Sequence[tuple[RunRow, RunRow]], decided: Sequence[Json]
) -> dict[str, int]:
    """Return where runs end: after the last task one of their decisions needed, once all are made."""
    of_pair = {(one["a_run"], one["b_run"]): one["ends"] for one in decided}
    cuts: dict[str, int] = {}
    for row in rows:
        own = [(a.id, b.id) for a, b in pairs if row.id in (a.id, b.id)]
        if own and all(pair in of_pair for pair in own):
            cuts[row.id] = max(of_pair[pair][row.id] for pair in own)
    return cuts


# What messages to the outside tell of a run.


@dataclass(frozen=True, slots=True)
class RunContent:
    """Reads a run's results, arguments and links. Blocking."""

    store: Store

    def results(self, run_id: str) -> Json:
        with self.store.reading() as connection:
            row = runs.get(connection, run_id)
            org = tenants.org_by_id(connection, row.org_id)
            view = run_view(
                row,
                executor="alive",
                folder="",
                scores=trials.scores(connection, run_id),
                families=trials.families(connection, run_id),
                org=org.name if org else row.org_id,
                hooks=notifications.of_run(connection, run_id),
                links=run_links(row.place, run_id),
            )
            rows = trials.each_result(connection, run_id)
            view = replace(view, arguments=told_arguments(row))
            return results_document(view, row.final_evaluation, rows, passes=row.passes)

    def arguments(self, run_id: str) -> Json:
        with self.store.reading() as connection:
            return told_arguments(runs.get(connection, run_id))

    def links(self, run_id: str) -> Mapping[str, str]:
        with self.store.reading() as connection:
            return run_links(runs.get(connection, run_id).place, run_id)
