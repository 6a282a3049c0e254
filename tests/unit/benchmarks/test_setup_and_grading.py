"""Setup and grading on real processes; hostile agents are played by hand between the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes.errors import SandboxError
from sandboxes.protocol import Sandbox
from sandboxes.types import Command, StreamName
from tests.unit.benchmarks.task_folders import WriteTask
from valkyrie.benchmarks.protocol import Grading
from valkyrie.benchmarks.task_dir.benchmark import TaskDirBenchmark
from valkyrie.domain import Grade
from valkyrie.errors import BenchmarkError, GraderError, GraderTimeoutError, UserError

PASS = 'echo 1 > "$VERIFIER_DIR/reward.txt"\n'


class Trial:
    """One task in one sandbox, driven step by step."""

    def __init__(self, folder: Path, sandbox: Sandbox, evidence: Path, **options: object) -> None:
        self.benchmark = TaskDirBenchmark(folder, **options)  # type: ignore[arg-type]
        self.task_id, self.sandbox, self.evidence = folder.name, sandbox, evidence
        self.log: list[str] = []

    def sink(self, _: StreamName, text: str) -> None:
        self.log.append(text)

    async def setup(self) -> None:
        task = await self.benchmark.describe(self.task_id)
        task = task.steps[0] if task.steps else task
        await self.benchmark.setup(task, self.sandbox, self.sink, self.evidence / "start")

    async def agent(self, script: str) -> None:
        assert await self.sandbox.run(Command.bash(script, cwd="/app"), self.sink) == 0, "".join(self.log)

    async def grade(self) -> Grade:
        task = await self.benchmark.describe(self.task_id)
        return await self.benchmark.evaluate(Grading(task, self.sandbox, self.sink, self.evidence))


MakeTrial = Callable[..., Trial]


@pytest.fixture
def make(write_task: WriteTask, sandbox: Sandbox, tmp_path: Path) -> MakeTrial:
    def trial(files: dict[str, str], **options: object) -> Trial:
        return Trial(write_task("t", files), sandbox, tmp_path / "evidence", **options)

    return trial


async def test_setup_brings_in_the_environment_and_nothing_else(make: MakeTrial, sandbox: Sandbox) -> None:
    trial = make(
        {
            "environment/data/in.txt": "in",
            "environment/setup.sh": "echo $0; ls -A > seen.txt; cp data/in.txt out.txt",
            "environment/__pycache__/x.pyc": "junk",
            "solution/solve.sh": "secret",
            "README.md": "for people",
        }
    )
    await trial.setup()
    files = await sandbox.list_files("/**/*")
    assert files == ["/app/data/in.txt", "/app/out.txt", "/app/seen.txt", "/tmp/instruction.md"]
    assert await sandbox.download_file("/app/seen.txt") == b"data\nseen.txt\n"
    assert await sandbox.download_file("/tmp/instruction.md") == b"Do it.\n"
    for folder in ("/logs/agent", "/logs/verifier", "/logs/artifacts", "/app"):
        assert await sandbox.is_folder(folder)


@pytest.mark.parametrize("folder", ["environment", "steps/one/workdir"])
async def test_a_failing_setup_script_is_the_authors_problem(
    make: MakeTrial, sandbox: Sandbox, folder: str
) -> None:
    steps = {"task.toml": '[[steps]]\nname = "one"\n', "steps/one/instruction.md": "Do it."}
    trial = make({**steps, f"{folder}/setup.sh": "echo about to fail; exit 3"})
    said = rf"(?s){folder}/setup.sh ended with exit code 3; last output:.*about to fail"
    with pytest.raises(BenchmarkError, match=said) as caught:
        await trial.setup()
    assert caught.value.cause == "task_setup_failed"
    assert await sandbox.list_files("/tmp/*setup*") == []


async def test_with_its_own_image_the_environment_is_not_copied(make: MakeTrial, sandbox: Sandbox) -> None:
    trial = make({"environment/Dockerfile": "FROM x\nCOPY data.txt .\n", "environment/data.txt": "x"})
    await trial.setup()
    assert await sandbox.list_files("/app/*") == []


async def test_host_image_repeats_the_dockerfile(make: MakeTrial, sandbox: Sandbox) -> None:
    dockerfile = "FROM x\nWORKDIR /app/w\nCOPY data.txt .\nENV WORD=hi\nRUN echo $WORD > said.txt\n"
    trial = make(
        {
            "environment/Dockerfile": dockerfile,
            "environment/data.txt": "x",
            "tests/test.sh": 'echo "$WORD $(basename "$PWD")"; ' + PASS,
        },
        host_image=True,
    )
    await trial.setup()
    assert await sandbox.list_files("/app/**/*") == ["/app/w/data.txt", "/app/w/said.txt"]
    assert (await trial.grade()).score == 1.0
    assert (trial.evidence / "test-stdout.txt").read_text() == "hi w\n"


async def test_a_health_check_is_tried_until_it_succeeds(make: MakeTrial, sandbox: Sandbox) -> None:
    check = (
        'healthcheck = { command = "echo x >> n; test $(wc -l < n) -ge 3", interval = 0, start_interval = 0 }'
    )
    trial = make({"task.toml": f"[environment]\n{check}"})
    await trial.setup()
    assert await sandbox.download_file("/app/n") == b"x\nx\nx\n"


async def test_an_unhealthy_environment_is_an_error(make: MakeTrial) -> None:
    trial = make(
        {"task.toml": '[environment]\nhealthcheck = { command = "exit 9", interval = 0, retries = 2 }'}
    )
    with pytest.raises(BenchmarkError, match="failed 2 times, last with exit code 9") as caught:
        await trial.setup()
    assert caught.value.cause == "task_unhealthy"


async def test_the_reward_counts_and_the_exit_code_does_not(make: MakeTrial) -> None:
    trial = make({"tests/test.sh": f"echo out; echo err >&2; pwd; {PASS} exit 5"})
    await trial.setup()
    grade = await trial.grade()
    assert (grade.score, grade.passed) == (1.0, True)
    assert grade.result == {"rewards": {"reward": 1.0}, "test_exit_code": 5}
    kept = (trial.evidence / "test-stdout.txt").read_text()
    assert {"out", "err"} <= set(kept.split())
    assert "/app\n" in kept
    assert (trial.evidence / "verifier" / "reward.txt").read_text() == "1\n"
    assert "out" in "".join(trial.log)


async def test_reward_json_wins(make: MakeTrial) -> None:
    script = PASS + """echo '{"speed": 3, "reward": 0.5}' > "$VERIFIER_DIR/reward.json" """
    trial = make({"tests/test.sh": script})
    await trial.setup()
    grade = await trial.grade()
    assert (grade.score, grade.passed) == (0.5, False)
    assert grade.result["rewards"] == {"speed": 3.0, "reward": 0.5}


async def test_scores_beyond_one_are_kept(make: MakeTrial) -> None:
    trial = make({"tests/test.sh": 'echo 2.5 > "$VERIFIER_DIR/reward.txt"'})
    await trial.setup()
    grade = await trial.grade()
    assert (grade.score, grade.passed) == (2.5, True)


NO_VERDICT = {
    "nothing": ("echo last words", "no /logs/verifier/reward.json or reward.txt", "grader_no_verdict"),
    "empty": (': > "$VERIFIER_DIR/reward.txt"; echo last words', "reward.txt is empty", "grader_no_verdict"),
    "nan": (
        'echo nan > "$VERIFIER_DIR/reward.txt"; echo last words',
        "one finite number",
        "grader_no_verdict",
    ),
    "bool": (
        """echo '{"a": true}' > "$VERIFIER_DIR/reward.json"; echo last words""",
        "must be a number",
        "grader_no_verdict",
    ),
    "big": (
        'head -c 400000 /dev/zero > "$VERIFIER_DIR/reward.txt"; echo last words',
        "larger than",
        "grader_no_verdict",
    ),
    "link": (
        'echo 1 > x; ln -s "$PWD/x" "$VERIFIER_DIR/reward.txt"; echo last words',
        "no /logs",
        "grader_no_verdict",
    ),
    "no pytest": ("echo last words; no-such-program-here", "could not start", "grader_start_failed"),
}


@pytest.mark.parametrize("kind", NO_VERDICT)
async def test_no_usable_verdict_is_never_a_zero(make: MakeTrial, kind: str) -> None:
    script, message, cause = NO_VERDICT[kind]
    trial = make({"tests/test.sh": script})
    await trial.setup()
    with pytest.raises(GraderError, match=message) as caught:
        await trial.grade()
    assert caught.value.cause == cause
    assert "last words" in str(caught.value)
    assert "last words" in (trial.evidence / "test-stdout.txt").read_text()


async def test_a_program_missing_along_the_way_does_not_spoil_a_verdict(make: MakeTrial) -> None:
    trial = make({"tests/test.sh": f"{PASS}no-such-program-here"})
    await trial.setup()
    assert (await trial.grade()).result["test_exit_code"] == 127


async def test_a_verifier_that_takes_too_long(make: MakeTrial) -> None:
    trial = make({"task.toml": "[verifier]\ntimeout_sec = 0.2", "tests/test.sh": f"{PASS}sleep 30"})
    await trial.setup()
    with pytest.raises(GraderTimeoutError, match=r"task t: tests/test.sh did not end within 0.2 s"):
        await trial.grade()


async def test_exit_code_124_by_itself_is_no_timeout(make: MakeTrial) -> None:
    trial = make({"tests/test.sh": f"{PASS}exit 124"})
    await trial.setup()
    assert (await trial.grade()).score == 1.0


async def test_verifier_env_reaches_the_tests_only(make: MakeTrial) -> None:
    toml = '[verifier.env]\nJUDGE = "${KEY}"\n[environment.env]\nSHARED = "s"\n'
    trial = make(
        {"task.toml": toml, "tests/test.sh": f'echo "[$JUDGE][$SHARED][$BASH_ENV]"; {PASS}'},
        host_env={"KEY": "k"},
    )
    await trial.setup()
    await trial.grade()
    assert "[k][s][]" in (trial.evidence / "test-stdout.txt").read_text()
    assert "JUDGE" not in (await trial.benchmark.describe("t")).env


PLANTED = {
    "reward files": "echo 1 > logs/verifier/reward.txt; echo '{\"reward\": 1}' > logs/verifier/reward.json",
    "a folder for a file": "mkdir -p logs/verifier/reward.json/x",
    "a linked verdict folder": (
        "rm -rf logs/verifier; mkdir -p app/v; echo 1 > app/v/reward.txt; ln -s $PWD/app/v logs/verifier"
    ),
    "a linked log folder": (
        "rm -rf logs; mkdir -p app/l/verifier; echo 1 > app/l/verifier/reward.txt; ln -s $PWD/app/l logs"
    ),
    "a file for the log folder": "rm -rf logs; echo x > logs",
    "tests of its own": "mkdir -p tests; echo 'echo 1 > reward' > tests/test.sh; echo x > tests/conftest.py",
    "linked tests": "rm -rf tests; mkdir app/mine; ln -s $PWD/app/mine tests",
    "no working folder": "rm -rf app",
    "a file for the working folder": "rm -rf app; echo x > app",
    "shell settings": "echo 'exit 1' > ~/.bashrc; echo 'exit 1' > ~/.profile",
}


@pytest.mark.parametrize("trick", PLANTED)
async def test_what_the_agent_planted_is_gone_before_grading(
    make: MakeTrial, sandbox: Sandbox, trick: str
) -> None:
    honest = 'ls "$(dirname "$0")" "$VERIFIER_DIR"; test ! -e solved; echo 0.25 > "$VERIFIER_DIR/reward.txt"'
    trial = make({"tests/test.sh": honest})
    await trial.setup()
    await trial.agent(f"set -e; cd $VALKYRIE_ROOT; {PLANTED[trick]}")
    grade = await trial.grade()
    assert grade.result == {"rewards": {"reward": 0.25}, "test_exit_code": 0}
    assert "conftest" not in (trial.evidence / "test-stdout.txt").read_text()
    assert await sandbox.list_files("/tests/*") == ["/tests/test.sh"]


async def test_a_folder_that_can_only_be_emptied_will_do(
    make: MakeTrial, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider may have mounted /tests and /logs/verifier; a mount point cannot be removed."""
    remove = sandbox.remove

    async def remove_unless_mounted(path: str) -> None:
        if path not in ("/tests", "/logs/verifier"):
            return await remove(path)
        for file in await sandbox.list_files(f"{path}/*"):
            await remove(file)
        raise SandboxError(f"cannot remove {path}: device or resource busy")

    trial = make({"tests/test.sh": 'ls "$VERIFIER_DIR"; echo 0.5 > "$VERIFIER_DIR/reward.txt"'})
    await trial.setup()
    await trial.agent("echo 1 > $VALKYRIE_ROOT/logs/verifier/reward.json; echo x > $VALKYRIE_ROOT/tests/x")
    monkeypatch.setattr(sandbox, "remove", remove_unless_mounted)
    assert (await trial.grade()).score == 0.5
    assert await sandbox.list_files("/tests/*") == ["/tests/test.sh"]


