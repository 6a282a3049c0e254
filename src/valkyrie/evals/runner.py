"""An eval in the foreground: its job in the store, an executor beside it, results printed in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from valkyrie.domain import Json, TrialState
from valkyrie.errors import InfrastructureError, UserError
from valkyrie.evals.plan import EvalRequest, PlannedEval, PlannedEvals, plan_evals, refuse, which_agents
from valkyrie.evals.plugins import check_still_trusted
from valkyrie.evals.result_folder import LiveResults, open_folder, variant_folders
from valkyrie.evals.results import Invocation, SpecResult, StimulusResult, TrialResult
from valkyrie.evals.stored_results import FinishedTrial, Loader, ended_now, expected, skipped_eval
from valkyrie.executor.host import alone
from valkyrie.grade import judges
from valkyrie.report.formats import plural
from valkyrie.store.journal import Finish
from valkyrie.store.leases import Leased
from valkyrie.tracker.foreground import ForegroundJob, ForegroundRequest, binding_of
from valkyrie.tracker.local import LocalTracker

TELL_AFTER_S = 0.05
LOOK_EVERY_S = 0.5
"""How often the store is asked about runs that another executor has taken up."""
MARKER = "eval.json"
"""In an output folder: which job it belongs to."""


class EvalWatcher(Protocol):
    """Who is told how an eval goes."""

    def planned(self, planned: PlannedEvals, job: ForegroundJob | None) -> None:
        """Everything was checked and stored; it begins now."""
        ...

    def progress(self, done: int, total: int, retries: int) -> None:
        """An attempt has ended."""
        ...

    def stimulus_done(self, stimulus: StimulusResult, of: SpecResult) -> None:
        """All trials of a stimulus have ended; told in the order of the plan."""
        ...

    def installing(self, line: str) -> None:
        """An agent's software is being installed, or is installed now."""
        ...

    def interrupted(self) -> None:
        """Someone wants it to end."""
        ...


@dataclass(frozen=True, slots=True)
class FinishedEval:
    """How an eval ended."""

    invocation: Invocation
    interrupted: bool = False


def run_eval(tracker: LocalTracker, request: EvalRequest, watcher: EvalWatcher) -> FinishedEval:
    """Plan, run and gather everything; the caller writes and prints it."""
    planned = plan_evals(request)
    refuse([one.asks for one in planned.evals if one.asks])
    to_run = [one for one in planned.evals if one.request]
    if not to_run:
        watcher.planned(planned, None)
        return FinishedEval(Invocation([skipped_eval(one) for one in planned.evals]))
    with _own_folder(request) as request:
        job = _stored(tracker, request, planned)
        _mark(request, job)
    with _alone(tracker, job.id):
        return _work(tracker, job, request, planned, watcher)


def _mark(request: EvalRequest, job: ForegroundJob) -> None:
    if request.folder:
        request.folder.mkdir(parents=True, exist_ok=True)
        write_marker(request.folder, {"id": job.id, "name": job.name, "kind": _kind(request)})
        for name, content in request.begins_with.items():
            if not (request.folder / name).exists():
                (request.folder / name).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def _alone(tracker: LocalTracker, job_id: str) -> AbstractContextManager[None]:
    """Nobody else works on this job meanwhile."""
    return alone(tracker.data, binding_of(job_id))


def _stored(tracker: LocalTracker, request: EvalRequest, planned: PlannedEvals) -> ForegroundJob:
    try:
        return tracker.start_foreground(_foreground_request(request, planned))
    except UserError as error:
        if said := which_agents(planned):
            error.args = (f"{error}\n{said}",)
        raise


