"""Verbs that change runs: plan, start, resume, retry, stop, update, delete, and a shell in a sandbox."""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie import agents, views
from valkyrie.agents.loader import ARCHIVE_NAME
from valkyrie.artifact_store.protocol import frozen_agent_key, run_prefix, upload_key
from valkyrie.benchmarks.protocol import not_runnable
from valkyrie.benchmarks.service.address import ServiceAddress, custom_service, reach_of
from valkyrie.domain import SECOND_TRIES, Identity, Json, RunState, TrialState
from valkyrie.errors import StoreError, UsageError, UserError, ValkyrieError
from valkyrie.plan import FAMILY, TrialPlan
from valkyrie.report.formats import plural
from valkyrie.report.statistics.power import planned_gaps
from valkyrie.secrets import delivery
from valkyrie.store import executors, runs, trials
from valkyrie.store.runs import past_scores
from valkyrie.tracker.app import CallerContext
from valkyrie.tracker.checks import check_update, refuse
from valkyrie.tracker.run_reader import RunReader
from valkyrie.tracker.secrets import check_callers_url, supply_again

if TYPE_CHECKING:
    from valkyrie.artifact_store.protocol import ArtifactStore, LogKeeper
    from valkyrie.store import Connection
    from valkyrie.store.layout import RunFolder
    from valkyrie.store.rows import RunRow
    from valkyrie.tracker.prepare import PreparedRun

_SPACE = uuid.UUID("5f3d4f5e-5d0c-4a56-9d2b-6d1f3f0a7c11")
"""Run ids of starts that carry a key of the caller's are made from it: the same start is the same run."""


