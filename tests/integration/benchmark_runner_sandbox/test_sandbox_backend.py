"""One answer in one real sandbox: what agents leave, leave out, and try."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from benchmark_runner.sandbox import backend
from benchmark_runner.sandbox.backend import Logs, SandboxAgent, SandboxTaskSpec
from benchmark_runner.sandbox.setup import AgentContract, resolve_all
from benchmark_runner.schemas import GenerationResult
from sandboxes.local.provider import LocalProvider
from sandboxes.protocol import Sandbox
from sandboxes.types import SandboxCreateRequest

WRITE = "mkdir -p /out/t1 && cat > /out/t1/generation.json <<'E'\n{text}\nE\n"
GOOD = {"task_id": "x", "status": "success", "answer": "42", "error": None}


@pytest.fixture
async def sandbox(provider: LocalProvider) -> AsyncIterator[Sandbox]:
    made = await provider.create_sandbox(
        SandboxCreateRequest(network="none", env_vars={"KEY": "hush-hush-9"})
    )
    yield made
    await provider.delete_sandbox(made.id)


async def ran(
    sandbox: Sandbox, folder: Path, script: str, limit: float | None = 30, **contract: Any
) -> GenerationResult:
    command = f": {{problem_statement_path}}\n{script}"
    made = AgentContract(name="a", run_cmd=command, **{"final_output": "/out", **contract})
    logs = Logs(folder / "logs", lambda text: text.replace("hush-hush-9", "***"))
    spec = SandboxTaskSpec(cwd="/srv/there", question="?")
    return await backend.generate(sandbox, SandboxAgent(resolve_all(made, "m", {})), "t1", spec, limit, logs)


def written(document: Any) -> str:
    return WRITE.format(text=document if isinstance(document, str) else json.dumps(document))


async def test_the_answer_is_taken_and_its_claims_are_not(sandbox: Sandbox, place: Path) -> None:
    lies = {
        "model": "m",
        "question": "q",
        "log_dir": "/etc",
        "generation_version": "v" * 300,
        "total_turns": 2,
    }
    got = await ran(sandbox, place, f"pwd; env; {written({**GOOD, **lies})}")
    assert (got.task_id, got.status, got.data, got.total_turns) == ("t1", "success", "42", 2)
    assert (got.model, got.question, got.log_dir, got.generation_version) == (None, None, None, None)
    log = (place / "logs" / "agent.log").read_text()
    assert log.startswith("/srv/there\n") and "PYTHONSAFEPATH=1" in log
    assert "KEY=***" in log and "hush" not in log
    assert json.loads((place / "logs" / "generation_raw.json").read_text())["model"] == "m"


async def test_a_failing_agents_own_account_is_taken(sandbox: Sandbox, place: Path) -> None:
    said = {**GOOD, "status": "max_turns", "error": "gave up"}
    got = await ran(sandbox, place, f"{written(said)} exit 3")
    assert (got.status, got.error) == ("max_turns", "gave up")


async def test_an_agent_that_fails_without_a_word(sandbox: Sandbox, place: Path) -> None:
    got = await ran(sandbox, place, "echo the key is $KEY >&2; exit 3")
    assert got.status == "error" and got.error is not None
    assert "exit code 3" in got.error and "the key is ***" in got.error


async def test_a_pipeline_fails_when_any_part_of_it_does(sandbox: Sandbox, place: Path) -> None:
    got = await ran(sandbox, place, "sh -c 'exit 3' | tee /tmp/log")
    assert got.status == "error" and "failed with exit code 3" in str(got.error)


async def test_one_file_is_an_answer_too(sandbox: Sandbox, place: Path) -> None:
    script = "printf ' forty two\\n' > /answer.txt"
    assert (await ran(sandbox, place, script, final_output="/answer.txt")).data == "forty two"
    failed = await ran(sandbox, place, f"{script}; exit 1", final_output="/answer.txt")
    assert failed.status == "error"


async def test_the_limit_holds_for_the_whole_script(sandbox: Sandbox, place: Path) -> None:
    got = await ran(sandbox, place, f"{written(GOOD)} sleep 60; sleep 60", limit=1)
    assert (got.status, got.data, got.error) == ("max_time", "", "agent timed out after 1 seconds")


@pytest.mark.slow
async def test_an_agent_that_does_not_want_to_end(
    sandbox: Sandbox, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "KILL_AFTER_S", 1)
    got = await ran(sandbox, place, "trap '' TERM; while :; do sleep 0.2; done", limit=1)
    assert got.status == "max_time"


async def test_no_limit(sandbox: Sandbox, place: Path) -> None:
    assert (await ran(sandbox, place, written(GOOD), limit=None)).data == "42"


async def test_installing_fails(sandbox: Sandbox, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = await ran(sandbox, place, written(GOOD), install_cmd="pwd; echo $KEY; exit 7")
    assert got.error == "install_cmd failed with exit code 7.\nIt printed last:\n/srv/there\n***"
    monkeypatch.setattr(backend, "INSTALL_S", 1)
    slow = await ran(sandbox, place, written(GOOD), install_cmd="sleep 30")
    assert slow.error == "install_cmd took longer than 1 seconds."


async def test_no_final_output_no_answer(sandbox: Sandbox, place: Path) -> None:
    got = await ran(sandbox, place, "touch /ran", final_output=None)
    assert got.status == "error" and "final_output" in str(got.error)
    assert (await sandbox.exec("test -e /ran")).exit_code == 1


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", "no JSON"),
        ("[1]", "no generation result"),
        ('{"status": "won"}', "status"),
        ('{"status": "success", "total_turns": "many"}', "total_turns"),
        ('{"status": "success", "data": %s}' % ("[" * 5000 + "]" * 5000), "no JSON"),
        ('{"status": "success", "data": "\\ud800"}', "no JSON"),
    ],
)
async def test_what_is_no_generation(sandbox: Sandbox, place: Path, document: str, said: str) -> None:
    got = await ran(sandbox, place, written(document))
    assert got.status == "error" and said in str(got.error)


@pytest.mark.parametrize(
    "script",
    [
        "mkdir -p /out/t1 && ln -s /etc/hostname /out/t1/generation.json",
        "mkdir -p /out/t1/generation.json",
        "mkdir -p /out/t1 && mkfifo /out/t1/generation.json",
        "ln -s / /out",
        "true",
    ],
)
async def test_what_is_no_file_is_no_answer(sandbox: Sandbox, place: Path, script: str) -> None:
    got = await ran(sandbox, place, script)
    assert got.status == "error" and "left no /out/t1/generation.json" in str(got.error)


async def test_an_answer_beyond_bounds(
    sandbox: Sandbox, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "LARGEST_ANSWER", 1 << 20)
    got = await ran(sandbox, place, "mkdir -p /out/t1 && head -c 3000000 /dev/zero > /out/t1/generation.json")
    assert "larger than 1 MiB" in str(got.error)


async def test_an_agent_that_talks_without_end(sandbox: Sandbox, place: Path) -> None:
    got = await ran(sandbox, place, f"echo first; yes | head -c 30000000; echo last; {written(GOOD)}")
    log = (place / "logs" / "agent.log").read_text()
    assert got.data == "42" and len(log) < 2 * backend.MOST_OUTPUT
    assert log.startswith("first\n") and log.endswith("last\n") and "characters left out" in log
