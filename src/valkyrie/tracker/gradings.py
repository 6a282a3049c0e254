"""Verbs that grade kept work again, say which grading of a run counts, and score some of its tasks."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sandboxes.masker import Masker
from valkyrie import benchmarks, views
from valkyrie.artifact_store.protocol import attempt_prefix, upload_key
from valkyrie.benchmarks.protocol import computed, confirmed_score, grades_of
from valkyrie.domain import Category, Json, Outcome, RunState, TrialState, ended_by_agent, worst_score
from valkyrie.errors import UsageError, UserError, ValkyrieError
from valkyrie.report.presentation import score_view
from valkyrie.secrets.delivery import unspeakable, with_headers
from valkyrie.store import executors, regrades, runs
from valkyrie.store.counters import add_grade
from valkyrie.store.layout import encode_task_id
from valkyrie.store.regrades import GradingVerdict, Regraded
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS
from valkyrie.tracker.app import CallerContext
from valkyrie.tracker.run_reader import RunReader
from valkyrie.tracker.runs import RunVerbs
from valkyrie.tracker.secrets import given_again, service_headers
from valkyrie.trial.storage import KeptWork, read_record, work_key

if TYPE_CHECKING:
    from valkyrie.artifact_store.protocol import ArtifactStore
    from valkyrie.benchmarks.protocol import Benchmark
    from valkyrie.store.rows import RunRow
    from valkyrie.tenants import Organisation

_OTHERWISE = ("instruction", "cwd", "image", "env", "user", "network", "limits")
"""Fields of a task that its tests may rely on and that are not taken from other tests."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """One trial that can be graded again."""

    trial_id: int
    task_id: str
    k: int
    saved: Json


class GradingVerbs:
    """Grade the kept work of a run's trials again, without running agents."""

    def __init__(self, context: CallerContext, reader: RunReader, runs: RunVerbs) -> None:
        self._context = context
        self._reader = reader
        self._runs = runs

    def regrade(self, ref: str, request: views.RegradeRequest) -> views.RegradeView:
        if request.tests and request.judge:
            raise UsageError("--tests and --judge exclude each other.")
        with self._context.store.reading() as connection:
            row = runs.get(connection, self._context.resolve(connection, ref))
            if request.task_ids is not None:
                runs.check_tasks(connection, row.id, request.task_ids)
            found = regrades.decided(connection, row.id)
            number = regrades.next_number(connection, row.id)
        _check_kind(row, request)
        wanted = None if request.task_ids is None else set(request.task_ids)
        rows = [one for one in found if wanted is None or one.task_id in wanted]
        chosen, left_out = self._choose(row, rows, request)
        if not chosen:
            raise UserError(_nothing(row.id, left_out))
        with tempfile.TemporaryDirectory(dir=self._context.data.make().root) as scratch:
            arguments, notices = self._graders(row, chosen, request, Path(scratch))
            trials = [(one.task_id, one.k) for one in chosen]
            if request.dry_run:
                return views.RegradeView(
                    self._reader.fetch(row.id), number, row.grading, trials, left_out, notices, started=False
                )
            more = self._begin(row, number, chosen, {**arguments, "trials": len(chosen)})
        return views.RegradeView(
            self._reader.fetch(row.id), number, row.grading, trials, left_out, [*notices, *more], started=True
        )

    def _begin(self, row: RunRow, number: int, chosen: Sequence[_Chosen], arguments: Json) -> Sequence[str]:
        values, notices = self._runs.values_again(row, {}, row.benchmark_source)
        with self._context.store.writing() as connection:
            if row.bound and executors.lives_at(connection, row.bound):
                raise UserError(f"An eval is at work on run {row.id[:8]}. Wait for it, or end it first.")
            regrades.begin(
                connection,
                row.id,
                number,
                [Regraded(one.trial_id, {**one.saved, "regrade": number}) for one in chosen],
                arguments=arguments,
                started_by=self._context.identity.person,
                now=time.time(),
            )
            self._context.dispatch.seal(connection, row.id, values)
        return [*notices, *self._context.dispatch.deliver(row.id, values)]

    def _choose(
        self, row: RunRow, rows: Sequence[Any], request: views.RegradeRequest
    ) -> tuple[list[_Chosen], list[views.TrialLeftOut]]:
        """Return the trials that can be graded again, and the others with the reason."""
        place = (row.place or {}).get("artifacts")
        artifacts = self._context.organisation.artifacts(place) if place else None
        kept = _KeptTrials(row, KeptWork(self._context.data.run(row.id)), artifacts)
        judged = _judged_spec(row) if request.judge else None
        chosen: list[_Chosen] = []
        left_out: list[views.TrialLeftOut] = []
        for one in rows:
            told = kept.judged(one, judged) if judged else kept.packed(one)
            if isinstance(told, str):
                left_out.append(views.TrialLeftOut(one.task_id, one.k, told))
            else:
                chosen.append(_Chosen(one.id, one.task_id, one.k, told))
        return chosen, left_out

    def _graders(
        self, row: RunRow, chosen: Sequence[_Chosen], request: views.RegradeRequest, scratch: Path
    ) -> tuple[Json, Sequence[str]]:
        """Return what the executor opens to grade with, frozen, and what the user should know."""
        if request.judge:
            options = {**row.benchmark_source["options"], "judge_model": request.judge}
            return {"judge": request.judge, "source": {**row.benchmark_source, "options": options}}, []
        if not request.tests:
            return {}, []
        asked = views.RunRequest(
            agent="",
            benchmark=request.tests,
            dataset=row.dataset,
            host_image=bool(row.arguments["settings"].get("host_image")),
        )
        variables = given_again(row.arguments, self._context.organisation)
        opened = self._context.open_benchmark(asked, variables)
        if opened.source.get("kind") != "task_dir":
            raise UsageError(f"--tests {request.tests} is no folder of task directories, nor names one.")
        source = self._frozen_tests(row, opened, scratch, keep=not request.dry_run)
        task_ids = list(dict.fromkeys(one.task_id for one in chosen))
        notices = asyncio.run(_check_tests(row, source, task_ids, opened.name, variables))
        return {"tests": opened.name, "source": source}, notices

    def _frozen_tests(self, row: RunRow, opened: Benchmark, scratch: Path, *, keep: bool) -> Json:
        """Pack the tests by digest, so that a resume uses the same; return how they are opened again."""
        archive = scratch / "tests.zip"
        if digest := opened.source.get("upload"):
            shutil.copyfile(self._context.organisation.uploads() / f"{digest}.zip", archive)
        else:
            digest = benchmarks.pack_upload(Path(opened.source["path"]), archive)
        folder = benchmarks.unpack_upload(archive, self._context.data.cache, digest)
        if keep:
            target = self._context.data.run(row.id).regrade_tests(digest)
            target.parent.mkdir(parents=True, exist_ok=True)
            archive.replace(target)
            place = (row.place or {}).get("artifacts")
            artifacts = self._context.organisation.artifacts(place) if place else None
            if artifacts and artifacts.find(upload_key(digest)) is None:
                artifacts.put(upload_key(digest), target)
        return {**opened.source, "path": str(folder), "upload": digest}

    # Gradings

    def gradings(self, ref: str) -> Sequence[views.GradingView]:
        """Return the run's gradings, 0 first; only that one if it was never graded again."""
        with self._context.store.reading() as connection:
            row = runs.get(connection, self._context.resolve(connection, ref))
            found = regrades.gradings(connection, row.id)
        return [_grading_view(one, row) for one in found] or [_own_view(row)]

    def use_grading(self, ref: str, number: int) -> views.RunView:
        with self._context.store.writing() as connection:
            run_id = self._context.resolve(connection, ref)
            regrades.use(connection, run_id, number, time.time())
        return self._reader.fetch(run_id)

    def compare_gradings(self, ref: str, a: int, b: int) -> views.GradingComparison:
        found = {view.number: view for view in self.gradings(ref)}
        with self._context.store.reading() as connection:
            row = runs.get(connection, self._context.resolve(connection, ref))
            for number in (a, b):
                if number not in found or number:
                    regrades.usable(connection, row.id, number)
            both = [regrades.verdicts(connection, row.id, number) for number in (a, b)]
        changes = [
            change for one, other in zip(*both, strict=True) if (change := _change(one, other)) is not None
        ]
        return views.GradingComparison(
            run_id=row.id,
            a=found[a],
            b=found[b],
            trials=len(both[0]),
            same=len(both[0]) - len(changes),
            changes=changes,
            fraction=bool(row.fraction),
        )


