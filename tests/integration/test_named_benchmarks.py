"""Records in the published shape become tasks that their gold answer solves, and nothing else does.

The records are made up; none is of a published benchmark.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.named_benchmarks import Sample, check, converted, graded
from valkyrie.benchmarks.named.installation import AddRequest, add
from valkyrie.errors import GraderError
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest

pytestmark = pytest.mark.slow

AIME = [
    {"id": 60, "problem": "What is {2} + $5$?", "solution": "Count.", "answer": "7", "url": "none"},
    {"id": "I-1", "problem": "Write 9 as a number of two digits, @ANSWER@.", "answer": "9"},
]
GSM8K = [
    {"question": "Two boxes of 600 pens?", "answer": "2*600=<<2*600=1200>>1200\n#### 1,200"},
    {"question": "Owes 3, has 1?", "answer": "1-3=-2\n#### -2"},
]
HUMANEVAL = [
    {
        "task_id": "HumanEval/7",
        "prompt": 'import math\n\ndef twice(x: int) -> int:\n    """Twice x: `{x}` + ``` x."""\n',
        "entry_point": "twice",
        "canonical_solution": "    return math.floor(x) * 2\n",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2\n",
    }
]
PUZZLE = {
    "train": [{"input": [[1, 0]], "output": [[0, 1]]}, {"input": [[2, 0]], "output": [[0, 2]]}],
    "test": [
        {"input": [[3, 0]], "output": [[0, 3]]},
        {"input": [[4, 0], [0, 0]], "output": [[0, 4], [0, 0]]},
    ],
}
BIGCODEBENCH = {
    "task_id": "BigCodeBench/12",
    "complete_prompt": 'import json\n\ndef task_func(text):\n    """The keys of a JSON object, sorted."""\n',
    "instruct_prompt": "Return the keys of a JSON object, sorted.\nStart with:\n```\nimport json\n```",
    "code_prompt": "import json\n\ndef task_func(text):",
    "canonical_solution": "    return sorted(json.loads(text))\n",
    "test": "import unittest\n\nclass TestCases(unittest.TestCase):\n    def test_keys(self):\n"
    "        self.assertEqual(task_func('{\"b\": 1, \"a\": 2}'), ['a', 'b'])\n",
    "entry_point": "task_func",
    "libs": "['json']",
}
GPQA_COLUMNS = ("Question", "Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3)), "Record ID")


class Silent:
    def say(self, line: str) -> None: ...

    def count(self, done: int, total: int | None) -> None: ...


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def gpqa(path: Path, rows: int = 2) -> Path:
    lines = [",".join(GPQA_COLUMNS)]
    lines += [f'"Which, {n}?",right {n},wrong,wrong,also wrong,rec{n}' for n in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


async def test_aime(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "test2024.jsonl", *AIME)
    sample = Sample("AIME", source, wrong={"aime_60": {"answer.txt": "The answer is 7."}})
    benchmark = await check(sample, tmp_path)
    assert (await graded(benchmark, "aime_60", {"answer.txt": " 007\n"}, tmp_path)).passed
    assert "@ANSWER@" in (await benchmark.describe("aime_i-1")).instruction


async def test_gsm8k(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "test.jsonl", *GSM8K)
    await check(Sample("gsm8k", source, wrong={"gsm8k_0000": {"answer.txt": "1200 pens"}}), tmp_path)


async def test_gpqa(tmp_path: Path) -> None:
    sample = Sample(
        "GPQA Diamond", gpqa(tmp_path / "gpqa_diamond.csv"), wrong={"gpqa_000": {"answer.txt": "(D)"}}
    )
    benchmark = await check(sample, tmp_path)
    # Seed 42 turns [0, 1, 2, 3] into [2, 1, 3, 0]: the right answer of the first row is D.
    assert "(D) right 0" in (await benchmark.describe("gpqa_000")).instruction
    assert (await graded(benchmark, "gpqa_000", {"answer.txt": "d\n"}, tmp_path)).passed


async def test_humaneval(tmp_path: Path) -> None:
    sample = Sample(
        "humaneval",
        jsonl(tmp_path / "HumanEval.jsonl", *HUMANEVAL),
        wrong={"humaneval_007": {"solution.py": "```python\ndef twice(x): return 2 * x\n```"}},
    )
    await check(sample, tmp_path)


async def test_arc_agi_2(tmp_path: Path) -> None:
    folder = tmp_path / "clone" / "data" / "evaluation"
    folder.mkdir(parents=True)
    (folder / "0a1b2c3d.json").write_text(json.dumps(PUZZLE))
    wrong = {"0a1b2c3d": {"answer.json": json.dumps([pair["output"] for pair in PUZZLE["test"]])}}
    benchmark = await check(Sample("arc-agi-2", tmp_path / "clone", wrong=wrong), tmp_path)
    task = await benchmark.describe("0a1b2c3d")
    assert "[[0, 1]]" in task.instruction and "[0, 3]" not in task.instruction
    second = [{"attempt_1": [[9]], "attempt_2": [[0, 3]]}, {"attempt_1": [[0, 4], [0, False]]}]
    grade = await graded(benchmark, "0a1b2c3d", {"answer.json": json.dumps(second)}, tmp_path)
    assert grade.result["rewards"] == {"reward": 0.0, "pair_fraction": 0.5}


@pytest.mark.parametrize("variant", ["complete", "instruct"])
async def test_bigcodebench(variant: str, tmp_path: Path) -> None:
    sample = Sample(
        f"BigCodeBench-Hard ({variant})",
        jsonl(tmp_path / "hard.jsonl", BIGCODEBENCH),
        wrong={"bigcodebench_0012": {"solution.py": "def task_func(text): return text"}},
        host_image=True,
    )
    benchmark = await check(sample, tmp_path)
    told = (await benchmark.describe("bigcodebench_0012")).instruction
    assert ('"""The keys' in told) == (variant == "complete")


async def test_a_sandbox_without_the_libraries_gives_no_verdict(tmp_path: Path) -> None:
    record = {**BIGCODEBENCH, "libs": "['json', 'no_such_library']"}
    sample = Sample("bigcodebench", jsonl(tmp_path / "full.jsonl", record), host_image=True)
    with pytest.raises(GraderError, match="no_such_library"):
        await graded(converted(sample, tmp_path), "bigcodebench_0012", "oracle", tmp_path)


def test_a_run_by_name(tracker: LocalTracker, tmp_path: Path) -> None:
    jsonl(tmp_path / "aime.jsonl", *AIME)
    add(AddRequest("aime", str(tmp_path / "aime.jsonl")), Silent())
    for agent, score in (("oracle", 1.0), ("nop", 0.0)):
        started = tracker.start(RunRequest(agent=agent, benchmark="AIME", provider="local")).run
        run = tracker.wait(started.id, timeout=60)
        assert (run.state, run.benchmark, run.score.final_score) == ("FINISHED", "aime", score)


async def test_a_link_to_the_expected_value_is_no_answer(tmp_path: Path) -> None:
    benchmark = converted(Sample("aime", jsonl(tmp_path / "aime.jsonl", AIME[0])), tmp_path)
    solution = benchmark.solution(await benchmark.describe("aime_60"))
    assert solution is not None
    (solution / "solve.sh").write_text("ln -s /tests/expected.txt /app/answer.txt\n")
    assert (await graded(benchmark, "aime_60", "oracle", tmp_path)).score == 0
