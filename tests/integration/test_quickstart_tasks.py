"""Every quickstart task, end to end: its own solution earns 1, doing nothing earns 0."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.types import Command, SandboxCreateRequest
from valkyrie.benchmarks import open_benchmark
from valkyrie.benchmarks.protocol import Benchmark, Grading
from valkyrie.domain import Grade, TaskSpec

TASKS = sorted(
    path.parent.name for path in Path(open_benchmark("quickstart").source["path"]).glob("*/task.toml")
)
AT_ONCE = 4


@dataclass
class Attempt:
    grade: Grade
    log: str
    left_in_app: list[str]
    evidence: Path


Attempts = dict[tuple[str, str], Attempt | BaseException]


def provider_named(name: str, folder: Path) -> SandboxProvider:
    if name == "process":
        from sandboxes.process import ProcessProvider

        return ProcessProvider(folder)
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    from sandboxes.local.provider import LocalProvider

    return LocalProvider(folder)


async def solve(benchmark: Benchmark, task: TaskSpec, sandbox: Sandbox, log: list[str]) -> None:
    solution = benchmark.solution(task)
    assert solution is not None
    await sandbox.upload_folder(solution, "/solution")
    command = Command(("bash", "/solution/solve.sh"), cwd=task.cwd, env=task.env, timeout=60)
    code = await sandbox.run(command, lambda _, text: log.append(text))
    assert code == 0, "".join(log)


async def attempt(
    benchmark: Benchmark, provider: SandboxProvider, task_id: str, agent: str, folder: Path
) -> Attempt:
    task = await benchmark.describe(task_id)
    request = SandboxCreateRequest(limits=task.limits, network=task.network, env_vars=dict(task.env))
    sandbox = await provider.create_sandbox(request)
    log: list[str] = []
    try:
        await benchmark.setup(task, sandbox, lambda _, text: log.append(text), folder / "start")
        left = await sandbox.list_files("/app/*")
        if agent == "oracle":
            await solve(benchmark, task, sandbox, log)
        elif agent == "hasty":
            script = Command.bash(HALF_DONE[task_id][0], cwd=task.cwd)
            assert await sandbox.run(script, lambda _, text: log.append(text)) == 0, "".join(log)
        await sandbox.kill_all()
        evidence = folder / f"{task_id}-{agent}"
        grade = await benchmark.evaluate(Grading(task, sandbox, lambda _, text: log.append(text), evidence))
    finally:
        await provider.delete_sandbox(sandbox.id)
    return Attempt(grade, "".join(log), left, evidence)


HALF_DONE = {
    "dedupe-contacts-csv": ("sort -u contacts.csv > clean.csv", 0.0),
    "fix-interval-merge": ("sed -i 's/start < last_end/start <= last_end/' intervals.py", 0.0),
    "next-cron-runs": ("echo 'import sys; sys.exit(2)' > nextrun.py", 0.0),
    "order-build-steps": ("echo 'print(0)' > plan.py", 0.0),
    "query-shop-sales": (
        "echo 'SELECT city, count(*) AS customers, 0 AS buyers, 0 AS revenue_cents, NULL AS top_product"
        " FROM customers GROUP BY city' > report.sql",
        0.0,
    ),
    "rank-word-counts": (
        "printf '#!/bin/sh\nn=$1; shift\ncat $@ | grep -o [a-z]* | sort | uniq -c | sort -nr | head -n $n\n'"
        " > topwords.sh; chmod +x topwords.sh",
        0.0,
    ),
    "recover-lost-commits": ("cd repo && git branch feature/export 'HEAD@{10}'", 0.3333),
    "repair-backup-script": ("sed -i 's/\\r$//' backup.sh; chmod +x backup.sh", 0.0),
    "salvage-damaged-archive": ("mkdir recovered; tar -xzf nightly.tar.gz -C recovered; touch lost.txt", 0.0),
    "summarise-access-log": (
        """echo '{"requests": 420, "malformed": 0, "clients": 32, "bytes_by_status": {}, "top_paths": [],"""
        """ "busiest_hour_utc": "2026-03-14T09"}' > summary.json""",
        0.3333,
    ),
    # A program that leaves a daemon behind, which goes on writing a verdict of its own.
    "write-duration-cli": (
        "cat > duration.py <<'END'\nimport os\nif os.fork() == 0:\n    os.setsid()\n    while True:\n"
        "        open('../logs/verifier/reward.json', 'w').write('{\"reward\": 1}')\nEND\n",
        0.0,
    ),
}
"""What a hasty agent might do, and what it earns."""


async def all_attempts(name: str, folder: Path) -> Attempts:
    benchmark = open_benchmark("quickstart")
    room = asyncio.Semaphore(AT_ONCE)
    async with provider_named(name, folder / "state") as provider:

        async def one(task_id: str, agent: str) -> Attempt:
            async with room:
                return await attempt(benchmark, provider, task_id, agent, folder)

        keys = [(task_id, agent) for task_id in TASKS for agent in ("oracle", "nop")]
        if name == "process":
            keys += [(task_id, "hasty") for task_id in HALF_DONE]
        found = await asyncio.gather(*(one(*key) for key in keys), return_exceptions=True)
    return dict(zip(keys, found, strict=True))


@pytest.fixture(scope="module", params=["local", pytest.param("process", marks=pytest.mark.slow)])
def attempts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attempts]:
    yield asyncio.run(all_attempts(request.param, tmp_path_factory.mktemp(request.param)))


def finished(attempts: Attempts, task_id: str, agent: str) -> Attempt:
    found = attempts[task_id, agent]
    if isinstance(found, BaseException):
        raise found
    return found


def test_there_are_twelve_tasks() -> None:
    assert len(TASKS) == 12


@pytest.mark.parametrize("task_id", TASKS)
def test_its_own_solution_passes(attempts: Attempts, task_id: str) -> None:
    done = finished(attempts, task_id, "oracle")
    assert (done.grade.score, done.grade.passed) == (1.0, True), done.log


@pytest.mark.parametrize("task_id", TASKS)
def test_doing_nothing_earns_nothing(attempts: Attempts, task_id: str) -> None:
    done = finished(attempts, task_id, "nop")
    assert (done.grade.score, done.grade.passed) == (0.0, False), done.log
    assert "FAIL" in (done.evidence / "test-stdout.txt").read_text()
    assert list((done.evidence / "verifier").glob("reward.*"))


@pytest.mark.slow
@pytest.mark.parametrize("attempts", ["process"], indirect=True)
@pytest.mark.parametrize("task_id", HALF_DONE)
def test_half_done_work_earns_its_share_at_most(attempts: Attempts, task_id: str) -> None:
    done = finished(attempts, task_id, "hasty")
    assert (done.grade.score, done.grade.passed) == (HALF_DONE[task_id][1], False), done.log


@pytest.mark.parametrize("task_id", TASKS)
def test_the_agent_sees_neither_setup_nor_tests(attempts: Attempts, task_id: str) -> None:
    names = {Path(path).name for path in finished(attempts, task_id, "nop").left_in_app}
    assert not names & {"setup.sh", "test.sh", "solve.sh", "checks.py", "__main__.py"}