@dataclass(frozen=True, slots=True)
class _KeptTrials:
    """What one run kept of its trials."""

    row: RunRow
    work: KeptWork
    artifacts: ArtifactStore | None

    def packed(self, one: Any) -> Json | str:
        """Return what an attempt is told that grades a trial's packed work; or why there is none."""
        if reason := _no_attempt(one):
            return reason
        evidence: Json = one.evidence or {}
        record = evidence.get("work") or read_record(self._attempt(one)) or {}
        if not record.get("digest"):
            if evidence.get("mode") == "shared":
                return "it was graded in the agent's own sandbox only; nothing was packed"
            return "no work was kept of it"
        if not record.get("kept", True):
            return f"its work was not kept: {record.get('reason') or 'it is over a limit'}"
        if one.confirmed is False:
            return "its score was seen only in the sandbox the agent left, which is gone"
        if not self._has(str(record["digest"])):
            return "its kept work is gone"
        return {**_told(one), "work": True, "state": None}

    def judged(self, one: Any, spec: Any) -> Json | str:
        """Return what an attempt is told that asks a trial's judges again; or why it cannot."""
        if reason := _no_attempt(one):
            return reason
        if one.outcome != Outcome.GRADED:
            return "it has no verdict of its other graders"
        results: list[Json] | str = spec.checked(one.task_id, (one.result or {}).get("graders", []))
        if isinstance(results, str):
            return results
        if not self._has_transcript(one):
            return "its transcript was not kept"
        return {**_told(one), "state": {"results": results}}

    def _attempt(self, one: Any) -> Path:
        return self.work.folder.attempt(one.task_id, one.k, one.number)

    def _has(self, digest: str) -> bool:
        if self.work.path(digest).exists():
            return True
        return self.artifacts is not None and self.artifacts.find(work_key(self.row.id, digest)) is not None

    def _has_transcript(self, one: Any) -> bool:
        name = "agent/transcript.json"
        if (self._attempt(one) / name).exists():
            return True
        prefix = attempt_prefix(self.row.id, encode_task_id(one.task_id), one.k, one.number)
        return self.artifacts is not None and self.artifacts.find(prefix + name) is not None


