"""Jobs that stop when they are decided: looks at the evidence, stores the decision, skips the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from valkyrie.nouns import Json, RunState
from valkyrie.report.evidence import gather_evidence, positions_after
from valkyrie.report.statistics.anytime import decide
from valkyrie.store import decisions, jobs

if TYPE_CHECKING:
    from valkyrie.store import Connection

_SHARE = 0.01
"""Evidence is looked at again when it grew by this share: with many tasks, not after each of them."""


class StopRules:
    """Decides open jobs on the writer's thread. What it remembers only saves work."""

    def __init__(self) -> None:
        self._looked_at: dict[str, int] = {}

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
                spared = decisions.skip(connection, row.id, cuts[row.id], message, now)
                decision["skipped"][row.id] = {
                    "not_run": spared.not_run,
                    "set_aside": spared.set_aside,
                    "saved_cost": spared.not_run * row.cost_sum / row.n_costed if row.n_costed else None,
                }
        decisions.store(connection, job_id, decision)
        return bool(cuts)


def pairs_of(rows: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return the runs of a job that are compared: all pairs on the same benchmark and dataset."""
    return [(a, b) for a, b in combinations(rows, 2) if (a.benchmark, a.dataset) == (b.benchmark, b.dataset)]


def _look(
    connection: Connection, job: Any, rows: Sequence[Any], now: float
) -> tuple[Json, dict[str, int]] | None:
    """Return the decision with what is new in it, and where runs end all of whose pairs are decided."""
    rule: Json = job.stop_rule
    known: Mapping[tuple[str, str], Json] = {
        (one["a_run"], one["b_run"]): one for one in (job.decision or {}).get("pairs", [])
    }
    pairs = pairs_of(rows)
    read: dict[str, Sequence[Any]] = {}
    new: list[Json] = []
    for a, b in pairs:
        if (a.id, b.id) in known or RunState.ERROR in (a.state, b.state):
            continue
        mine, theirs = (_read(connection, read, one.id) for one in (a, b))
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
            continue
        tasks = evidence.tasks_of(found.units)
        new.append(
            {
                "a_run": a.id,
                "b_run": b.id,
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
                "ends": {
                    a.id: positions_after(mine, tasks),
                    b.id: positions_after(theirs, tasks),
                },
                "decided_at": now,
            }
        )
    if not new:
        return None
    decided = [*known.values(), *new]
    decision: Json = {"pairs": decided, "skipped": dict((job.decision or {}).get("skipped", {}))}
    return decision, _cuts(rows, pairs, decided)


def _read(connection: Connection, read: dict[str, Sequence[Any]], run_id: str) -> Sequence[Any]:
    if run_id not in read:
        read[run_id] = decisions.evidence(connection, run_id)
    return read[run_id]


def _cuts(rows: Sequence[Any], pairs: Sequence[tuple[Any, Any]], decided: Sequence[Json]) -> dict[str, int]:
    """Return where runs end: after the last task one of their decisions needed, once all are made."""
    of_pair = {(one["a_run"], one["b_run"]): one["ends"] for one in decided}
    cuts: dict[str, int] = {}
    for row in rows:
        own = [(a.id, b.id) for a, b in pairs if row.id in (a.id, b.id)]
        if own and all(pair in of_pair for pair in own):
            cuts[row.id] = max(of_pair[pair][row.id] for pair in own)
    return cuts