async def test_what_the_tests_started_is_dead_when_the_verdict_is_read(
    make: MakeTrial, sandbox: Sandbox
) -> None:
    script = 'setsid bash -c "sleep 30" & echo $! > pid; ' + PASS
    trial = make({"tests/test.sh": script})
    await trial.setup()
    await trial.grade()
    pid = int(await sandbox.download_file("/app/pid"))
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]


async def test_a_task_that_changed_under_a_run_is_refused(make: MakeTrial, tmp_path: Path) -> None:
    trial = make({})
    task = await trial.benchmark.describe("t")
    (tmp_path / "tasks/t/tests/test.sh").write_text("changed")
    for step in (
        trial.benchmark.setup(task, trial.sandbox, trial.sink, trial.evidence),
        trial.benchmark.evaluate(Grading(task, trial.sandbox, trial.sink, trial.evidence)),
    ):
        with pytest.raises(UserError, match="changed since the run was planned") as caught:
            await step
        assert caught.value.cause == "task_changed"


async def test_a_raised_time_limit_holds(make: MakeTrial) -> None:
    trial = make({"task.toml": "[verifier]\ntimeout_sec = 0.1", "tests/test.sh": f"sleep 0.4; {PASS}"})
    await trial.setup()
    task = await trial.benchmark.describe("t")
    longer = replace(task, timeouts=replace(task.timeouts, grade=20.0))
    grading = Grading(longer, trial.sandbox, trial.sink, trial.evidence)
    assert (await trial.benchmark.evaluate(grading)).score == 1.0


async def test_the_last_line_of_the_tests_is_the_reason_of_a_failure(make: MakeTrial) -> None:
    trial = make(
        {"tests/test.sh": "echo first; echo 'FAIL: 2 is not 3'; echo; echo 0 > $VERIFIER_DIR/reward.txt"}
    )
    await trial.setup()
    assert (await trial.grade()).reason == "FAIL: 2 is not 3"


async def test_a_pass_has_no_reason(make: MakeTrial) -> None:
    trial = make({"tests/test.sh": "echo ok; echo 1 > $VERIFIER_DIR/reward.txt"})
    await trial.setup()
    assert (await trial.grade()).reason is None
