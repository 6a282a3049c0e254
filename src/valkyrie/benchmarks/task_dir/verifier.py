"""Run a task's own `tests/test.sh` in a sandbox with the agent's work, and read its reward."""

from __future__ import annotations

import json
import math
import re
import signal
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from sandboxes.errors import SandboxFileNotFoundError, SandboxUserError
from sandboxes.protocol import Sandbox
from sandboxes.types import KILLED_EXIT_CODE, TIMEOUT_EXIT_CODE, Command, CopyLimits, OutputSink, StreamName
from valkyrie.benchmarks.task_dir.folder import put_folder
from valkyrie.domain import Grade
from valkyrie.errors import GraderError, GraderTimeoutError


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