@dataclass(frozen=True, slots=True)
class Again:
    """Which trials of a run go on, and how."""

    request: views.ResumeRequest
    errors_too: bool = False
    category: str | None = None
    from_scratch: bool = False
    conclude: bool = False
    """Where nothing is left to run, an ended run is concluded once more: scored, uploaded, told."""

    @property
    def names_agents(self) -> bool:
        """Who names the category or the tasks means ends by the agent's doing, too, which count already."""
        return self.errors_too and (self.category is not None or self.request.task_ids is not None)

    def remarks(self, before: int, after: int) -> Iterator[str]:
        """Yield what is to be said of ends by the agent's doing, of which there were and are so many."""
        if before > after:
            get = "gets" if before - after == 1 else "get"
            yield (
                f"{plural(before - after, 'trial')} that had counted, by the agent's own doing, {get} a "
                "second try: the score is no longer that of one try each"
            )
        elif self.errors_too and after and not self.names_agents:
            yield (
                f"{plural(after, 'trial')} that ended by the agent's own doing "
                f"{'counts as it is' if after == 1 else 'count as they are'}; --category agent runs "
                f"{'it' if after == 1 else 'them'} again"
            )


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run about to be stored."""

    run_id: str
    prepared: PreparedRun
    values: Json = field(default_factory=dict)
    """Columns besides those that follow from the request."""


class RunVerbs:
    """Start runs, change them, end them."""

    def __init__(self, context: CallerContext, reader: RunReader) -> None:
        self._context = context
        self._reader = reader

    def plan(self, request: views.RunRequest) -> views.PlanView:
        prepared = self._context.prepare(request, only_look=self._context.only_looks)
        return replace(prepared.view(), shows=self.shown_gaps(prepared))

    def shown_gaps(self, prepared: PreparedRun) -> Json | None:
        """Return which gaps between agents a planned run can show, from past runs where there are any."""
        tasks = {one.task_id for one in prepared.trials}
        if not tasks or not prepared.benchmark.fraction:
            return None
        place = prepared.benchmark.name, prepared.request.dataset
        with self._context.store.reading() as connection:
            past = past_scores(connection, self._context.identity.org_id, *place)
        return planned_gaps(len(tasks), max(1, round(len(prepared.trials) / len(tasks))), past)

    def start(self, request: views.RunRequest, *, key: str | None = None) -> views.StartedRun:
        run_id = str(uuid.uuid5(_SPACE, f"{self._context.identity.org_id} {key}") if key else uuid.uuid4())
        if key and self._is_stored(run_id):
            return views.StartedRun(
                self._reader.fetch(run_id), ["this start was asked for before; here is its run"]
            )
        prepared = self._prepare(request)
        self._write(run_id, prepared)
        notices = self._context.dispatch.deliver(run_id, prepared.secrets)
        return views.StartedRun(self._reader.fetch(run_id), [*prepared.notices, *notices])

    def enqueue(self, request: views.RunRequest) -> str:
        """Plan, check and store a run, and leave it to whichever executor comes; its id."""
        run_id = str(uuid.uuid4())
        self._write(run_id, self._prepare(request))
        return run_id

    def _prepare(self, request: views.RunRequest) -> PreparedRun:
        prepared = self._context.prepare(request)
        if prepared.problems:
            raise refuse(prepared.problems, prepared.missing)
        return prepared

    def _write(self, run_id: str, prepared: PreparedRun) -> None:
        self.store_all([NewRun(run_id, prepared)])

    def store_all(self, new: Sequence[NewRun], also: Callable[[Connection], None] | None = None) -> None:
        """Freeze the agents, then store runs and trials, and what comes with them, in one transaction; a
        failure leaves nothing."""
        try:
            rows = [(one, self._frozen_values(one), new_trials(one.prepared.trials)) for one in new]
            with self._context.store.writing() as connection:
                if also:
                    also(connection)
                for one, values, trials in rows:
                    runs.create(connection, values, trials)
                    self._context.dispatch.seal(connection, one.run_id, one.prepared.secrets)
        except BaseException:
            for one in new:
                self._clear_away(one)
            raise

    def _frozen_values(self, new: NewRun) -> Json:
        """Return the columns of a new run, its agent frozen into its folder."""
        folder = self._context.data.run(new.run_id)
        frozen = agents.freeze(new.prepared.agent, folder.agent)
        _keep_frozen(new.prepared, new.run_id, folder, self._context.organisation.uploads())
        values = _run_values(new.prepared, new.run_id, frozen, self._context.identity)
        if shows := self.shown_gaps(new.prepared):
            values["arguments"]["shows"] = shows
        return {**values, **new.values}

    def _clear_away(self, new: NewRun) -> None:
        """Remove what was put in place for a run that was not stored after all."""
        # Ctrl+C may come after the commit: then the run exists, and needs its agent.
        if self._is_stored(new.run_id):
            return
        shutil.rmtree(self._context.data.run(new.run_id).root, ignore_errors=True)
        if new.prepared.artifacts:
            # The first error is the one to tell; what is left in the bucket belongs to no run.
            with contextlib.suppress(ValkyrieError):
                new.prepared.artifacts.delete(run_prefix(new.run_id))

    def _is_stored(self, run_id: str) -> bool:
        try:
            with self._context.store.reading() as connection:
                return runs.version(connection, run_id) is not None
        except StoreError:
            return False

    def resume(self, ref: str, request: views.ResumeRequest = views.ResumeRequest()) -> views.StartedRun:
        # Who names a task that ended in an error means it, whichever word they use.
        return self.go_on(ref, Again(request, errors_too=request.task_ids is not None))

    def retry(self, ref: str, request: views.RetryRequest = views.RetryRequest()) -> views.StartedRun:
        return self.go_on(
            ref,
            Again(
                request,
                errors_too=True,
                category=request.category,
                from_scratch=request.from_scratch,
                conclude=request.task_ids is None and request.category is None,
            ),
        )

    def go_on(self, ref: str, again: Again) -> views.StartedRun:
        """Reopen what may run again, with secrets resolved anew: nothing is changed when one is missing."""
        with self._context.store.reading() as connection:
            row = runs.get(connection, self._context.resolve(connection, ref))
            regrading = runs.regrading(connection, row.id)
        _refuse_unrunnable(row, again, regrading=regrading)
        change = self._moved(row, again.request.benchmark_url)
        source = change[0]["benchmark_source"] if change else row.benchmark_source
        values, notices = self.values_again(row, again.request.headers, source)
        with self._context.store.writing() as connection:
            reopened = _reopen(connection, row.id, again, change[0] if change else {})
            if not reopened.still_ended:
                self._context.dispatch.seal(connection, row.id, values)
        if reopened.still_ended:
            return views.StartedRun(self._reader.fetch(row.id), ["nothing is left to run"])
        moved = [change[1]] if change else []
        delivered = self._context.dispatch.deliver(row.id, values)
        notices = [*notices, *moved, *reopened.remarks, *delivered]
        view = self._reader.fetch(row.id)
        if not reopened.trials and view.counts[TrialState.PENDING] == 0:
            notices = [*notices, "nothing was left to run; the score is computed again"]
        return views.StartedRun(view, notices)

    def _moved(self, row: RunRow, url: str | None) -> tuple[Json, str] | None:
        """Return what changes for a run whose service moved; None while an executor works on it."""
        if not RunState(row.state).terminal and self._context.dispatch.alive():
            return None
        if url and not self._context.organisation.trusted:
            check_callers_url(url, self._context.allow_local, "The benchmark's address")
        return moved_service(
            row, url, trusted=self._context.organisation.trusted, allow_local=self._context.allow_local
        )

    def values_again(
        self, row: RunRow, headers: Mapping[str, str], source: Json
    ) -> tuple[Mapping[str, str], Sequence[str]]:
        """Return what the run must be handed, from wherever it is now."""
        if not headers and not delivery.wanted(row.arguments):
            return {}, []
        return supply_again(
            row, headers, source, self._context.organisation, allow_local=self._context.allow_local
        )

    def stop(self, ref: str, request: views.StopRequest = views.StopRequest()) -> views.RunView:
        with self._context.store.writing() as connection:
            run_id = self._context.resolve(connection, ref)
            if request.task_ids is not None:
                runs.check_tasks(connection, run_id, request.task_ids)
            runs.stop(connection, run_id, time.time(), force=request.force, task_ids=request.task_ids)
        self._context.dispatch.wake(needed=True)  # it ends what was taken from it, and writes the score
        return self._reader.fetch(run_id)

    def update(self, ref: str, request: views.UpdateRequest) -> views.RunView:
        values = {name: value for name, value in asdict(request).items() if value is not None}
        if not values:
            raise UsageError(
                "There is nothing to change; give --concurrency, --label, --priority, --max-cost or "
                "--abort-after."
            )
        check_update(request)
        with self._context.store.writing() as connection:
            run_id = self._context.resolve(connection, ref)
            runs.set_values(connection, run_id, **values)
        self._context.dispatch.wake()
        return self._reader.fetch(run_id)

    def delete(self, ref: str) -> None:
        with self._context.store.writing() as connection:
            run_id = self._context.resolve(connection, ref)
            place = runs.get(connection, run_id).place
            runs.forget(connection, run_id)
        self._context.dispatch.forget(run_id)
        shutil.rmtree(self._context.data.run(run_id).root, ignore_errors=True)
        if place and (artifacts := self._context.organisation.artifacts(place.get("artifacts"))):
            artifacts.delete(run_prefix(run_id))
        self._context.store.give_back()

    def shell(self, ref: str, task_id: str, k: int = 0) -> Sequence[str]:
        with self._context.store.reading() as connection:
            run_id = self._context.resolve(connection, ref)
            trials.one_trial(connection, run_id, task_id, k)
        argv = self._context.dispatch.shell(run_id, task_id, k)
        if not argv:
            raise UserError(
                f"No sandbox of task {task_id!r} is kept. Start the run with --keep-sandbox; kept sandboxes "
                "end with their executor, after some hours, or when the run is deleted."
            )
        return argv


@dataclass(frozen=True, slots=True)
class _Reopened:
    """What became of a run that was to go on."""

    trials: int
    still_ended: bool
    """Nothing was left to run, and the run stays as it was."""
    remarks: Sequence[str]


def _refuse_unrunnable(row: RunRow, again: Again, *, regrading: bool) -> None:
    """Raise UserError for a run that came about elsewhere, or that has cost what it may."""
    if row.benchmark_source.get("kind") == "ingested":
        raise not_runnable(row.id)
    errors = row.n_error - (0 if again.names_agents else row.e_agent)
    left = row.n_pending + row.n_stopped + (errors if again.errors_too else 0)
    if left and not regrading and (reached := limit_reached(row.id, row.cost_sum, row.max_cost)):
        raise UserError(reached, cause="max_cost")


def _reopen(connection: Connection, run_id: str, again: Again, change: Json) -> _Reopened:
    """Let a run's trials wait again; one with nothing left stays as it was, unless it is to be concluded."""
    before = runs.locked(connection, run_id)
    if before.bound and executors.lives_at(connection, before.bound):
        raise UserError(
            f"An eval is at work on run {run_id[:8]}. Wait for it, or end it first: Ctrl+C there, or "
            f"`valk run stop {run_id[:8]}`."
        )
    if change:
        runs.set_values(connection, run_id, **change)
    request = again.request
    if request.task_ids is not None:
        runs.check_tasks(connection, run_id, request.task_ids)
    trials = runs.reopen(
        connection,
        run_id,
        errors_too=again.errors_too,
        category=again.category,
        task_ids=request.task_ids,
        concurrency=request.concurrency,
        from_scratch=again.from_scratch,
    )
    after = runs.get(connection, run_id)
    if before.e_agent > after.e_agent:
        tries = after.arguments.get(SECOND_TRIES, 0) + before.e_agent - after.e_agent
        runs.set_values(connection, run_id, arguments={**after.arguments, SECOND_TRIES: tries})
    left = trials or before.n_pending
    still_ended = not left and before.state == RunState.FINISHED and not again.conclude
    if still_ended:
        kept = ("state", "finished_at", "passes", "exit_codes", "worked_s")
        runs.set_values(connection, run_id, **{name: getattr(before, name) for name in kept})
    return _Reopened(trials, still_ended, list(again.remarks(before.e_agent, after.e_agent)))


