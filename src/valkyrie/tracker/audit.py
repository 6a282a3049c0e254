"""Check a benchmark: run its solutions, nothing at all, and the cheating agent, and say what it is open to.

Everything runs in a data folder of its own, with an executor in this process; nothing of it is left. The
benchmark's tasks are seen there through links, beside a lock file of the check's own: so modes are tried
without touching the benchmark.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes.protocol import is_below
from sandboxes.work import outermost
from valkyrie import __version__, benchmarks
from valkyrie.benchmarks.audit import (
    CHEAT,
    CHEAT_METHODS,
    OWN_CHEAT,
    BenchmarkAudit,
    TaskAudit,
    Weakness,
    WeaknessFinding,
    inspect,
)
from valkyrie.benchmarks.protocol import BenchmarkRequest, select
from valkyrie.benchmarks.task_dir.benchmark import (
    TaskDirBenchmark,
    find_tasks,
    kept_lock,
    own_lock,
    write_lock,
)
from valkyrie.benchmarks.task_dir.task import PARTS, LockedTask, TaskDirectory
from valkyrie.benchmarks.task_dir.task_toml import stray_problem
from valkyrie.config.values import data_folder
from valkyrie.domain import Json, TaskSpec, TrialState, VerifyMode
from valkyrie.errors import UsageError
from valkyrie.executor.host import alone
from valkyrie.store import Store
from valkyrie.store.journal import Finish
from valkyrie.store.layout import DataFolder
from valkyrie.store.leases import Leased
from valkyrie.tracker.app import TrackerApp
from valkyrie.tracker.foreground import ForegroundJob, ForegroundRequest, binding_of
from valkyrie.tracker.local import LocalTracker
from valkyrie.tracker.protocol import each_trial
from valkyrie.views import RunRequest, TrialView

SHUTDOWN_S = 10.0
UNISOLATED = frozenset({"process", "null"})
"""Providers that stand between an agent and this machine in no way, or run nothing."""
_FOLDER = "checks"


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """What is to be checked, and how."""

    benchmark: str
    dataset: str = "default"
    task_ids: Sequence[str] | None = None
    slice: str | None = None
    provider: str = "local"
    oracle_runs: int = 2
    concurrency: int = 2
    host_image: bool = False
    pass_env: Sequence[str] = ()
    """Variables of the user's that tasks may be given."""
    allow_paths: Sequence[str] = ()
    """What tasks may read outside the benchmark's folder."""


Progress = Callable[[str, int, int], None]
"""Told what is being done, how many trials of it have ended, and how many there are."""


class InterruptedAuditError(Exception):
    """Someone ended the check."""


def audit_benchmark(request: AuditRequest, progress: Progress) -> BenchmarkAudit:
    """Check the benchmark. Ctrl+C ends it with what was found so far."""
    if request.provider in UNISOLATED:
        raise UsageError(
            f"--provider {request.provider}: the cheating agents replace system files and overwrite what "
            "they can; they run only where they are isolated, on local, docker or daytona."
        )
    began = time.monotonic()
    asking = BenchmarkRequest(host_image=request.host_image, allow_paths=request.allow_paths)
    opened = benchmarks.open_benchmark(request.benchmark, asking)
    if not isinstance(opened, TaskDirBenchmark):
        raise UsageError(f"{opened.name} has no task directories; only those can be checked.")
    folder = Path(opened.source["path"])
    folders = find_tasks(folder)
    chosen = asyncio.run(_choose(opened, request))
    allowed = tuple(map(Path, request.allow_paths))
    tasks = [
        TaskDirectory(one, folders[one], request.host_image, root=folder, allow_paths=allowed)
        for one in chosen
    ]
    audits = {task.id: _read(task) for task in tasks}
    sound = [task_id for task_id, audit in audits.items() if not audit.problems]
    interrupted = False
    if sound:
        with _private_folder() as root:
            # Its tasks are links to the benchmark's.
            linked = replace(request, allow_paths=(*request.allow_paths, str(folder.resolve())))
            auditor = _Auditor(linked, progress, root, {one: folders[one] for one in sound})
            try:
                auditor.work()
            except InterruptedAuditError:
                interrupted = True
            for task_id in sound:
                audits[task_id] = auditor.audit_of(task_id, audits[task_id])
    seconds = time.monotonic() - began
    return BenchmarkAudit(opened.name, request.provider, list(audits.values()), interrupted, seconds)