def _told(one: Any) -> Json:
    return {
        "attempt": one.number,
        "exit_code": one.exit_code or 0,
        "exit_reason": one.exit_reason,
        "timing": one.timing,
        "cost": None,
        "usage": None,
    }


def _no_attempt(one: Any) -> str | None:
    if one.number is None:
        return "it was never attempted"
    if one.state not in (TrialState.FINISHED, TrialState.ERROR):
        return "it was stopped before it was graded"
    return None


def _check_kind(row: RunRow, request: views.RegradeRequest) -> None:
    kind = row.benchmark_source.get("kind")
    if not RunState(row.state).terminal:
        raise UserError(f"Run {row.id[:8]} is {row.state}; wait for its end, or stop it first.")
    if kind == "ingested":
        raise UserError(f"Run {row.id[:8]} came about elsewhere; `valk grade` grades its results again.")
    if request.judge and kind != "eval_spec":
        raise UserError(f"--judge is for runs of an eval spec; run {row.id[:8]} is on {row.benchmark}.")
    if request.tests and kind != "task_dir":
        raise UserError(
            f"--tests is for benchmarks of task directories; run {row.id[:8]} is on {row.benchmark}."
        )


def _judged_spec(row: RunRow) -> Any:
    from valkyrie.benchmarks.eval_spec.source import JudgedSpec

    return JudgedSpec(row.benchmark_source)


def _nothing(run_id: str, left_out: Sequence[views.TrialLeftOut]) -> str:
    reasons: dict[str, list[str]] = {}
    for one in left_out:
        reasons.setdefault(one.reason, []).append(one.task_id if not one.k else f"{one.task_id}#{one.k}")
    shown = [
        f"  {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}: {reason}"
        for reason, names in reasons.items()
    ]
    return "\n".join([f"No trial of run {run_id[:8]} can be graded again; every verdict stays.", *shown])


async def _check_tests(
    row: RunRow, source: Json, task_ids: Sequence[str], named: str, variables: Mapping[str, str]
) -> list[str]:
    """Refuse tests that lack a task; return what else of their tasks is not used."""
    other = benchmarks.open_frozen(source, variables)
    own = benchmarks.open_frozen(row.benchmark_source, variables)
    known = set(await other.list_tasks())
    if missing := [task_id for task_id in task_ids if task_id not in known]:
        shown = ", ".join(map(repr, missing[:5])) + (f" and {len(missing) - 5} more" * (len(missing) > 5))
        raise UserError(f"--tests: {named} has no task {shown}; name the others with --task.")
    notices: list[str] = []
    for task_id in task_ids:
        theirs = await other.describe(task_id)
        try:
            ours = await own.describe(task_id, row.dataset)
        except ValkyrieError:
            continue  # it is gone or broken; its place is taken by theirs
        if theirs.steps or ours.steps:
            raise UserError(f"--tests: task {task_id!r} of {named} has steps, which are not graded again.")
        if differs := [name for name in _OTHERWISE if getattr(theirs, name) != getattr(ours, name)]:
            notices.append(
                f"task {task_id} of {named} differs in {', '.join(differs)} too; its tests and [verifier] "
                "alone are used"
            )
    return notices


def _change(one: GradingVerdict, other: GradingVerdict) -> views.GradingChange | None:
    graded = [verdict.state is TrialState.FINISHED for verdict in (one, other)]
    if not any(graded):
        return None
    if all(graded):
        if bool(one.passed) != bool(other.passed):
            kind = "now passes" if other.passed else "now fails"
        elif one.score != other.score:
            kind = "score"
        else:
            return None
    else:
        kind = "now graded" if graded[1] else "no longer graded"
    return views.GradingChange(
        task_id=one.task_id,
        k=one.k,
        kind=kind,  # type: ignore[arg-type]
        score_a=one.score,
        score_b=other.score,
        passed_a=one.passed,
        passed_b=other.passed,
        attempt_a=one.attempt,
        attempt_b=other.attempt,
    )


