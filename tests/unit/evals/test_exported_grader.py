"""The grader of exported tasks says what the built-in graders say, and stands alone."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from valkyrie.evals.export.harbor import checks_of, standalone
from valkyrie.evals.export.harbor_grader import main
from valkyrie.grade.graders import grade_all, make_graders
from valkyrie.grade.protocol import GraderInput, Program, ProgramResult
from valkyrie.specs.model import GraderSpec, Scoring, Stimulus
from valkyrie.trajectory.transcript import Transcript

ANSWER = "The total is 42.\nBye\n"
CASES: list[tuple[str, dict[str, Any]]] = [
    ("output-contains", {"value": "TOTAL"}),
    ("output-contains", {"value": "TOTAL", "case_sensitive": True}),
    ("output-contains", {"substring": "total", "negate": True}),
    ("output-not-contains", {"value": "nothing"}),
    ("output-matches", {"pattern": r"\d+\.$"}),
    ("output-matches", {"pattern": r"(?m)\d+\.$"}),
    ("output-matches", {"pattern": "Bye$"}),
    ("output-matches", {"pattern": "(?i)BYE"}),
    ("output-matches", {"pattern": "(?s)is.*Bye"}),
    ("output-not-matches", {"pattern": "total.*Bye"}),
    ("exit-success", {}),
    ("file-exists", {"path": "src/main.py"}),
    ("file-exists", {"path": "**/*.py"}),
    ("file-exists", {"path": "{a,src}/*.{js,py}"}),
    ("file-exists", {"path": ".hidden"}),
    ("file-exists", {"path": "src"}),
    ("file-exists", {"path": "../outside.txt"}),
    ("file-exists", {"path": "link.txt"}),
    ("file-not-exists", {"path": "*.lock"}),
    ("file-contains", {"path": "**/*.py", "value": "print"}),
    ("file-contains", {"path": "**/*.py", "value": "PRINT"}),
    ("file-contains", {"path": "nothing.txt", "value": "x"}),
    ("file-not-contains", {"path": "nothing.txt", "value": "x"}),
    ("file-not-contains", {"path": "binary.bin", "value": "x"}),
    ("file-matches", {"path": "src/main.py", "pattern": "^print"}),
    ("file-matches", {"path": "src/main.py", "pattern": r"\)$"}),
    ("file-not-matches", {"path": "src/*.py", "pattern": "TODO"}),
    ("file-matches", {"path": "src/*.py", "pattern": "TODO", "negate": True}),
    ("run-command", {"command": "test -f src/main.py"}),
    ("run-command", {"command": "rm -r src; exit 3", "expected_exit_code": 3}),
    ("run-command", {"command": "cat", "args": ["src/main.py"], "stdout_contains": "hello"}),
    (
        "run-command",
        {"command": "echo out; echo err >&2", "stderr_contains": ["err"], "stdout_matches": "^o"},
    ),
    ("run-command", {"command": "echo out", "stdout_not_matches": "out"}),
    ("run-command", {"command": "pwd | grep -q src$", "sub_path": "src"}),
    ("run-command", {"command": 'test "$WHO" = me', "env": {"WHO": "me"}}),
    ("run-command", {"command": "sleep 30", "timeout": "200ms"}),
]


class Bench:
    """Runs a grader's program on a copy of a folder."""

    def __init__(self, workspace: Path, scratch: Path) -> None:
        self.workspace, self.scratch = workspace, scratch

    async def run(self, program: Program) -> ProgramResult:
        import shutil

        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.copytree(self.workspace, self.scratch, symlinks=True)
        try:
            done = subprocess.run(
                list(program.argv),
                cwd=self.scratch / program.sub_path,
                env={"PATH": "/usr/bin:/bin", **program.env},
                capture_output=True,
                text=True,
                timeout=program.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ProgramResult(124, "", "", timed_out=True)
        return ProgramResult(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("graded")
    (root / "outside.txt").write_text("x")
    folder = root / "workspace"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("print('hello')\n")
    (folder / ".hidden").touch()
    (folder / "binary.bin").write_bytes(b"\xff\xfe\x00")
    (folder / "link.txt").symlink_to(root / "outside.txt")
    return folder


@pytest.mark.parametrize(("grader_type", "config"), CASES)
async def test_it_says_what_the_built_in_one_says(
    grader_type: str, config: dict[str, Any], workspace: Path, tmp_path: Path
) -> None:
    stimulus = Stimulus("s", ("p",), graders=(GraderSpec(grader_type, config),))
    made = make_graders(stimulus, scoring=Scoring())
    given = GraderInput(stimulus, Transcript(ANSWER), workspace, bench=Bench(workspace, tmp_path / "copy"))
    [ours] = await grade_all(made, given)
    exported = checks_of(made, answers=True)
    assert exported.left_out == []
    (tmp_path / "answer.txt").write_text(ANSWER)
    plan = {
        "workspace": str(workspace),
        "answer": str(tmp_path / "answer.txt"),
        "threshold": None,
        "reward": "verdict",
        "checks": exported.checks,
    }
    (tmp_path / "checks.json").write_text(json.dumps(plan))
    main(tmp_path, tmp_path)
    reward = json.loads((tmp_path / "reward.json").read_text())["reward"]
    assert reward == float(ours.passed), (ours.evidence, (tmp_path / "graders.json").read_text())


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (GraderSpec("prompt", {"prompt": "ok?"}), "it asks a model"),
        (GraderSpec("completed"), "it looks at the transcript"),
        (GraderSpec("tool-calls", {"required": ["bash"]}), "it looks at the transcript"),
        (GraderSpec("diff-contains", {"value": "x"}), "it needs the state before the agent"),
        (GraderSpec("program", {"program": "./check"}), "its program is given the transcript"),
        (GraderSpec("output-contains", {"value": "x"}, turn=0), "it looks at one turn of a conversation"),
        (GraderSpec("output-matches", {"pattern": "("}), "Python's re does not take its pattern"),
    ],
)
def test_what_cannot_go_along_says_why(spec: GraderSpec, why: str) -> None:
    made = make_graders(Stimulus("s", ("p",), graders=(spec,)), scoring=Scoring())
    found = checks_of(made, answers=True)
    assert found.checks == []
    assert why in found.left_out[0]


def test_the_exported_files_import_nothing_of_this_program(tmp_path: Path) -> None:
    files = standalone()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        for node in ast.walk(ast.parse(text, feature_version=(3, 10))):
            module = getattr(node, "module", None) or ""
            assert not module.startswith("valkyrie"), (name, module)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "a.txt").touch()
    check = {"about": "files", "glob": "*.txt", "only_there": True, "wanted": True, "name": "n", "weight": 1}
    plan = {
        "workspace": str(workspace),
        "answer": None,
        "threshold": 0.5,
        "reward": "score",
        "checks": [check],
    }
    (tmp_path / "checks.json").write_text(json.dumps(plan))
    done = subprocess.run(
        [sys.executable, "-sE", str(tmp_path / "grade.py"), str(tmp_path)],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "ok   n: 1 match *.txt\n"
    assert json.loads((tmp_path / "reward.json").read_text()) == {"reward": 1.0, "score": 1.0}