def lock_entries(audit: BenchmarkAudit) -> dict[str, LockedTask]:
    """Return what of an audit is locked: tasks whose mode was found."""
    return {
        task.task_id: LockedTask(
            digest=task.digest,
            mode=task.mode,
            keep_processes=task.keep_processes,
            oracle=list(task.oracle),
            nop=task.nop,
            open_to=[str(weakness) for weakness in task.open_to],
            program=__version__,
        )
        for task in audit.tasks
        if task.mode is not None and task.digest
    }


def write_found(audit: BenchmarkAudit, benchmark: str) -> Path | None:
    """Write what was found to the benchmark's lock file: in its folder, or in the data folder where it was
    asked for by name or its folder cannot be written. Returns the file; None where there is nothing to say.
    """
    entries = lock_entries(audit)
    if not entries or audit.interrupted:
        return None
    folder = Path(benchmarks.open_benchmark(benchmark).source["path"])
    by_path = Path(benchmark).expanduser().is_dir() and Path(benchmark).expanduser().samefile(folder)
    if by_path:
        with contextlib.suppress(UsageError):
            write_lock(own_lock(folder), entries)
            return own_lock(folder)
    write_lock(kept_lock(folder), entries)
    return kept_lock(folder)


async def _choose(benchmark: TaskDirBenchmark, request: AuditRequest) -> list[str]:
    available = await benchmark.list_tasks(request.dataset)
    return select(available, task_ids=request.task_ids, slice_text=request.slice)


def _read(task: TaskDirectory) -> TaskAudit:
    """Return what the files of a task tell."""
    problems = [str(problem) for problem in task.problems()]
    if problems:
        return TaskAudit(task.id, problems=problems)
    return TaskAudit(task.id, findings=inspect(task), declared=task.config.verifier.verify is not None)


