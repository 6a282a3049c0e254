"""Foreign runs put into the store and the data folder: all of them, or none."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valkyrie.artifact_store.protocol import attempt_prefix, run_prefix
from valkyrie.benchmarks.catalog import IngestedBenchmark
from valkyrie.benchmarks.protocol import computed, confirmed_score, grades_of
from valkyrie.domain import INGESTED, Json
from valkyrie.errors import UserError
from valkyrie.ingest.trials import ForeignRun
from valkyrie.plan import FAMILY
from valkyrie.store import ingested_runs, jobs
from valkyrie.store.layout import RunFolder, encode_task_id
from valkyrie.tracker.runs import kept_at
from valkyrie.views import RunRequest

if TYPE_CHECKING:
    from valkyrie.artifact_store.protocol import ArtifactStore
    from valkyrie.store import Connection
    from valkyrie.tracker.local import LocalTracker

Known = tuple[str, str]
"""The id of the run here, and what becomes of it: `known`, `stored` or `replaced`."""
LONGEST_SPAN_S = 10 * 365 * 86400.0
TRIES = 3
"""Another one may be storing the same runs at this moment."""


@dataclass(frozen=True, slots=True)
class Replacing:
    """What was asked."""

    label: str | None
    allowed: bool


@dataclass(frozen=True, slots=True)
class _Staged:
    """A run whose files are put together, and where they will stand."""

    run: ForeignRun
    run_id: str
    folder: RunFolder
    target: RunFolder


def known_runs(opened: LocalTracker, runs: Sequence[ForeignRun], *, replace: bool) -> list[Known]:
    """Return what would become of each run; UserError where one says something else than when it was
    stored."""
    with opened.store.reading() as connection:
        return _known(connection, opened, runs, replace)


def _known(
    connection: Connection, opened: LocalTracker, runs: Sequence[ForeignRun], replace: bool
) -> list[Known]:
    org_id = opened.context.identity.org_id
    wanted = [*(run.id_here(org_id) for run in runs), *(run.run_id for run in runs if run.run_id)]
    found = ingested_runs.known(connection, wanted, org_id)
    return [_one_known(run, run.id_here(org_id), found, replace) for run in runs]


def _one_known(
    run: ForeignRun, run_id: str, found: dict[str, ingested_runs.StoredRun], replace: bool
) -> Known:
    if run.run_id in found:
        return run.run_id, "known"  # one of our own
    if run_id not in found:
        return run_id, "stored"
    if (found[run_id].arguments.get("ingested") or {}).get("digest") == run.digest:
        return run_id, "known"
    if replace:
        return run_id, "replaced"
    raise UserError(
        f"{run.source}: {run.label} (run {run.run_id}) was ingested before with other results, as "
        f"run {run_id[:8]}. Add --replace to take these instead, or `valk run delete {run_id[:8]}` first.",
        cause="changed",
    )


def store(
    opened: LocalTracker, runs: Sequence[ForeignRun], known: list[Known], wish: Replacing
) -> list[Known]:
    """Store what is not known yet; what became of each run."""
    for _ in range(TRIES):
        fresh = [run for run, (_, status) in zip(runs, known, strict=True) if status != "known"]
        if not fresh:
            return known
        try:
            with _staged(opened, fresh) as staged:
                _write(opened, staged, wish)
            return known
        except ingested_runs.StoredMeanwhileError:
            known = known_runs(opened, runs, replace=wish.allowed)
    raise UserError("These results are being ingested elsewhere at this moment. Try again.", cause="busy")


@contextlib.contextmanager
def _staged(opened: LocalTracker, runs: Sequence[ForeignRun]) -> Iterator[list[_Staged]]:
    """The files of these runs, put together where nobody looks for them."""
    staged = []
    try:
        for run in runs:
            run_id = run.id_here(opened.context.identity.org_id)
            folder = opened.data.run(f"ingest-{uuid.uuid4()}")
            staged.append(_Staged(run, run_id, folder, opened.data.run(run_id)))
            for trial in run.trials:
                place = folder.attempt(trial.ended.task_id, trial.ended.k, 1)
                place.parent.mkdir(parents=True)
                trial.keep(place, run.source)
        yield staged
    finally:
        for one in staged:
            shutil.rmtree(one.folder.root, ignore_errors=True)


def _write(opened: LocalTracker, staged: Sequence[_Staged], wish: Replacing) -> None:
    artifacts = opened.context.organisation.artifacts(None)
    if artifacts is not None:
        for one in staged:
            _put_away(artifacts, one)
    rows = [(one, _values(opened, one, wish.label, artifacts)) for one in staged]
    with _moving() as move, opened.store.writing() as connection:
        _store_jobs(connection, rows)
        for one, values in rows:
            ended = [trial.ended for trial in one.run.trials]
            ingested_runs.store_ended(connection, values, ended, replace=wish.allowed)
            move(one.folder.root, one.target.root)


def _store_jobs(connection: Connection, rows: Sequence[tuple[_Staged, Json]]) -> None:
    """Store the jobs that these runs were part of, unless they are here from before."""
    for one, values in rows:
        found = one.run.job_here(values["org_id"])
        if found is None or jobs.exists(connection, found[0]):
            continue
        agents = {
            (other["agent"], other["model"]): None for _, other in rows if other.get("job_id") == found[0]
        }
        asked = RunRequest(values["agent"], values["benchmark"], dataset=values["dataset"])
        told: Json = {
            "agents": [{"agent": agent, "model": model} for agent, model in agents],
            "template": {**asdict(asked), "trials": values["arguments"]["trials"]},
            "selections": [],
            "source": {"type": "benchmark", "benchmark_name": values["benchmark"]},
        }
        row = {"id": found[0], "name": found[1], "created_at": values["created_at"], "concurrency": 1}
        about = {"org_id": values["org_id"], "started_by": values["started_by"], "about": {}}
        jobs.create(connection, {**row, **about, "arguments": told, "ends_at": None})


@contextlib.contextmanager
def _moving() -> Iterator[Any]:
    """Folders take their places, over what stood there; all go back when the rows are not stored."""
    moved: list[tuple[Path, Path, Path]] = []

    def move(source: Path, target: Path) -> None:
        aside = source.with_name(f"{source.name}-before")
        if target.exists():
            target.rename(aside)
        moved.append((source, target, aside))
        source.rename(target)

    try:
        yield move
    except BaseException:
        for source, target, aside in reversed(moved):
            with contextlib.suppress(OSError):
                target.rename(source)
            if aside.exists():
                aside.rename(target)
        raise
    for _, _, aside in moved:
        shutil.rmtree(aside, ignore_errors=True)


def _put_away(artifacts: ArtifactStore, one: _Staged) -> None:
    """Put these where the organisation keeps artifacts, so that other machines find them."""
    artifacts.delete(run_prefix(one.run_id))
    for trial in one.run.trials:
        task_id, k = trial.ended.task_id, trial.ended.k
        prefix = attempt_prefix(one.run_id, encode_task_id(task_id), k, 1)
        artifacts.put(f"{prefix}attempt.log", one.folder.log(task_id, k, 1))
        folder = one.folder.attempt(task_id, k, 1)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                artifacts.put(prefix + path.relative_to(folder).as_posix(), path)


def _values(opened: LocalTracker, one: _Staged, label: str | None, artifacts: ArtifactStore | None) -> Json:
    run, trials = one.run, [trial.ended for trial in one.run.trials]
    identity = opened.context.identity
    started = _started(run, min(trial.started_at for trial in trials))
    job = run.job_here(identity.org_id)
    return {
        **({"job_id": job[0], "job_position": job[2]} if job else {}),
        "id": one.run_id,
        "org_id": identity.org_id,
        "agent": run.agent,
        "model": run.model,
        "benchmark": run.benchmark,
        "dataset": run.dataset,
        "label": label or (run.variant if run.variant != "main" else None),
        "provider": INGESTED,
        "started_by": identity.person,
        "place": kept_at(artifacts, None, one.run_id),
        "concurrency": 1,
        "fraction": run.fraction,
        # Nothing a file says makes it newer than what is started after it.
        "created_at": min(started, time.time()),
        "started_at": started,
        "finished_at": max(trial.finished_at for trial in trials),
        "arguments": _arguments(run, trials),
        "agent_frozen": {},
        "enforcement": {},
        **asyncio.run(_scores(run, trials)),
    }


def _arguments(run: ForeignRun, trials: Sequence[ingested_runs.EndedTrial]) -> Json:
    return {
        "agent": run.agent,
        "benchmark": run.benchmark,
        "model": run.model,
        "dataset": run.dataset,
        "trials": max(trial.k for trial in trials) + 1,
        "variant": run.variant,
        **({"family": FAMILY} if any(trial.family for trial in trials) else {}),
        "ingested": {"digest": run.digest, "run_id": run.run_id, "file": run.source, **run.about},
    }


async def _scores(run: ForeignRun, trials: Sequence[ingested_runs.EndedTrial]) -> Json:
    """Return the columns about its score: what its file says of it counts before what the grades make."""
    benchmark, grades = IngestedBenchmark(run.benchmark, fraction=run.fraction), grades_of(trials)
    final, graded = await computed(benchmark, grades, "default")
    if run.score is not None:
        final, graded = run.score.final, run.score.graded
    return {
        "benchmark_source": benchmark.source,
        "final_evaluation": final,
        "final_score": final["final_score"],
        "score_graded": graded,
        "score_confirmed": await confirmed_score(benchmark, grades, "default"),
    }


def _started(run: ForeignRun, first: float) -> float:
    """When it says it began, where its trials can have come after that."""
    said = run.started_at
    return said if said is not None and 0 <= first - said <= LONGEST_SPAN_S else first
