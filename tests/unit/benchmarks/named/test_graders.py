"""What the tests of converted tasks accept, without a sandbox around them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from valkyrie.benchmarks.named import questions
from valkyrie.benchmarks.named.conversion import ANSWER, Files, answer_tests, fenced, fill
from valkyrie.benchmarks.named.graders import program_tests

RULES = {"aime": questions.AIME_RULE, "gsm8k": questions.GSM8K_RULE, "gpqa": questions.GPQA_RULE}


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for _ in range(400):
            open(REWARDS + "/reward.txt", "w").write("1")
            time.sleep(0.005)
    os._exit(0)
def twice(x): return 4
"""
"""Detaches a process that keeps writing a reward of its own."""


def run(files: Files, folder: Path, answer: Path) -> str | None:
    """The reward the tests leave; their answer is looked for in `answer`."""
    for name, content in files.items():
        assert isinstance(content, str)
        (folder / name).write_text(content.replace(ANSWER, str(answer)))
    subprocess.run(
        ["/bin/bash", "--noprofile", "--norc", str(folder / "test.sh")],
        env={**os.environ, "VERIFIER_DIR": str(folder)},
        check=False,
        capture_output=True,
    )
    assert not (folder / "reward.json").exists()
    reward = folder / "reward.txt"
    return reward.read_text().strip() if reward.exists() else None


@pytest.mark.parametrize(
    ("rule", "expected", "given", "reward"),
    [
        ("aime", "73", "73", 1),
        ("aime", "73", " 073\n", 1),
        ("aime", "8", "008", 1),
        ("aime", "73", "0073", 0),
        ("aime", "73", "73.", 0),
        ("aime", "73", "73 or 74", 0),
        ("aime", "0", "", 0),
        ("aime", "0", "a[$(echo 1 > /dev/stderr)]", 0),
        ("gpqa", "B", "b", 1),
        ("gpqa", "B", "B)", 0),
        ("gpqa", "B", "A", 0),
        ("gpqa", "B", "[ABCD]", 0),
        ("gsm8k", "1200", "$1,200.00", 1),
        ("gsm8k", "1200", "01200.", 1),
        ("gsm8k", "-2", "-$2", 1),
        ("gsm8k", "0", "-0.0", 1),
        ("gsm8k", "2.5", "2.50", 1),
        ("gsm8k", "1200", "1200 pens", 0),
        ("gsm8k", "1200", "12000", 0),
        ("gsm8k", "-2", "2", 0),
        ("gsm8k", "2", "--2", 0),
        ("gsm8k", "0", ".", 0),
        ("gsm8k", "0", "", 0),
    ],
)
def test_short_answers(rule: str, expected: str, given: str, reward: int, tmp_path: Path) -> None:
    answer = tmp_path / "answer.txt"
    answer.write_text(given)
    assert run(answer_tests(expected, RULES[rule]), tmp_path, answer) == str(reward)


def test_no_answer_is_0_and_no_expected_value_is_no_verdict(tmp_path: Path) -> None:
    tests = answer_tests("7", RULES["aime"])
    assert run(tests, tmp_path, tmp_path / "answer.txt") == "0"
    (tmp_path / "reward.txt").unlink()
    os.mkfifo(tmp_path / "answer.txt")
    assert run(tests, tmp_path, tmp_path / "answer.txt") == "0"
    (tmp_path / "reward.txt").unlink()
    assert run({**tests, "expected.txt": ""}, tmp_path, tmp_path / "answer.txt") is None


@pytest.mark.parametrize(
    ("code", "reward"),
    [
        ("def twice(x):\n    return math.floor(2 * x)", "1"),
        ("print('1' * 99)\ndef twice(x):\n    return 2 * x", "1"),
        ("from __future__ import annotations\ndef twice(x): return 2 * x", "1"),
        ("def twice(x):\n    return 4", "0"),
        ("open(REWARDS + '/reward.json', 'w').write('1')\ndef twice(x): return 4", "0"),
        (DAEMON, "0"),
        ("import sys\nsys.exit(0)", "0"),
        ("import os\nos._exit(0)", "0"),
        ("while True: pass", "0"),
        ("```python\ndef twice(x): return 2 * x\n```", "0"),
        ("", "0"),
    ],
)
def test_programs(code: str, reward: str, tmp_path: Path) -> None:
    solution = tmp_path / "solution.py"
    solution.write_text(f"REWARDS = {str(tmp_path)!r}\n{code}" if "REWARDS" in code else code)
    checks = "def check(f):\n    assert f(2) == 4 and f(-1) == -2\ncheck(twice)"
    prompt = 'import math\ndef twice(x):\n    """Twice."""\n'
    patience = 0.5 if "while" in code else 30
    tests = program_tests(str(solution), prompt, checks, kind="script", timeout_sec=patience)
    assert run(tests, tmp_path, solution) == reward


def test_unit_tests_must_be_there_and_pass(tmp_path: Path) -> None:
    solution = tmp_path / "solution.py"
    solution.write_text("def f(): return 1")
    head = "import unittest\nclass TestCases(unittest.TestCase):\n"
    for body, reward in (
        ("    def test(self): self.assertEqual(f(), 1)", "1"),
        ("    def test(self): self.assertEqual(f(), 2)", "0"),
        ("    pass", "0"),
    ):
        tests = program_tests(str(solution), "", head + body, kind="unittest", timeout_sec=10)
        assert run(tests, tmp_path, solution) == reward


def test_a_missing_library_is_no_verdict(tmp_path: Path) -> None:
    tests = program_tests("/none", "", "", kind="script", timeout_sec=3, needs=["json", "no_such_library"])
    assert run(tests, tmp_path, tmp_path) is None


def test_texts_hold_whatever_a_record_has() -> None:
    assert fill("@A@ {} @B@", a="@B@", b="%s") == "@B@ {} %s"
    assert fenced("a\n````\nb", "python").splitlines()[0] == "`````python"
    assert json.loads(json.dumps(fenced("x"))) == "```\nx\n```"