@contextlib.contextmanager
def _own_folder(request: EvalRequest) -> Iterator[EvalRequest]:
    """The request with a folder of its own; nothing is left of it when the eval cannot begin."""
    if request.output_dir is None:
        yield request
        return
    name = "/".join(part for part in (request.run_id, request.shard) if part)
    folder = open_folder(request.output_dir, datetime.now(UTC), name or None)
    try:
        yield replace(request, folder=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()
            request.output_dir.rmdir()
        raise


def _kind(request: EvalRequest) -> str:
    return "experiment" if any(item.experiment for item in request.items) else "eval"


def _foreground_request(request: EvalRequest, planned: PlannedEvals) -> ForegroundRequest:
    return ForegroundRequest(
        name=request.name or _job_name(planned.evals),
        requests=[one.request for one in planned.evals if one.request],
        concurrency=request.workers,
        source={"type": _kind(request), "evals": list(dict.fromkeys(one.spec.name for one in planned.evals))},
        kept=request.to_json(),
    )


def resume_eval(
    tracker: LocalTracker,
    ref: str,
    watcher: EvalWatcher,
    *,
    shutdown_timeout: float | None = None,
    trust: bool = False,
) -> tuple[EvalRequest, FinishedEval]:
    """Go on with what is left of an eval; what has a verdict keeps it.

    Plugins of its project must still be trusted, or `trust` be the word of the command line.
    """
    kept = tracker.fetch_foreground(ref)
    request = EvalRequest.from_json(kept)
    check_still_trusted(request, trust=trust)
    if shutdown_timeout is not None:
        request = replace(request, shutdown_timeout=shutdown_timeout)
    planned = plan_evals(request)
    refuse([one.asks for one in planned.evals if one.asks])
    with _alone(tracker, kept["id"]):
        _refuse_changed(tracker, kept, request, planned)
        job = tracker.resume_foreground(kept["id"])
        _mark(request, job)
        return request, _work(tracker, job, request, planned, watcher)


def _refuse_changed(tracker: LocalTracker, kept: Json, request: EvalRequest, planned: PlannedEvals) -> None:
    """Specs with other stimuli or trials than at the beginning are another eval."""
    to_run = [one for one in planned.evals if one.request]
    job = tracker.fetch_job(kept["id"])
    if len(to_run) != len(job.runs):
        raise UserError(
            f"{job.name} has {plural(len(job.runs), 'run')}, and its specs make {len(to_run)}: runs were "
            "deleted, or specs changed. Start a new eval.",
            cause="task_changed",
        )
    changed: set[str] = set()
    for one, run in zip(to_run, job.runs, strict=True):
        before = Loader(tracker.store, tracker.data, one, run.id).stored()
        now = expected(one, request.runs)
        changed |= {name for name in {*before, *now} if before.get(name) != now.get(name)}
    if changed:
        what = ", ".join(sorted(changed)[:3]) + (", …" if len(changed) > 3 else "")
        raise UserError(
            f"The specs of {job.name} do not have the stimuli and trials it began with: {what}. Undo that, "
            "or start a new eval.",
            cause="task_changed",
        )


def _job_name(evals: Sequence[PlannedEval]) -> str:
    names = list(dict.fromkeys(one.spec.name for one in evals))
    more = f"-and-{len(names) - 1}-more" if len(names) > 1 else ""
    return f"{names[0]}{more}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"


def _work(
    tracker: LocalTracker,
    job: ForegroundJob,
    request: EvalRequest,
    planned: PlannedEvals,
    watcher: EvalWatcher,
) -> FinishedEval:
    to_run = [one for one in planned.evals if one.request]
    loaders = [
        Loader(tracker.store, tracker.data, one, run_id, request.run_id)
        for one, run_id in zip(to_run, job.run_ids, strict=True)
    ]
    watcher.planned(planned, job)
    following = _Following(loaders, request, watcher, _live_results(request, planned, loaders))
    following.begin()
    judged = any(one.judged for one in to_run)
    interrupted = asyncio.run(_drive(tracker, job, request, following, judged=judged))
    following.catch_up()
    results = iter([loader.eval(following.told.get(loader.run_id, {})) for loader in loaders])
    evals = [next(results) if one.request else skipped_eval(one) for one in planned.evals]
    return FinishedEval(
        Invocation(
            evals,
            id=job.id,
            name=job.name,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            folder=request.folder,
            notices=job.notices,
            command=request.command,
        ),
        interrupted,
    )


def _live_results(
    request: EvalRequest, planned: PlannedEvals, loaders: Sequence[Loader]
) -> Mapping[str, LiveResults]:
    """Return where the records of each run are appended; of an experiment each variant has a folder of its
    own."""
    if request.folder is None:
        return {}
    outlines = iter([loader.outline for loader in loaders])
    evals = [next(outlines) if one.request else skipped_eval(one) for one in planned.evals]
    if _kind(request) == "eval":
        places = dict.fromkeys((one.variant for one in evals), request.folder)
    else:
        places = variant_folders(request.folder, dict.fromkeys(one.variant for one in evals))
    live = {
        place: LiveResults(Invocation([one for one in evals if places[one.variant] == place]), place)
        for place in places.values()
    }
    return {loader.run_id: live[places[loader.planned.item.variant]] for loader in loaders}


async def _drive(
    tracker: LocalTracker, job: ForegroundJob, request: EvalRequest, following: _Following, *, judged: bool
) -> bool:
    """Work to the end, or until someone interrupts; whether someone did."""
    if not judged:
        return await _until_told(tracker, job, request, following)
    async with judges.shared_client():
        return await _until_told(tracker, job, request, following)


async def _until_told(
    tracker: LocalTracker, job: ForegroundJob, request: EvalRequest, following: _Following
) -> bool:
    executor = tracker.foreground_executor(job)

    async def work() -> None:
        await executor.work(job.values, following.ended, following.watcher.installing)
        while await asyncio.to_thread(tracker.is_taken_over, job):
            following.catch_up()
            await asyncio.sleep(LOOK_EVERY_S)

    working = asyncio.create_task(work())
    with _signals() as told:
        asking = asyncio.create_task(told.wait())
        try:
            await asyncio.wait((working, asking), return_when=asyncio.FIRST_COMPLETED)
            if not told.is_set():
                await working
                return False
            following.interrupted()
            await asyncio.to_thread(tracker.stop_foreground, job)
            executor.wake()
            await asyncio.wait((working,), timeout=request.shutdown_timeout)
            return True
        finally:
            for task in (asking, working):
                task.cancel()
            await asyncio.gather(asking, working, return_exceptions=True)


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """Set by Ctrl+C and SIGTERM; a second Ctrl+C ends the process where it stands."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        told.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, tell)
    try:
        yield told
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@dataclass(slots=True)
class _Following:
    """Counts what has ended, and tells of stimuli in the order of the plan."""

    loaders: Sequence[Loader]
    request: EvalRequest
    watcher: EvalWatcher
    live: Mapping[str, LiveResults] = field(default_factory=dict)
    """Where records go as trials end, by run; nowhere without an output folder."""
    told: dict[str, dict[str, StimulusResult]] = field(default_factory=dict)
    """What was told of already, by run and stimulus."""
    _left: dict[tuple[str, str], int] = field(default_factory=dict)
    _ended: dict[tuple[str, str], list[TrialResult]] = field(default_factory=dict)
    """Trials of stimuli that were not begun before and are not told of yet."""
    _fresh: dict[str, list[FinishedTrial]] = field(default_factory=dict)
    """Trials that have just ended, by run."""
    _kept: dict[tuple[str, str, int], TrialResult] = field(default_factory=dict)
    """Trials as their output folder has them."""
    _queue: deque[tuple[Loader, str]] = field(default_factory=deque)
    _done: int = 0
    _total: int = 0
    _retries: int = 0
    _telling: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        for loader in self.loaders:
            before = loader.stand()
            for name, count in expected(loader.planned, self.request.runs).items():
                ended = before.get(name, 0)
                self._left[loader.run_id, name] = count - ended
                if not ended:
                    self._ended[loader.run_id, name] = []
                self._done += ended
                self._total += count
                self._queue.append((loader, name))

    def begin(self) -> None:
        """Tell of what ended before, and how much there is to do."""
        self._write_before()
        self.tell()
        self.watcher.progress(self._done, self._total, self._retries)

    def ended(self, leased: Leased, finish: Finish) -> None:
        """An attempt has ended; with it perhaps its trial, its stimulus, and those that waited for it."""
        if finish.after is TrialState.PENDING:
            self._retries += 1
        else:
            self._done += 1
            self._left[leased.run_id, leased.task_id] -= 1
            self._fresh.setdefault(leased.run_id, []).append(ended_now(leased, finish))
        if self._telling is None:
            # Those that end at about the same time are told of together.
            self._telling = asyncio.get_running_loop().call_later(TELL_AFTER_S, self.tell)
        self.watcher.progress(self._done, self._total, self._retries)

    def interrupted(self) -> None:
        self.watcher.interrupted()

    def catch_up(self) -> None:
        """Tell of all that has ended, whoever ran it: the store knows what we were not told."""
        for loader in {id(loader): loader for loader, _ in self._queue}.values():
            stand = loader.stand()
            for name, count in expected(loader.planned, self.request.runs).items():
                stimulus = loader.run_id, name
                left = count - stand.get(name, 0)
                if (missed := self._left[stimulus] - left) > 0:
                    self._left[stimulus] = left
                    self._done += missed
                    self._ended.pop(stimulus, None)
        self.tell()
        self.watcher.progress(self._done, self._total, self._retries)

    def tell(self) -> None:
        """Tell of the stimuli whose turn it is."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self._take_fresh()
        while self._queue:
            loader, names = self._queue[0][0], list[str]()
            while (
                self._queue
                and self._queue[0][0] is loader
                and not self._left[loader.run_id, self._queue[0][1]]
            ):
                names.append(self._queue.popleft()[1])
            if not names:
                return
            ended = {name: self._ended.pop((loader.run_id, name), ()) for name in names}
            for stimulus in loader.stimuli(names, ended):
                kept = self._write(loader, stimulus.trials)
                self.told.setdefault(loader.run_id, {})[stimulus.name] = replace(stimulus, trials=kept)
                self.watcher.stimulus_done(stimulus, loader.heading)

    def _take_fresh(self) -> None:
        """Write the records of what has just ended, whether or not its stimulus has its turn."""
        fresh, self._fresh = self._fresh, {}
        for loader in self.loaders:
            trials = [loader.trial(ended) for ended in fresh.get(loader.run_id, ())]
            for trial in trials:
                if (waiting := self._ended.get((loader.run_id, trial.stimulus))) is not None:
                    waiting.append(trial)
            if trials:
                self._write(loader, trials)

    def _write(self, loader: Loader, trials: Sequence[TrialResult]) -> list[TrialResult]:
        """The same trials as the output folder has them; those it has not yet are written."""
        if (live := self.live.get(loader.run_id)) is None:
            return list(trials)
        heading = loader.heading
        new = [(trial, heading) for trial in trials if _key(loader, trial) not in self._kept]
        if new:
            self._keep(loader, live.write, new)
        return [self._kept.get(_key(loader, trial), trial) for trial in trials]

    def _keep(self, loader: Loader, write: _Write, trials: Sequence[tuple[TrialResult, SpecResult]]) -> None:
        try:
            kept = write(trials)
        except (UserError, InfrastructureError):
            self.live = {}  # a full disk is told of when everything is written at the end, or mended by then
        else:
            self._kept.update({_key(loader, trial): trial for trial in kept})

    def _write_before(self) -> None:
        """Let the folder of an eval that goes on have all that ended before, and nothing twice."""
        begun: set[LiveResults] = set()
        for loader in self.loaders:
            names = [name for name, count in loader.stand().items() if count]
            if names and (live := self.live.get(loader.run_id)):
                heading = loader.heading
                trials = [(trial, heading) for one in loader.stimuli(names) for trial in one.trials]
                self._keep(loader, live.write if live in begun else live.begin, trials)
                begun.add(live)


_Write = Callable[[Sequence[tuple[TrialResult, SpecResult]]], list[TrialResult]]


def _key(loader: Loader, trial: TrialResult) -> tuple[str, str, int]:
    return loader.run_id, trial.stimulus, trial.index


def find_marker(folder: Path) -> Json | None:
    """Return what an output folder says about the job it belongs to."""
    try:
        found: Json = json.loads((folder / MARKER).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found


def write_marker(folder: Path, about: Mapping[str, object]) -> None:
    """Say in an output folder which job it belongs to."""
    (folder / MARKER).write_text(json.dumps(about, indent=1) + "\n", "utf-8")
