"""Prepare a sandbox for a task's agent, and run the task's own tests in one with the agent's work."""

from __future__ import annotations

import asyncio
import json
import math
import os
import posixpath
import re
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from sandboxes.errors import SandboxFileNotFoundError, SandboxUserError
from sandboxes.folder_contents import LEFTOVERS, Dockerignore
from sandboxes.protocol import Sandbox
from sandboxes.types import KILLED_EXIT_CODE, TIMEOUT_EXIT_CODE, Command, CopyLimits, OutputSink, StreamName
from valkyrie.benchmarks.task_dir.dockerfile import CopyFiles, MakeFolder, Recipe, RunProgram
from valkyrie.benchmarks.task_dir.task_toml import Healthcheck, StepTable, TaskToml
from valkyrie.domain import Grade, Json, TaskSpec
from valkyrie.errors import BenchmarkError, GraderError, GraderTimeoutError


class OutputTail:
    """An output sink that passes everything on and remembers the last of it."""

    def __init__(self, onward: OutputSink, max_chars: int = 2000) -> None:
        self._onward = onward
        self._max_chars = max_chars
        self._pieces: deque[str] = deque()
        self._chars = 0

    def __call__(self, stream: StreamName, text: str) -> None:
        self._onward(stream, text)
        self._pieces.append(text)
        self._chars += len(text)
        while self._chars - len(self._pieces[0]) >= self._max_chars:
            self._chars -= len(self._pieces.popleft())

    def last_line(self) -> str | None:
        """Return the last line that is not empty; None where nothing was printed."""
        lines = "".join(self._pieces)[-self._max_chars :].splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), None)

    def quoted(self) -> str:
        """`; last output:` and the last lines, or a word that there was none."""
        text = "".join(self._pieces)[-self._max_chars :].strip()
        if not text:
            return "; it printed nothing"
        return "; last output:\n" + "\n".join(f"  {line}" for line in text.splitlines()[-20:])


# Reward files: what a verifier leaves behind as its verdict. Anything doubtful is an error, never a 0.

MAX_REWARD_BYTES = 256 * 1024

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def parse_reward_json(content: bytes, where: str) -> dict[str, float]:
    """A flat map of names to finite numbers."""
    try:
        data = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise GraderError(f"{where} is not valid JSON: {_one_line(error)}") from error
    if not isinstance(data, dict) or not data:
        raise GraderError(f'{where} must hold a flat map of numbers such as {{"reward": 1.0}}')
    if any(not _is_text(key) for key in data):
        raise GraderError(f"{where}: a name holds half a character, which cannot be written down")
    return {key: _finite(key, value, where) for key, value in data.items()}


def parse_reward_txt(content: bytes, where: str) -> dict[str, float]:
    """One finite number, as `{"reward": x}`."""
    text = content.decode("utf-8", "replace").strip()
    if not text:
        raise GraderError(f"{where} is empty; it must hold one number")
    if not _NUMBER.fullmatch(text):
        raise GraderError(f"{where} must hold one finite number, not {text[:60]!r}")
    return {"reward": _finite("reward", float(text), where)}


def score_of(rewards: Mapping[str, float]) -> float:
    """The key `reward` if there is one, else the mean of all values."""
    if "reward" in rewards:
        return rewards["reward"]
    return sum(rewards.values()) / len(rewards)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")