def _grading_view(found: Any, row: RunRow) -> views.GradingView:
    arguments: Mapping[str, Any] = found.arguments
    state = "ended" if found.finished_at is not None else "under way"
    for word in ("outdated", "dropped"):
        state = word if arguments.get(word) else state
    return views.GradingView(
        number=found.number,
        created_at=found.created_at,
        finished_at=found.finished_at,
        started_by=found.started_by,
        tests=arguments.get("tests"),
        judge=arguments.get("judge"),
        trials=arguments.get("trials"),
        base=arguments.get("base"),
        in_use=found.number == row.grading,
        state=state,  # type: ignore[arg-type]
        final_score=found.final_score,
        score_graded=found.score_graded,
        score_confirmed=found.score_confirmed,
    )


def _own_view(row: RunRow) -> views.GradingView:
    return views.GradingView(
        number=0,
        created_at=row.created_at,
        finished_at=row.finished_at,
        started_by=row.started_by,
        tests=None,
        judge=None,
        trials=None,
        base=None,
        in_use=True,
        state="ended" if RunState(row.state).terminal else "under way",
        final_score=row.final_score,
        score_graded=row.score_graded,
        score_confirmed=row.score_confirmed,
    )


# The score of some of a run's tasks; the run's own stays as it is.

TIMEOUT_S = 60.0


def rescored(
    row: Any, trials: Sequence[Any], organisation: Organisation, headers: Mapping[str, str]
) -> tuple[Json, views.ScoreView]:
    """Return the benchmark's verdict on these trials of a run, and the named numbers over them.

    Only a benchmark's own service can compute its score: where it cannot be asked, there is none, and the
    verdict says why.
    """
    try:
        final, graded, confirmed = asyncio.run(_asked(row, trials, organisation, headers))
    except (ValkyrieError, TimeoutError) as error:
        why = str(error) or f"no answer within {TIMEOUT_S:g} s"
        final, graded, confirmed = {"final_score": None, "properties": {"not_computed": why}}, None, None
    return final, _numbers(row, trials, final, graded, confirmed)


async def _asked(
    row: Any, trials: Sequence[Any], organisation: Organisation, headers: Mapping[str, str]
) -> tuple[Json, float | None, float | None]:
    source: Json = row.benchmark_source
    asks_a_service = source.get("kind") == "service"
    handed = with_headers(service_headers(row, headers, organisation) if asks_a_service else {})
    benchmark = benchmarks.open_frozen(source, handed)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            grades = grades_of(trials)
            final, graded = await computed(benchmark, grades, row.dataset)
            confirmed = await confirmed_score(benchmark, grades, row.dataset)
    finally:
        await benchmark.close()
    # A service is not to get its own credential into a file that is passed around.
    return Masker(unspeakable(handed)).data(final), graded, confirmed


def _numbers(
    row: Any, trials: Sequence[Any], final: Json, graded: float | None, confirmed: float | None
) -> views.ScoreView:
    """Return the numbers of a run that has these trials only."""
    scores: dict[str, list[float | None]] = {}
    counters: dict[str, float] = defaultdict(int)
    worst = worst_score(trial.score for trial in trials if trial.state == TrialState.FINISHED)
    for trial in trials:
        counters[STATE_COUNTERS[TrialState(trial.state)]] += 1
        score = worst if ended_by_agent(trial.state, trial.category) else None
        if trial.state == TrialState.FINISHED:
            add_grade(counters, trial, +1)
            score = trial.score
        elif trial.state == TrialState.ERROR and trial.category:
            counters[ERROR_COUNTERS[Category(trial.category)]] += 1
        if trial.state != TrialState.SKIPPED:
            scores.setdefault(trial.task_id, []).append(score)
    names = (*STATE_COUNTERS.values(), *ERROR_COUNTERS.values(), *_COUNTERS)
    smaller = SimpleNamespace(
        state=RunState.FINISHED,
        fraction=row.fraction,
        arguments=row.arguments,
        final_evaluation=final,
        final_score=final["final_score"],
        score_graded=graded,
        score_confirmed=confirmed,
        **{name: counters[name] for name in names},
    )
    families = {trial.task_id: trial.family for trial in trials if trial.family is not None}
    return score_view(smaller, scores, families)


_COUNTERS = (
    *("n_passed", "n_partial", "score_sum"),
    *("n_confirmed", "confirmed_sum", "n_verified", "n_open"),
)