class _Auditor:
    """One check of sound tasks: three rounds of runs in a private place."""

    def __init__(
        self, request: AuditRequest, progress: Progress, root: Path, folders: Mapping[str, Path]
    ) -> None:
        self._request = request
        self._progress = progress
        self._root = root
        self._folders = folders
        self._allowed = tuple(map(Path, request.allow_paths))
        self._links = root / "tasks"
        for task_id, folder in folders.items():
            (self._links / task_id).parent.mkdir(parents=True, exist_ok=True)
            (self._links / task_id).symlink_to(folder.resolve(), target_is_directory=True)
        self._specs = self._describe(self._links)
        tracker_app = TrackerApp(DataFolder(root / "home"))
        tracker_app.data.make()
        tracker_app.store = Store(tracker_app.data.database)  # its own, whatever the environment names
        self._tracker = LocalTracker(tracker_app)
        self._oracle: dict[str, list[TrialView]] = {}
        self._modes: dict[str, tuple[VerifyMode, bool]] = {}
        self._nop: dict[str, TrialView] = {}
        self._cheats: dict[str, dict[str, TrialView]] = {one: {} for one in folders}

    def work(self) -> None:
        """All rounds; results stay in this object."""
        try:
            self._find_modes()
            self._try_cheats()
        finally:
            self._tracker.close()

    def _describe(self, folder: Path) -> dict[str, TaskSpec]:
        request = self._request
        here = {name: os.environ[name] for name in request.pass_env if name in os.environ}
        benchmark = TaskDirBenchmark(
            folder, host_image=request.host_image, host_env=here, allow_paths=request.allow_paths
        )

        async def describe() -> dict[str, TaskSpec]:
            return {one: await benchmark.describe(one) for one in await benchmark.list_tasks()}

        return asyncio.run(describe())

    def _find_modes(self) -> None:
        solvable = [one for one in self._folders if self._specs[one].has_solution]
        if not solvable:
            return
        runs = self._request.oracle_runs
        asked = self._run_request(self._links, "oracle", solvable, trials=runs, verify="both")
        (found,) = self._run("solutions", [asked])
        for task_id in solvable:
            self._note_oracle(task_id, found.get(task_id, []))
        unsolved = [one for one in solvable if one not in self._modes]
        if not unsolved:
            return
        kept = dict.fromkeys(unsolved, (VerifyMode.SHARED, True))
        self._lock(self._links, self._specs, {**self._modes, **kept})
        asked = self._run_request(self._links, "oracle", unsolved, trials=runs)
        (found,) = self._run("solutions, their processes kept", [asked])
        for task_id in unsolved:
            trials = found.get(task_id, [])
            if trials and all(trial.passed for trial in trials):
                self._oracle[task_id] = trials
                self._modes[task_id] = (VerifyMode.SHARED, True)

    def _note_oracle(self, task_id: str, trials: list[TrialView]) -> None:
        self._oracle[task_id] = trials
        if not trials or not all(trial.passed for trial in trials):
            return
        seen = {trial.confirmed for trial in trials}
        if seen == {True}:
            self._modes[task_id] = (VerifyMode.FRESH, False)
        elif None not in seen:
            self._modes[task_id] = (VerifyMode.SHARED, False)

    def _try_cheats(self) -> None:
        self._lock(self._links, self._specs, self._modes)
        task_ids = list(self._folders)
        requests = [self._run_request(self._links, "nop", task_ids)]
        requests += [
            self._run_request(self._links, str(CHEAT), task_ids, kwargs={"way": way.name})
            for way in CHEAT_METHODS
        ]
        if own := self._own_cheats():
            requests.append(self._run_request(self._root / "own", "oracle", own))
        nop, *cheats = self._run("cheating agents", requests)
        self._nop = {task_id: trials[0] for task_id, trials in nop.items()}
        for name, found in zip((*(way.name for way in CHEAT_METHODS), OWN_CHEAT), cheats, strict=False):
            for task_id, trials in found.items():
                self._cheats[task_id][name] = trials[0]

    def _own_cheats(self) -> list[str]:
        """Tasks that bring a cheat, made anew with it in place of their solution."""
        own = [
            one
            for one, folder in self._folders.items()
            if (folder / OWN_CHEAT).is_file()
            and not self._specs[one].steps
            and stray_problem(folder / OWN_CHEAT, folder, self._allowed) is None
        ]
        for task_id in own:
            source, target = self._folders[task_id], self._root / "own" / task_id
            target.mkdir(parents=True)
            for part in PARTS:
                if (source / part).is_dir() and part != "solution":
                    shutil.copytree(source / part, target / part, symlinks=True)
                elif (source / part).is_file():
                    shutil.copy2(source / part, target / part)
            shutil.copytree(source / "cheat", target / "solution", symlinks=True)
        if own:
            self._lock(self._root / "own", self._describe(self._root / "own"), self._modes)
        return own

    def _lock(
        self, folder: Path, specs: Mapping[str, TaskSpec], modes: Mapping[str, tuple[VerifyMode, bool]]
    ) -> None:
        entries = {
            task_id: LockedTask(digest=spec.digest, mode=modes[task_id][0], keep_processes=modes[task_id][1])
            for task_id, spec in specs.items()
            if task_id in modes
        }
        own_lock(folder).unlink(missing_ok=True)
        write_lock(own_lock(folder), entries)

    def _run_request(self, folder: Path, agent: str, task_ids: Sequence[str], **more: object) -> RunRequest:
        request = RunRequest(
            agent=agent,
            benchmark=str(folder),
            task_ids=list(task_ids),
            provider=self._request.provider,
            host_image=self._request.host_image,
            pass_env=self._request.pass_env,
            allow_paths=self._request.allow_paths,
        )
        return replace(request, **more)  # type: ignore[arg-type]

    def _run(self, what: str, requests: Sequence[RunRequest]) -> list[dict[str, list[TrialView]]]:
        """Run these side by side; what each found, by task."""
        bound = ForegroundRequest("check", requests, self._request.concurrency, {"type": "check"})
        job = self._tracker.start_foreground(bound)
        total = sum(len(request.task_ids or ()) * request.trials for request in requests)
        if asyncio.run(self._drive(job, what, total)):
            raise InterruptedAuditError
        return [self._trials(run_id) for run_id in job.run_ids]

    async def _drive(self, job: ForegroundJob, what: str, total: int) -> bool:
        """Work to the end, or until someone interrupts; whether someone did."""
        done = 0

        def ended(_leased: Leased, finish: Finish) -> None:
            nonlocal done
            done += 0 if finish.after is TrialState.PENDING else 1
            self._progress(what, done, total)

        with alone(self._tracker.data, binding_of(job.id)), _signals() as told:
            executor = self._tracker.foreground_executor(job)
            working = asyncio.create_task(executor.work(job.values, ended))
            asking = asyncio.create_task(told.wait())
            self._progress(what, 0, total)
            try:
                await asyncio.wait((working, asking), return_when=asyncio.FIRST_COMPLETED)
                if not told.is_set():
                    await working
                    return False
                await asyncio.to_thread(self._tracker.stop_foreground, job)
                executor.wake()
                await asyncio.wait((working,), timeout=SHUTDOWN_S)
                return True
            finally:
                for task in (asking, working):
                    task.cancel()
                await asyncio.gather(asking, working, return_exceptions=True)

    def _trials(self, run_id: str) -> dict[str, list[TrialView]]:
        found: dict[str, list[TrialView]] = {}
        for trial in each_trial(self._tracker, run_id):
            found.setdefault(trial.task_id, []).append(trial)
        return found

    def audit_of(self, task_id: str, read: TaskAudit) -> TaskAudit:
        """Return what was found of one task, its files and all its runs together."""
        spec = self._specs[task_id]
        mode, keep = self._modes.get(task_id, (None, False))
        oracle = self._oracle.get(task_id, [])
        nop, cheats = self._nop.get(task_id), self._cheats[task_id]
        audit = replace(
            read,
            digest=spec.digest,
            oracle=[trial.score for trial in oracle],
            nop=nop.score if nop else None,
            mode=mode,
            keep_processes=keep,
            cheats={name: trial.score for name, trial in cheats.items()},
            blocked=list(_blocked(cheats)),
        )
        findings = [*read.findings, *_scored(cheats, nop), *_shared(audit, oracle)]
        if spec.keep_processes and audit.declared:
            # Its author says that the agent's processes live on: what they can do is accepted with it.
            findings = [one for one in findings if one.weakness is not Weakness.ISOLATION]
        return replace(
            audit,
            findings=findings,
            problems=[*_unsolved(spec, oracle), *_misdeclared(spec, audit), *_no_verdict(nop, cheats)],
            notes=list(_notes(spec, audit, oracle)),
        )