def limit_reached(run_id: str, spent: float, limit: float | None) -> str | None:
    """Return why a run would stop at once, and the command that lets it go on; None when it would not."""
    if limit is None or spent < limit:
        return None
    return (
        f"Run {run_id[:8]} has cost ${spent:.2f} of --max-cost ${limit:.2f}, so nothing more of it begins. "
        f"`valk run update {run_id[:8]} --max-cost N` raises the limit; then go on."
    )


def moved_service(
    row: RunRow, given: str | None = None, *, trusted: bool = True, allow_local: bool = False
) -> tuple[Json, str] | None:
    """Return what to change of a run whose service is elsewhere now, and what to say of it.

    `given` is the address a caller of a server has in their own config; here `config service set` says it.
    Where callers may lead us to is this machine only if `allow_local`.
    """
    source: Json = row.benchmark_source
    if source.get("where") != "custom":
        return None
    found = custom_service(source["name"]) if trusted else None
    if given:
        reach = None if trusted else reach_of(allow_local=allow_local)
        found = ServiceAddress(source["name"], given.rstrip("/"), "custom", reach=reach)
    if found is None or found.url == source["url"]:
        return None
    here = {"url": found.url, "reaches_sandboxes": "loopback" if found.on_loopback else "public"}
    if found.reach:
        here["reach"] = found.reach
    arguments: Json = row.arguments
    service = {**arguments.get("service", {}), "url": found.url}
    return (
        {"benchmark_source": {**source, **here}, "arguments": {**arguments, "service": service}},
        f"benchmark service {found.name} is at {found.url} now (it was at {source['url']})",
    )