def _finite(key: str, value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GraderError(f"{where}: {key!r} must be a number, not {_one_line(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise GraderError(f"{where}: {key!r} must be a finite number")
    return number


def _is_text(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def _one_line(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


# Run a task's own `tests/test.sh` in a sandbox with the agent's work in it, and read the reward it leaves.
#
# Tests arrive only now, into empty folders, and run under a plain bash with nothing of the agent's
# environment. Which sandbox that is, the engine decides (`valkyrie.trial.verification`). Code of the agent
# that the tests start runs beside them: such tests run it as another user, or end all its processes, before
# they write the reward.

TESTS = "/tests"
REWARDS = "/logs/verifier"
EVIDENCE_LIMITS = CopyLimits(max_bytes=50 << 20, max_file_bytes=20 << 20, max_entries=2_000)
MAX_KEPT_OUTPUT = 10 << 20

_BASH = ("/bin/bash", "--noprofile", "--norc")
_SCRIPT = 'cd -- "$1" 2>/dev/null || cd /; exec /bin/bash --noprofile --norc "$2"'
"""The agent may have deleted the working folder; that is for the tests to judge."""
_NEVER_INHERITED = {"BASH_ENV": "", "ENV": "", "LD_PRELOAD": ""}
_COULD_NOT_START = (126, 127)
_ENDING_SIGNALS = frozenset(range(1, 65)) - {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
"""By default these end a program; a shell says 128 more for one that ended so."""


@dataclass(frozen=True, slots=True)
class VerifierPlan:
    """How one task is graded."""

    task_id: str
    tests: Path
    cwd: str
    shared_tests: Path | None = None
    """Of a step: tests of the whole task, under its own."""
    timeout: float | None = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    own_image: bool = False
    """The sandbox runs the task's own container image, whose PYTHONPATH is then the author's."""


async def verify(work: VerifierPlan, sandbox: Sandbox, log: OutputSink, evidence: Path) -> Grade:
    """Run the tests and read their verdict. No usable verdict is a GraderError, never a zero."""
    await sweep(sandbox)
    for folder in (work.shared_tests, work.tests):
        if folder is not None:
            await put_folder(sandbox, folder, TESTS)
    if work.user not in (None, "root", "0"):
        await _hand_over_rewards(work, sandbox)
    evidence.mkdir(parents=True, exist_ok=True)
    with (evidence / "test-stdout.txt").open("w", encoding="utf-8") as kept:
        tail = OutputTail(_Tee(log, kept))
        exit_code = await _run_tests(work, sandbox, tail)
    # What the tests started from the agent's code may still be running.
    await sandbox.kill_all()
    await _keep_logs(sandbox, evidence / "verifier", log)
    if exit_code == KILLED_EXIT_CODE or exit_code - 128 in _ENDING_SIGNALS:
        # Whoever killed them may have written a reward first.
        raise GraderError(
            f"tests/test.sh was ended by a signal (exit code {exit_code}); its reward, if there is one, "
            f"does not count{tail.quoted()}"
        )
    rewards = await _read_rewards(sandbox, exit_code, tail)
    score = score_of(rewards)
    passed, result = score >= 1.0, {"rewards": rewards, "test_exit_code": exit_code}
    return Grade(score, passed, result, reason=None if passed else tail.last_line())


async def sweep(sandbox: Sandbox) -> None:
    """Remove what the agent may have planted where the tests, their verdict and the loader look.

    Before a further step it removes what grading the last one left there.
    """
    if not await sandbox.is_folder("/logs"):
        await sandbox.clear_folder("/logs")
    await sandbox.clear_folder(REWARDS)
    await sandbox.clear_folder(TESTS)
    if await sandbox.list_files("/etc/ld.so.preload"):
        await sandbox.remove("/etc/ld.so.preload")


async def _hand_over_rewards(work: VerifierPlan, sandbox: Sandbox) -> None:
    """Make the reward folder the tests' own: only root could write there otherwise."""
    assert work.user is not None
    try:
        await sandbox.give_folder(REWARDS, work.user)
    except SandboxUserError as error:
        message = f"task {work.task_id}: {REWARDS} cannot be given to verifier.user {work.user!r}: {error}"
        raise GraderError(message, cause="grader_start_failed") from error


async def _run_tests(work: VerifierPlan, sandbox: Sandbox, sink: OutputSink) -> int:
    neutral = dict(_NEVER_INHERITED) if work.own_image else {**_NEVER_INHERITED, "PYTHONPATH": ""}
    command = Command(
        (*_BASH, "-c", _SCRIPT, "verifier", work.cwd, f"{TESTS}/test.sh"),
        cwd="/",
        env={**neutral, "VERIFIER_DIR": REWARDS, **work.env},
        user=work.user,
        timeout=work.timeout,
    )
    started = time.monotonic()
    exit_code = await sandbox.run(command, sink)
    took = time.monotonic() - started
    # A script may well end with 124 by itself, long before its time is up.
    if exit_code == TIMEOUT_EXIT_CODE and work.timeout is not None and took >= work.timeout:
        raise GraderTimeoutError(
            f"task {work.task_id}: tests/test.sh did not end within {work.timeout:g} s; "
            "raise verifier.timeout_sec in its task.toml, or bound what the tests start"
        )
    return exit_code


async def _keep_logs(sandbox: Sandbox, destination: Path, log: OutputSink) -> None:
    try:
        report = await sandbox.download_folder(REWARDS, destination, EVIDENCE_LIMITS)
    except SandboxFileNotFoundError:
        log("stderr", f"{REWARDS} is gone after the tests; nothing to keep from it\n")
        return
    for path, reason in report.skipped[:10]:
        log("stderr", f"{REWARDS}/{path} is not kept: {reason}\n")


async def _read_rewards(sandbox: Sandbox, exit_code: int, tail: OutputTail) -> dict[str, float]:
    for name, parse in (("reward.json", parse_reward_json), ("reward.txt", parse_reward_txt)):
        path = f"{REWARDS}/{name}"
        try:
            return parse(await _download(sandbox, path), path)
        except SandboxFileNotFoundError:
            continue
        except GraderError as error:
            raise GraderError(f"{error} (test.sh exit code {exit_code}){tail.quoted()}") from error
    missing = f"no {REWARDS}/reward.json or reward.txt after tests/test.sh (exit code {exit_code})"
    if exit_code in _COULD_NOT_START:
        message = f"the verifier could not start: {missing}{tail.quoted()}"
        raise GraderError(message, cause="grader_start_failed")
    raise GraderError(f"{missing}{tail.quoted()}")


async def _download(sandbox: Sandbox, path: str) -> bytes:
    content = bytearray()
    async for chunk in sandbox.stream_download(path):
        content += chunk
        if len(content) > MAX_REWARD_BYTES:
            raise GraderError(f"{path} is larger than {MAX_REWARD_BYTES // 1024} KiB")
    return bytes(content)


class _Tee:
    """Output goes to the log and, up to a limit, to a file."""

    def __init__(self, log: OutputSink, kept: TextIO) -> None:
        self._log = log
        self._kept = kept
        self._left = MAX_KEPT_OUTPUT

    def __call__(self, stream: StreamName, text: str) -> None:
        self._log(stream, text)
        if self._left <= 0:
            return
        self._kept.write(text[: self._left])
        self._left -= len(text)
        if self._left <= 0:
            self._kept.write("\n[the rest of the output is only in the log]\n")


# Prepare a sandbox for the agent: instruction, working folder, environment files, health check.
#
# Neither tests nor solution ever pass through here.

SETUP_SCRIPT = "setup.sh"
_STAGED_SCRIPT = "/tmp/valkyrie-setup.sh"


@dataclass(frozen=True, slots=True)
class Preparation:
    """What one task wants done before its agent starts."""

    environment: Path | None
    """The task's `environment/` folder, if it is to be used here."""
    recipe: Recipe | None = None
    """The Dockerfile to repeat on the host's file system; then nothing else is copied."""
    healthcheck: Healthcheck | None = None
    folder_of_image: bool = False
    """The working folder is the image's own, which is there."""


async def prepare(task: TaskSpec, preparation: Preparation, sandbox: Sandbox, log: OutputSink) -> None:
    """Do it. Raises BenchmarkError when the task's own setup fails."""
    await _make_log_folders(sandbox)
    await sandbox.upload_file(task.problem_path, task.instruction.encode())
    environment = preparation.environment
    if preparation.recipe is not None and environment is not None:
        await make_folder(sandbox, task.cwd)
        await repeat_dockerfile(preparation.recipe, environment, sandbox, log)
    elif environment is not None:
        await _lay_out(task, environment, "environment", sandbox, log)
    elif not (preparation.folder_of_image and sandbox.image_defaults):
        await make_folder(sandbox, task.cwd)
    if preparation.healthcheck is not None:
        await _wait_until_healthy(task, preparation.healthcheck, sandbox, log)


async def prepare_step(task: TaskSpec, preparation: Preparation, sandbox: Sandbox, log: OutputSink) -> None:
    """Tell the step's own instruction, and lay its files over what is there."""
    await _reclaim(task, sandbox, log)
    await sandbox.upload_file(task.problem_path, task.instruction.encode())
    if preparation.environment is not None:
        await _lay_out(task, preparation.environment, f"steps/{task.step}/workdir", sandbox, log)
    if preparation.healthcheck is not None:
        await _wait_until_healthy(task, preparation.healthcheck, sandbox, log)


async def _reclaim(task: TaskSpec, sandbox: Sandbox, log: OutputSink) -> None:
    """Places a step needs, where an earlier one left something else: an agent can refuse no step that way."""
    for folder in (posixpath.dirname(task.problem_path), task.cwd):
        # A link to a folder will do, as one may be part of the image.
        if await sandbox.run(Command(("/bin/sh", "-c", 'cd -- "$1"', "sh", folder)), None) != 0:
            log("stderr", f"{folder} is no folder any more; it is made anew\n")
            await sandbox.clear_folder(folder)
    await sandbox.remove(task.problem_path)


async def _make_log_folders(sandbox: Sandbox) -> None:
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
        logs = Path(scratch)
        logs.chmod(0o755)
        for name, mode in (("agent", 0o777), ("artifacts", 0o777), ("verifier", 0o755)):
            (logs / name).mkdir()
            (logs / name).chmod(mode)
        await sandbox.upload_folder(logs, "/logs")


async def _lay_out(task: TaskSpec, folder: Path, called: str, sandbox: Sandbox, log: OutputSink) -> None:
    """Put a folder's files into the working folder, and run its `setup.sh`.

    That runs from outside the working folder, so that not even a `git add -A` in it keeps it. `called` is
    the folder as the task's author knows it.
    """
    await put_folder(sandbox, folder, task.cwd)
    if not (folder / SETUP_SCRIPT).is_file():
        return
    await sandbox.remove(f"{task.cwd}/{SETUP_SCRIPT}")
    await sandbox.upload_file(_STAGED_SCRIPT, (folder / SETUP_SCRIPT).read_bytes())
    tail = OutputTail(log)
    try:
        code = await sandbox.run(Command(("bash", _STAGED_SCRIPT), cwd=task.cwd, env=task.env), tail)
    finally:
        await sandbox.remove(_STAGED_SCRIPT)
    if code != 0:
        raise BenchmarkError(
            f"task {task.id}: {called}/{SETUP_SCRIPT} ended with exit code {code}{tail.quoted()}",
            cause="task_setup_failed",
        )


async def _wait_until_healthy(task: TaskSpec, check: Healthcheck, sandbox: Sandbox, log: OutputSink) -> None:
    """As in compose files: failures in the start period do not count, then `retries` of them are too many."""
    started, failures = time.monotonic(), 0
    tail = OutputTail(log)
    image = sandbox.image_defaults if "entrypoint" in task.of_image else None
    user = image.user if image else None
    while True:
        command = Command.shell(check.command, cwd=task.cwd, env=task.env, user=user, timeout=check.timeout)
        code = await sandbox.run(command, tail)
        if code == 0:
            return
        starting = time.monotonic() - started < check.start_period
        failures += 0 if starting else 1
        if failures >= check.retries:
            raise BenchmarkError(
                f"task {task.id}: health check `{check.command}` failed {failures} times, "
                f"last with exit code {code}{tail.quoted()}",
                cause="task_unhealthy",
            )
        await asyncio.sleep(check.start_interval if starting else check.interval)


# Tasks of several steps: told one after another in the same sandbox, each graded before the next.
#
# The next step finds what the last one left, and nothing of its tests. Every step is a conversation of its
# own: the agent begins anew, in a working folder that is not new.

STEPS = "steps"


def step_preparation(folder: Path, step: StepTable) -> Preparation:
    """Return what is done before a step: its files laid over the working folder."""
    workdir = folder / STEPS / step.name / "workdir"
    return Preparation(workdir if workdir.is_dir() else None, healthcheck=step.healthcheck)


def reached(step: StepTable, rewards: Mapping[str, float]) -> bool:
    """Return whether the step's rewards are high enough for the next to be tried; a missing one never is."""
    least = step.min_reward
    if least is None:
        return True
    wanted = least if isinstance(least, Mapping) else {"reward": least}
    return all(rewards.get(key, float("-inf")) >= value for key, value in wanted.items())


def graded(config: TaskToml, step: StepTable, grade: Grade, earlier: Sequence[Grade]) -> Grade:
    """The step's grade if another is to be tried; else that of the whole task."""
    grades = [*earlier, grade]
    if len(grades) < len(config.steps) and reached(step, grade.result["rewards"]):
        return replace(grade, goes_on=True)
    return combined(config, grades)


def combined(config: TaskToml, grades: Sequence[Grade]) -> Grade:
    """One grade of the steps that were tried: the mean of each reward, or the last step's.

    A reward some step lacks counts 0 there. A task that was not gone through to its end is not passed.
    """
    each = [dict(grade.result["rewards"]) for grade in grades]
    rewards = each[-1] if config.multi_step_reward_strategy == "final" else _means(each)
    whole, score = len(grades) == len(config.steps), score_of(rewards)
    told: list[Json] = [
        {"name": step.name, "score": grade.score, **grade.result}
        for step, grade in zip(config.steps, grades, strict=False)
    ]
    result: Json = {"rewards": rewards, "steps": told}
    if not whole:
        result["stopped_after"] = config.steps[len(grades) - 1].name
    reasons = [
        f"step {step.name}: {grade.reason}"
        for step, grade in zip(config.steps, grades, strict=False)
        if grade.reason
    ]
    return Grade(score, passed=whole and score >= 1.0, result=result, reason=next(reversed(reasons), None))


def _means(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for rewards in each for key in rewards)
    return {key: sum(rewards.get(key, 0.0) for rewards in each) / len(each) for key in keys}


# Bring a task's files into a sandbox, as its author wrote them.


def has_leftovers(folder: Path) -> bool:
    """Return whether something below `folder` is not part of the task."""
    return any(name in LEFTOVERS for _, folders, files in os.walk(folder) for name in (*folders, *files))


async def make_folder(sandbox: Sandbox, path: str) -> None:
    """A folder at `path`, with its parents; what is in it stays."""
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as empty:
        Path(empty).chmod(0o755)
        await sandbox.upload_folder(Path(empty), path)


async def put_folder(sandbox: Sandbox, source: Path, path: str) -> None:
    """The contents of `source` at `path`, without what tools left lying in it."""
    if not await asyncio.to_thread(has_leftovers, source):
        await sandbox.upload_folder(source, path)
        return
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
        clean = Path(scratch) / source.name
        ignore = shutil.ignore_patterns(*LEFTOVERS)
        await asyncio.to_thread(shutil.copytree, source, clean, symlinks=True, ignore=ignore)
        await sandbox.upload_folder(clean, path)


async def put_file(sandbox: Sandbox, source: Path, path: str) -> None:
    """One file, its executable bits kept."""
    content = await asyncio.to_thread(source.read_bytes)
    await sandbox.upload_stream(path, _once(content), mode=source.stat().st_mode & 0o777)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


# `--host-image`: repeat a task's Dockerfile on whatever root file system the sandbox has.
#
# A stand-in, not the image: the base image is not used, and a RUN line that fails is noted in the log and
# passed over, because most of them install what the root may already have.


async def repeat_dockerfile(recipe: Recipe, context: Path, sandbox: Sandbox, log: OutputSink) -> None:
    """Carry out the steps of `recipe`; `context` is the folder of the Dockerfile."""
    for note in recipe.notes:
        log("stderr", f"Dockerfile {note}\n")
    ignore = Dockerignore.of(context)
    if not ignore.rules:
        await _repeat(recipe, context, sandbox, log)
        return
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
        allowed = Path(scratch) / "context"
        await asyncio.to_thread(
            shutil.copytree, context, allowed, symlinks=True, ignore=ignore.names_left_out
        )
        await _repeat(recipe, allowed, sandbox, log)


async def _repeat(recipe: Recipe, context: Path, sandbox: Sandbox, log: OutputSink) -> None:
    for step in recipe.steps:
        if isinstance(step, MakeFolder):
            await make_folder(sandbox, step.path)
        elif isinstance(step, CopyFiles):
            await _copy(step, context, sandbox, log)
        else:
            await _run(step, sandbox, log)


async def _run(step: RunProgram, sandbox: Sandbox, log: OutputSink) -> None:
    code = await sandbox.run(Command(step.argv, cwd=step.cwd, env=step.env), log)
    if code != 0:
        log("stderr", f"Dockerfile line {step.line}: RUN ended with exit code {code}; going on without it\n")


async def _copy(step: CopyFiles, context: Path, sandbox: Sandbox, log: OutputSink) -> None:
    root = context.resolve()
    for pattern in step.sources:
        found = [root] if pattern in (".", "./") else sorted(root.glob(pattern.removeprefix("./")))
        inside = [path for path in found if path.resolve().is_relative_to(root)]
        if not inside:
            log("stderr", f"Dockerfile COPY {pattern}: nothing of that name beside the Dockerfile\n")
        for path in inside:
            if path.is_dir():
                await put_folder(sandbox, path, step.target.rstrip("/") or "/")
            elif step.target.endswith("/") or await sandbox.is_folder(step.target):
                await put_file(sandbox, path, f"{step.target.rstrip('/')}/{path.name}")
            else:
                await put_file(sandbox, path, step.target)
