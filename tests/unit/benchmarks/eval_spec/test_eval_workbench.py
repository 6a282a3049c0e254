"""Graders' programs: what they find, what they are told, how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandboxes.protocol import Sandbox
from sandboxes.testing.base import eventually
from tests.unit.benchmarks.eval_spec.stimulus_attempt import StimulusAttempt, write
from valkyrie.benchmarks.eval_spec import workbench
from valkyrie.benchmarks.eval_spec.workbench import SandboxWorkbench
from valkyrie.errors import GraderError
from valkyrie.grade.protocol import Program


def shell(script: str, **options: object) -> Program:
    return Program(("/bin/sh", "-c", script), **options)  # type: ignore[arg-type]


@pytest.fixture
async def bench(attempt: StimulusAttempt, sandbox: Sandbox) -> SandboxWorkbench:
    write(attempt.base, {"one.txt": "one\n", "hidden.py": "hidden\n"})
    attempt.set_up_with({"one.txt": "sub/one.txt"}, programs=2)
    await attempt.prepare(sandbox)
    return SandboxWorkbench(sandbox, attempt.stimulus, attempt.start)


async def test_a_program_runs_in_a_copy_of_the_workspace(bench: SandboxWorkbench, sandbox: Sandbox) -> None:
    ran = await bench.run(
        shell('pwd; echo "$EVALUATE_WORKSPACE"; cat sub/one.txt; echo two > sub/two; echo no >&2; exit 3')
    )
    here, told, *rest = ran.stdout.splitlines()
    assert here == told
    assert not here.endswith("/workspace")
    assert (rest, ran.stderr, ran.exit_code, ran.timed_out) == (["one"], "no\n", 3, False)
    assert await sandbox.list_files("/workspace/sub/*") == ["/workspace/sub/one.txt"]


async def test_without_a_shell_words_stay_words(bench: SandboxWorkbench) -> None:
    ran = await bench.run(Program(("printf", "%s|", "a b", "$HOME", "*", "")))
    assert ran.stdout == "a b|$HOME|*||"


async def test_input_and_environment(bench: SandboxWorkbench) -> None:
    given = json.dumps({"output": "said"}).encode()
    script = (
        'cat "$EVALUATE_GRADER_INPUT"; echo; echo "$MINE"; case $EVALUATE_GRADER_INPUT in'
        ' "$EVALUATE_WORKSPACE"/*) echo inside;; esac'
    )
    ran = await bench.run(shell(script, input=given, env={"MINE": "a b=c", "PATH": "/usr/bin:/bin"}))
    assert ran.stdout.splitlines() == ['{"output": "said"}', "a b=c"]
    assert (await bench.run(shell('echo "${EVALUATE_GRADER_INPUT-none}"'))).stdout == "none\n"


GRADER = """
import pathlib, subprocess
path = pathlib.Path(input())
child = "cat; env; cat /proc/*/cmdline /proc/*/environ 2>/dev/null | tr '\\\\0' '\\\\n'"
seen = subprocess.run(["sh", "-c", child], stdout=subprocess.PIPE, text=True).stdout
path.write_text(repr((path.parent.name in seen, oct(path.parent.stat().st_mode)[-3:])))
"""


async def test_a_verdict_that_only_the_program_knows_of(bench: SandboxWorkbench) -> None:
    ran = await bench.run(Program(("python3", "-c", GRADER), asks_verdict=True))
    assert (ran.exit_code, ran.verdict) == (0, "(False, '700')"), ran
    silent = await bench.run(shell("exit 3", asks_verdict=True))
    assert (silent.exit_code, silent.verdict) == (3, None)
    linked = await bench.run(shell('read -r path; ln -s /etc/hostname "$path"', asks_verdict=True))
    assert linked.verdict is None
    with pytest.raises(GraderError, match="longer than"):
        await bench.run(shell('read -r path; head -c 2000000 /dev/zero > "$path"', asks_verdict=True))


async def test_a_sub_path(bench: SandboxWorkbench, sandbox: Sandbox) -> None:
    assert (await bench.run(shell("ls; pwd", sub_path="sub"))).stdout.startswith("one.txt\n")
    missing = await bench.run(shell("ls", sub_path="none"))
    assert (missing.exit_code, missing.stdout) == (127, "")
    assert "no folder 'none'" in missing.stderr
    for sub_path in ("../..", "/etc", "sub/../.."):
        with pytest.raises(GraderError, match="below the workspace"):
            await bench.run(shell("ls", sub_path=sub_path))


async def test_a_program_that_is_not_there(bench: SandboxWorkbench) -> None:
    ran = await bench.run(Program(("no-such-program", "x")))
    assert ran.exit_code == 127
    assert "not found" in ran.stderr


async def test_a_program_that_does_not_end_is_killed_with_all_it_started(
    bench: SandboxWorkbench, sandbox: Sandbox
) -> None:
    script = "(setsid sleep 300 & echo $!) & sleep 300"
    ran = await bench.run(shell(script, timeout=0.4))
    assert (ran.timed_out, ran.exit_code) == (True, 124)
    child = Path("/proc", ran.stdout.strip(), "cmdline")
    await eventually(lambda: not child.exists() or b"sleep" not in child.read_bytes())
    assert (await bench.run(shell("cat sub/one.txt"))).stdout == "one\n"


async def test_output_is_bounded_at_both_ends(
    bench: SandboxWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbench, "MOST_OUTPUT", 2000)
    ran = await bench.run(shell("echo first; yes | head -c 3000000; echo last"))
    assert ran.stdout.startswith("first\ny\n")
    assert ran.stdout.endswith("y\nlast\n")
    assert "left out" in ran.stdout
    assert len(ran.stdout) < 2100


async def test_grading_files_are_in_the_copies_only(attempt: StimulusAttempt, sandbox: Sandbox) -> None:
    write(attempt.base, {"hidden.py": "hidden\n", "suite/a.py": "a\n"})
    attempt.set_up_with({}, grading={"hidden.py": "tests/hidden.py", "suite": "tests/suite"}, programs=2)
    await attempt.prepare(sandbox)
    await sandbox.exec("mkdir -p /workspace/tests; echo mine > /workspace/tests/hidden.py")
    bench = SandboxWorkbench(sandbox, attempt.stimulus, attempt.start)
    for _ in range(2):
        ran = await bench.run(shell("cat tests/hidden.py tests/suite/a.py; rm -r tests"))
        assert ran.stdout == "hidden\na\n"
    assert (await sandbox.exec("cat /workspace/tests/*")).output == "mine\n"


async def test_a_workspace_that_is_gone_is_empty(bench: SandboxWorkbench, sandbox: Sandbox) -> None:
    await sandbox.exec("rm -rf /workspace")
    for _ in range(2):
        ran = await bench.run(shell("ls -A; echo end"))
        assert (ran.exit_code, ran.stdout) == (0, "end\n")


async def test_where_nothing_runs_there_is_no_verdict(attempt: StimulusAttempt, null: Sandbox) -> None:
    with pytest.raises(GraderError, match="do programs run in this sandbox"):
        await SandboxWorkbench(null, attempt.stimulus, attempt.start).run(shell("true"))
