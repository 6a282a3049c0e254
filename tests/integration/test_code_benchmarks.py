"""Issues and exercises become tasks that their gold solution solves, and nothing else does.

The repositories, records and exercises are made up; none is of a published benchmark.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from sandboxes.types import Command, SandboxCreateRequest
from tests.exercise_repository import make_clone
from tests.issue_repository import FIXED, Issue, make_issue, pro_record, put_scripts, verified_record
from tests.named_benchmarks import Sample, converted, graded, local_sandboxes
from valkyrie.benchmarks.task_dir.benchmark import TaskDirBenchmark
from valkyrie.errors import GraderError
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest

pytestmark = pytest.mark.slow

Agent = str | Mapping[str, str]


@pytest.fixture(scope="module")
def issue(tmp_path_factory: pytest.TempPathFactory) -> Issue:
    return make_issue(tmp_path_factory.mktemp("issue") / "sums")


def verified(issue: Issue, folder: Path, *solutions: str, **more: Any) -> TaskDirBenchmark:
    """One task of SWE-bench Verified, or one for each of these in the place of its solution."""
    source = folder / "test.jsonl"
    names = [f"django__django-{number}" for number in range(1, max(len(solutions), 1) + 1)]
    rows = [verified_record(issue, instance_id=name, **more) for name in names]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    benchmark = converted(Sample("SWE-bench Verified", source, host_image=True), folder)
    for name in names:
        issue.put_into(folder / "swe-bench-verified" / name, "/testbed")
    for name, script in zip(names, solutions, strict=False):
        (folder / "swe-bench-verified" / name / "solution" / "solve.sh").write_text(script)
    return benchmark


def pro(issue: Issue, folder: Path) -> tuple[TaskDirBenchmark, str]:
    record = pro_record(issue)
    source = folder / "records"
    source.mkdir()
    (source / "test.jsonl").write_text(json.dumps(record) + "\n")
    put_scripts(source, record["instance_id"])
    benchmark = converted(Sample("SWE-Bench Pro", source, host_image=True), folder)
    task_id = record["instance_id"].lower()
    issue.put_into(folder / "swe-bench-pro" / task_id, "/app")
    return benchmark, task_id


async def rewards(
    benchmark: TaskDirBenchmark, folder: Path, *trials: tuple[str, Agent]
) -> list[dict[str, float]]:
    """What each of these trials earns, all in sandboxes of one provider."""
    async with local_sandboxes(folder) as provider:
        grades = await asyncio.gather(
            *(
                graded(benchmark, task_id, agent, folder / str(number), provider)
                for number, (task_id, agent) in enumerate(trials)
            )
        )
    return [grade.result["rewards"] for grade in grades]


async def test_swe_bench(issue: Issue, tmp_path: Path) -> None:
    benchmark, task_id = verified(issue, tmp_path), "django__django-1"
    assert not await benchmark.check()
    assert await rewards(benchmark, tmp_path, (task_id, "oracle"), (task_id, "nop")) == [
        {"reward": 1.0, "fail_to_pass": 1.0, "pass_to_pass": 1.0},
        {"reward": 0.0, "fail_to_pass": 0.0, "pass_to_pass": 1.0},
    ]
    task = await benchmark.describe(task_id)
    assert "hint" not in task.instruction and "@BASE@ and {braces}" in task.instruction


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_through_the_engine(issue: Issue, tracker: LocalTracker, tmp_path: Path) -> None:
    verified(issue, tmp_path)
    scores = {}
    for agent in ("oracle", "nop"):
        asked = RunRequest(agent, str(tmp_path / "swe-bench-verified"), provider="local", host_image=True)
        scores[agent] = tracker.wait(tracker.start(asked).run.id, timeout=60).score.score_graded
    assert scores == {"oracle": 1.0, "nop": 0.0}


MEND = "cd /testbed && printf 'def total(values):\\n    return sum(values)\\n' > sums.py\n"
FORGERY = """cd /testbed && cat > sums.py <<'END'
import os
print("test_all (totals.test_totals.Totals.test_all) ... ok")
print("test_nothing (totals.test_totals.Totals.test_nothing) ... ok", flush=True)
os._exit(3)
END
"""
HOOK = "git config core.hooksPath /tmp; printf '#!/bin/sh\\nexit 1\\n' > /tmp/post-checkout; chmod +x /tmp/*"
DEEDS = {
    "committed": (MEND + "git checkout -q -B mine && git commit -qam x || true", 1),
    "broke a test": (MEND + "echo 'raise SystemExit' > tests/totals/test_totals.py", 1),
    "led the tests away": (MEND + "rm -r tests/totals && ln -s /etc tests/totals", 1),
    "planted a hook": (MEND + HOOK, 1),
    "deleted everything": ("rm -rf /testbed", 0),
    "deleted the history": ("rm -rf /testbed/.git", 0),
    "printed success and failed": (FORGERY, 0),
}


async def test_what_agents_do_to_a_repository(issue: Issue, tmp_path: Path) -> None:
    benchmark = verified(issue, tmp_path, *(script for script, _ in DEEDS.values()))
    trials = [(f"django__django-{number}", "oracle") for number in range(1, len(DEEDS) + 1)]
    earned = [reward["reward"] for reward in await rewards(benchmark, tmp_path, *trials)]
    assert dict(zip(DEEDS, earned, strict=True)) == {deed: score for deed, (_, score) in DEEDS.items()}


async def test_a_patch_that_does_not_fit_gives_no_verdict(issue: Issue, tmp_path: Path) -> None:
    other = issue.test_patch.replace("test_nothing", "test_something_else")
    benchmark = verified(issue, tmp_path, test_patch=other)
    with pytest.raises(GraderError, match="does not apply"):
        await graded(benchmark, "django__django-1", "nop", tmp_path)


@pytest.mark.parametrize("which", ["verified", "pro"])
async def test_nothing_of_the_future_is_left(which: str, issue: Issue, tmp_path: Path) -> None:
    if which == "verified":
        benchmark, task_id = verified(issue, tmp_path), "django__django-1"
    else:
        benchmark, task_id = pro(issue, tmp_path)
    task = await benchmark.describe(task_id)
    look = (
        f"git log --all --format=%H; git for-each-ref; git remote; git reflog; git cat-file -e {issue.gold} "
        "2>/dev/null && echo gold; git status --short; ls tests/totals; ls /tmp"
    )
    said: list[str] = []
    async with local_sandboxes(tmp_path) as provider:
        sandbox = await provider.create_sandbox(SandboxCreateRequest(network="none"))
        await benchmark.setup(task, sandbox, lambda _, text: said.append(text), tmp_path / "start")
        said.clear()
        await sandbox.run(Command.bash(look, cwd=task.cwd), lambda _, text: said.append(text))
        found = "".join(said).split()
        await provider.delete_sandbox(sandbox.id)
    assert found[0] == issue.base and issue.gold not in found and "gold" not in found
    assert found == [issue.base, "__init__.py", "test_totals.py", "instruction.md"]


async def test_swe_bench_pro(issue: Issue, tmp_path: Path) -> None:
    benchmark, task_id = pro(issue, tmp_path)
    assert not await benchmark.check()
    trials: list[tuple[str, Agent]] = [
        (task_id, "oracle"),
        (task_id, "nop"),
        (task_id, {"sums.py": FIXED, "tests/runtests.py": "raise SystemExit(1)\n"}),
    ]
    assert await rewards(benchmark, tmp_path, *trials) == [
        {"reward": 1.0, "required": 1.0},
        {"reward": 0.0, "required": 0.5},
        {"reward": 0.0, "required": 0.0},
    ]


def without_installing(task: Path) -> None:
    """The stand-in for the image fetches nothing."""
    dockerfile = task / "environment" / "Dockerfile"
    lines = dockerfile.read_text().splitlines(keepends=True)
    dockerfile.write_text("".join(line for line in lines if not line.startswith("RUN")))


def with_pytest(task: Path) -> None:
    """What the image would have: the pytest that runs this test."""
    target = task / "environment" / "pytest"
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        for file in distribution(name).files or ():
            if file.parts[0] == ".." or {"__pycache__", "lexers", "styles"} & {*file.parts}:
                continue
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), target / file)
    dockerfile = task / "environment" / "Dockerfile"
    dockerfile.write_text(f"{dockerfile.read_text()}COPY pytest /usr/lib/python3/dist-packages\n")


def polyglot(language: str, folder: Path) -> tuple[TaskDirBenchmark, str, Path]:
    sample = Sample("aider-polyglot", make_clone(folder / "clone", language), host_image=True)
    benchmark, task_id = converted(sample, folder), f"polyglot_{language}_double-it"
    task = folder / "aider-polyglot" / task_id
    without_installing(task)
    return benchmark, task_id, task


async def test_polyglot_python(tmp_path: Path) -> None:
    benchmark, task_id, task = polyglot("python", tmp_path)
    with pytest.raises(GraderError, match=r"cannot grade here.*pytest"):
        await graded(benchmark, task_id, "nop", tmp_path)
    with_pytest(task)
    earned = await rewards(benchmark, tmp_path, (task_id, "oracle"), (task_id, "nop"))
    assert earned == [{"reward": 1}, {"reward": 0}]


@pytest.mark.slow
async def test_what_agents_leave_beside_an_exercise(tmp_path: Path) -> None:
    benchmark, task_id, task = polyglot("python", tmp_path)
    with_pytest(task)
    helped = {"double_it.py": "from other import double\n", "other.py": "def double(x):\n    return x + x\n"}
    left: list[tuple[Mapping[str, str], float]] = [
        (helped, 1),
        ({"double_it.py": "import os\nos._exit(0)\n"}, 0),
        ({"pytest.py": "print('1 passed')\n"}, 0),
        ({"conftest.py": "def pytest_collection_modifyitems(items):\n    items.clear()\n"}, 0),
        ({"double_it_test.py": "def test_nothing():\n    pass\n"}, 0),
    ]
    earned = await rewards(benchmark, tmp_path, *((task_id, files) for files, _ in left))
    assert [reward["reward"] for reward in earned] == [score for _, score in left]


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="cmake or g++ is not here")
async def test_polyglot_cpp(tmp_path: Path) -> None:
    benchmark, task_id, _ = polyglot("cpp", tmp_path)
    earned = await rewards(benchmark, tmp_path, (task_id, "oracle"), (task_id, "nop"))
    assert earned == [{"reward": 1}, {"reward": 0}]


PAPER = {
    "paper_id": "Stars",
    "title": "On made-up stars",
    "abstract": "There are none.",
    "source": "expert",
    "dataset": [{"dataset_name": "list", "kind": "wget", "data_instructions": "Count the stars."}],
    "other_instructions": "Use whole numbers.",
}
COUNT = {
    "task_id": "Count",
    "paper_id": "Stars",
    "kind": "numeric",
    "difficulty": 2,
    "description": "How many stars, and how bright?",
    "instructions": ["Count.", "Measure."],
    "expected_output": {"count": 3, "flux": [1.5, 2.0]},
    "tolerance": {"count": 0, "flux": [0.1, 0.2]},
}


async def test_replicationbench(tmp_path: Path) -> None:
    for name, row in (("papers", PAPER), ("tasks", COUNT)):
        (tmp_path / "splits").mkdir(exist_ok=True)
        (tmp_path / "splits" / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    right = {"value": {"count": 3, "flux": [1.55, 1.9]}}
    sample = Sample("replicationbench", tmp_path / "splits", host_image=True)
    benchmark, task_id = converted(sample, tmp_path), "stars__count"
    without_installing(tmp_path / "replicationbench" / task_id)
    agents: list[Agent] = [
        "oracle",
        "nop",
        {"result.json": json.dumps(right)},
        {"result.json": json.dumps(right["value"])},
        {"result.json": '{"value": {"count": NaN, "flux": [1.5, 2.0]}}'},
    ]
    earned = await rewards(benchmark, tmp_path, *((task_id, agent) for agent in agents))
    assert [reward["reward"] for reward in earned] == [1, 0, 1, 0, 0]
    told = (await benchmark.describe("stars__count")).instruction
    assert "1. Count.\n2. Measure." in told and "1.5" not in told and "`count`, `flux`" in told