def _scored(cheats: Mapping[str, TrialView], nop: TrialView | None) -> Iterator[WeaknessFinding]:
    """Yield what the ways to cheat that scored say of the task."""
    if nop is not None and (nop.score or 0.0) > 0:
        yield WeaknessFinding(
            Weakness.VACUOUS,
            f"doing nothing scores {nop.score:g}",
            "Let the tests fail on the state the task begins with.",
        )
        return
    scored = {name for name, trial in cheats.items() if (trial.score or 0.0) > 0}
    for way in CHEAT_METHODS:
        if way.name in scored and not scored.intersection(way.implied_by):
            yield WeaknessFinding(way.weakness, f"{way.seen} {cheats[way.name].score:g}", way.fix)
    if OWN_CHEAT in scored and not scored - {OWN_CHEAT}:
        yield WeaknessFinding(
            Weakness.TRUST,
            f"the task's own {OWN_CHEAT} scores {cheats[OWN_CHEAT].score:g}",
            "Close the way it shows: the tests must tell it from a solution.",
        )


def _shared(audit: TaskAudit, oracle: Sequence[TrialView]) -> Iterator[WeaknessFinding]:
    """A task that must be graded in the agent's sandbox is open there, unless its author says it is meant."""
    if audit.mode is not VerifyMode.SHARED or audit.declared:
        return
    if audit.keep_processes:
        yield WeaknessFinding(
            Weakness.ISOLATION,
            "its own solution passes only with the agent's processes alive",
            'Say environment_mode = "shared" and keep_processes = true in [verifier] to accept that.',
        )
        return
    changed = outermost(path for trial in oracle for path in _system_changes(trial.evidence or {}))
    paths = [path for path in changed if path != "/solution" and not is_below(path, "/solution")]
    carry = f"carry = {json.dumps(paths[:3])}" if 0 < len(paths) <= 3 else "carry = [the paths its work is]"
    yield WeaknessFinding(
        Weakness.ISOLATION,
        "its own solution passes only in the sandbox the agent left",
        f'Say {carry} in [verifier], or environment_mode = "shared" to accept that.',
    )