# What is stored of a run: everything it was asked with, secrets by name only.


def _keep_frozen(prepared: PreparedRun, run_id: str, folder: RunFolder, uploads: Path) -> None:
    """Put the run's agent, and a benchmark that was sent along, where executors elsewhere find them."""
    artifacts = prepared.artifacts
    if artifacts is None:
        return
    archive = folder.agent / ARCHIVE_NAME
    if archive.is_file():
        artifacts.put(frozen_agent_key(run_id, prepared.agent.name), archive)
    digest = prepared.benchmark.source.get("upload")
    if digest and artifacts.find(upload_key(digest)) is None:
        artifacts.put(upload_key(digest), uploads / f"{digest}.zip")


def new_trials(planned: Sequence[TrialPlan]) -> list[runs.NewTrial]:
    return [
        runs.NewTrial(one.task_id, one.k, one.digest, one.cpus, one.memory_mb, one.family) for one in planned
    ]


def _run_values(prepared: PreparedRun, run_id: str, frozen: Json, identity: Identity) -> Json:
    request = prepared.request
    return {
        "id": run_id,
        "agent": prepared.agent.name,
        "model": prepared.agent.model,
        "benchmark": prepared.benchmark.name,
        "dataset": request.dataset,
        "label": request.label,
        "provider": request.provider,
        "org_id": identity.org_id,
        "started_by": identity.person,
        "key_id": identity.key_id,
        "priority": request.priority,
        "max_cost": request.max_cost,
        "abort_after": request.abort_after,
        "notify": prepared.wishes,
        "place": kept_at(prepared.artifacts, prepared.logs, run_id),
        "concurrency": request.concurrency,
        "in_turn": request.in_turn,
        "fraction": prepared.benchmark.fraction,
        "created_at": time.time(),
        "arguments": _stored_arguments(prepared),
        "agent_frozen": frozen,
        "benchmark_source": prepared.benchmark.source,
        "enforcement": {"isolation": prepared.capabilities.isolation, **prepared.capabilities.enforcement},
    }


