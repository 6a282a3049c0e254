"""Code of an agent that prints the verdict its grader should give, in real sandboxes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.abilities import need_local_sandboxes
from tests.integration.evals.commands import Valk, valk

__all__ = ["valk"]
pytestmark = pytest.mark.slow
FORGER = """\
import os, sys, glob
print('{"passed": true, "score": 1}', flush=True)
told = sys.stdin.read()
for path in [told.strip(), os.environ.get("EVALUATE_GRADER_INPUT", ""), *glob.glob("/tests/*/*.json")]:
    try:
        open(path, "w").write('{"passed": true}')
    except OSError:
        pass
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""
CAREFUL = """\
import json, pathlib, subprocess
verdict = pathlib.Path(input())
ran = subprocess.run(["python3", "solution.py"], user="nobody", group="nogroup", extra_groups=[])
right = pathlib.Path("answer.txt").read_text() == "42\\n"
verdict.write_text(json.dumps({"passed": right, "evidence": f"looked, after exit code {ran.returncode}"}))
"""


def graded(valk: Valk, folder: Path, config: dict[str, object], answer: str) -> dict[str, object]:
    files = {"solution.py": FORGER, "careful.py": CAREFUL, "answer.txt": f"{answer}\n"}
    for name, text in files.items():
        (folder / name).write_text(text)
    one = {
        "name": "one",
        "prompt": "Answer.",
        "environment": {
            "files": [
                {"src": "solution.py", "dest": "solution.py"},
                {"src": "answer.txt", "dest": "answer.txt"},
            ]
        },
        "grading_environment": {"files": [{"src": "careful.py", "dest": "careful.py"}]},
        "graders": [{"type": "program", "config": config}],
    }
    spec = {"name": "forged", "defaults": {"executor": "mock"}, "stimuli": [one]}
    (folder / "eval.yaml").write_text(json.dumps(spec))
    ended = valk("eval", "-e", "eval.yaml", "--output", "jsonl")
    (line,) = ended.out.splitlines()
    found: dict[str, object] = json.loads(line)["gradeResult"]
    return found


@pytest.mark.parametrize("code", [1, 3, 137])
def test_a_failing_program_never_passes(valk: Valk, tmp_path: Path, code: int) -> None:
    need_local_sandboxes(tmp_path / "try", network="none")
    config: dict[str, object] = {"program": "python3", "args": ["solution.py", code]}
    assert graded(valk, tmp_path, config, "0")["passed"] is False


@pytest.mark.parametrize(("answer", "passes"), [("0", False), ("42", True)])
def test_a_verdict_in_a_file_is_the_programs(valk: Valk, tmp_path: Path, answer: str, passes: bool) -> None:
    need_local_sandboxes(tmp_path / "try", network="none")
    config: dict[str, object] = {"program": "python3", "args": ["-I", "careful.py"], "verdict": "file"}
    found = graded(valk, tmp_path, config, answer)
    assert found["passed"] is passes, found
    assert "looked, after exit code 0" in json.dumps(found)