def _unsolved(spec: TaskSpec, oracle: Sequence[TrialView]) -> Iterator[str]:
    if not spec.has_solution:
        yield "has no solution/solve.sh: nothing shows that it can be solved"
        return
    failed = [trial for trial in oracle if not trial.passed]
    if not failed:
        return
    scores = ", ".join("no verdict" if one.score is None else f"{one.score:g}" for one in oracle)
    said = f" ({failed[0].message.splitlines()[0][:200]})" if failed[0].message else ""
    if len(failed) == len(oracle):
        yield f"its own solution does not pass: {scores}{said}"
    else:
        yield f"its own solution does not pass each time: {scores}{said}"


def _misdeclared(spec: TaskSpec, audit: TaskAudit) -> Iterator[str]:
    if not audit.declared or audit.mode is None:
        return
    if spec.verify is VerifyMode.FRESH and audit.mode is VerifyMode.SHARED:
        yield 'says environment_mode = "fresh", and its own solution passes only in a shared environment'
    if audit.keep_processes and not spec.keep_processes:
        yield "its own solution passes only with keep_processes = true, which task.toml does not say"


def _no_verdict(nop: TrialView | None, cheats: Mapping[str, TrialView]) -> Iterator[str]:
    for name, trial in (("nop", nop), *cheats.items()):
        if trial is not None and trial.score is None:
            said = (trial.message or trial.state).splitlines()[0][:200]
            yield f"gives no verdict on the agent {name}: {said}"


def _notes(spec: TaskSpec, audit: TaskAudit, oracle: Sequence[TrialView]) -> Iterator[str]:
    if audit.declared and spec.verify is VerifyMode.SHARED and audit.mode is VerifyMode.FRESH:
        yield 'says environment_mode = "shared", and its own solution passes in a fresh sandbox: leave it out'
    if oracle and all(trial.passed for trial in oracle) and audit.mode is None:
        yield "where its tests must run was not found: the provider cannot carry work into another sandbox"


def _blocked(cheats: Mapping[str, TrialView]) -> Iterator[str]:
    for name, trial in cheats.items():
        if (trial.score or 0.0) > 0:
            continue
        evidence = trial.evidence or {}
        if trial.cause in ("grader_broken_by_work", "sandbox_killed_by_agent"):
            yield f"{name}: kept itself from being graded, which counts as 0 ({trial.cause})"
        elif changed := _system_changes(evidence):
            what = "were not carried into" if evidence.get("mode") == "fresh" else "were put back before"
            yield f"{name}: changes to the system {what} grading ({', '.join(changed[:3])}, …)"


def _system_changes(evidence: Json) -> list[str]:
    """Return paths of the system the agent changed, its own bundle not counted."""
    paths = [str(path) for path, _kind in (evidence.get("system") or {}).get("paths", ())]
    return [path for path in paths if path != "/bundle" and not path.startswith("/bundle/")]


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder that is gone afterwards; those of checks that were killed are removed first."""
    place = data_folder() / _FOLDER
    place.mkdir(parents=True, exist_ok=True)
    for left in place.iterdir():
        with contextlib.suppress(OSError), (left / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    root = Path(tempfile.mkdtemp(dir=place))
    with (root / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """Set by Ctrl+C and SIGTERM; a second one ends the process where it stands."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def forget() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    def tell() -> None:
        told.set()
        forget()

    with contextlib.suppress(ValueError, RuntimeError):  # only the main thread is told of signals
        for number in numbers:
            loop.add_signal_handler(number, tell)
    try:
        yield told
    finally:
        with contextlib.suppress(ValueError, RuntimeError):
            forget()