def _stored_arguments(prepared: PreparedRun) -> Json:
    """Return everything a run was asked with, secrets by name only."""
    request, source = prepared.request, prepared.benchmark.source
    return {
        "agent": request.agent,
        "benchmark": request.benchmark,
        "model": request.model,
        "dataset": request.dataset,
        "trials": request.trials,
        "kwargs": dict(request.kwargs),
        "secrets": dict(prepared.agent.secrets),
        **prepared.values.names(),
        "provider_secret": request.provider_secret,
        "lambda_function": request.lambda_function,
        "ignore_custom_services": request.ignore_custom_services,
        "task_ids": list(request.task_ids) if request.task_ids is not None else None,
        "slice": request.slice,
        "keep_sandbox": request.keep_sandbox,
        "max_attempts": request.max_attempts,
        "store_secrets": request.store_secrets,
        **_families(prepared),
        "agent_digest": prepared.agent.digest,
        "settings": asdict(prepared.settings),
        **({"stop_rule": prepared.stop_rule} if prepared.stop_rule else {}),
        **_service(source),
        **_variant(source),
    }


def request_again(run: views.RunView, task_id: str, headers: Mapping[str, str]) -> views.RunRequest:
    """Return the request that runs one task of a run once more, in a run of its own whose sandbox is kept.

    The run it comes from keeps its verdict: another try of a trial that counts would be a second chance.
    """
    said = run.arguments
    if run.ingested or "variant" in said:
        what = "ran elsewhere" if run.ingested else "belongs to an eval; `valk eval` runs it again"
        raise UserError(f"Run {run.id[:8]} {what}: its trials cannot be run again here.")
    if lacking := [name for name in said.get("headers", []) if name not in headers]:
        flags = " ".join(f"-H {name} VALUE" for name in lacking)
        raise UserError(f"Run {run.id[:8]} was started with headers, which are not kept; add {flags}.")
    settings = {key: value for key, value in said.get("settings", {}).items() if key in _AS_ASKED}
    same = {key: said[key] for key in _SAME if said.get(key) is not None}
    return views.RunRequest(
        task_ids=[task_id],
        concurrency=1,
        label=f"debug of {run.id[:8]}",
        keep_sandbox=True,
        max_attempts=1,
        headers=headers,
        pass_env=said.get("host_variables", []),
        **{**same, **settings},
    )


_SAME = (
    *("agent", "benchmark", "model", "dataset", "kwargs", "secrets", "provider_secret"),
    *("ignore_custom_services", "store_secrets"),
)
_AS_ASKED = tuple(one.name for one in fields(views.RunRequest))


def _families(prepared: PreparedRun) -> Json:
    """Return the key families were looked for under, and that there are some."""
    if not any(one.family for one in prepared.trials):
        return {}
    return {"family": prepared.request.family or FAMILY}


def _service(source: Json) -> Json:
    """Return where a benchmark service was, which version it said it is, and what it was to grade."""
    if source.get("kind") != "service":
        return {}
    return {"service": {name: source[name] for name in ("url", "where", "grading", "versions")}}


def _variant(source: Json) -> Json:
    if source.get("kind") != "eval_spec":
        return {}
    return {"variant": source["options"].get("variant", "main")}


def kept_at(artifacts: ArtifactStore | None, logs: LogKeeper | None, run_id: str) -> Json | None:
    """Return where artifacts and logs go besides the executor's folder, and the pages that show them."""
    found: Json = {}
    if artifacts:
        found["artifacts"] = artifacts.place | _page(artifacts.console_url(run_prefix(run_id)))
    if logs:
        found["logs"] = logs.place | _page(logs.url(run_id))
    return found or None


def _page(url: str | None) -> Json:
    return {"page": url} if url and "://" in url else {}
