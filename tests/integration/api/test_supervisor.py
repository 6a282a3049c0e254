"""The executor beside a server: started again when it dies, drained when the server ends, gone with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from valkyrie.api.server import PARENT_PIPE, Supervisor, executor_environment
from valkyrie.cli.main import main
from valkyrie.errors import InfrastructureError

pytestmark = pytest.mark.slow

CHILD = """
import os, pathlib, select, signal, sys, threading

told = threading.Event()
notes = pathlib.Path(sys.argv[1])
said = 0
def note(text):
    with notes.open("a") as file:
        file.write(f"{text} {os.getpid()}\\n")
def on_term(*_):
    global said
    said += 1
    note(f"term{said}")
    if said >= int(sys.argv[2]):
        os._exit(0)
signal.signal(signal.SIGTERM, on_term)
note("began")
pipe = int(os.environ["VALKYRIE_PARENT_PIPE"])
while True:
    try:
        if select.select([pipe], [], [])[0] and not os.read(pipe, 1):
            note("orphaned")
            os._exit(0)
    except InterruptedError:
        pass
"""


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def noted(notes: Path) -> list[str]:
    return [line.split()[0] for line in notes.read_text().splitlines()] if notes.exists() else []


def supervised(notes: Path, terms: int = 1, restarted: Callable[[], None] = lambda: None) -> Supervisor:
    command = [sys.executable, "-c", CHILD, str(notes), str(terms)]
    return Supervisor(command, executor_environment(), restarted, first_pause_s=0.05)


async def test_a_child_that_is_killed_is_started_again(tmp_path: Path) -> None:
    notes, restarts = tmp_path / "notes", []
    supervisor = supervised(notes, restarted=lambda: restarts.append(1))
    await supervisor.start()
    for number in (1, 2):
        await until(lambda: noted(notes).count("began") == number)  # noqa: B023 - asked at once
        assert supervisor.pid
        os.kill(supervisor.pid, signal.SIGKILL)
    await until(lambda: noted(notes).count("began") == 3)
    await supervisor.close(drain_timeout=60)
    assert (noted(notes)[-1], len(restarts), supervisor.pid) == ("term1", 2, None)


async def test_a_child_that_drains_too_long_is_told_again(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    supervisor = supervised(notes, terms=2)
    await supervisor.start()
    await until(lambda: noted(notes))
    await supervisor.close(drain_timeout=2)
    assert noted(notes) == ["began", "term1", "term2"]


async def test_whoever_is_in_a_hurry_does_not_wait_for_the_drain(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    supervisor = supervised(notes, terms=2)
    await supervisor.start()
    await until(lambda: noted(notes))
    ending = asyncio.create_task(supervisor.close(drain_timeout=600))
    await until(lambda: "term1" in noted(notes))
    supervisor.hurry()
    await ending
    assert noted(notes) == ["began", "term1", "term2"]


async def test_a_command_that_is_not_there_is_said(tmp_path: Path) -> None:
    supervisor = Supervisor([str(tmp_path / "nothing")], {})
    with pytest.raises(InfrastructureError, match="cannot be started"):
        await supervisor.start()
    await supervisor.close(drain_timeout=0)


async def test_a_child_notices_that_its_server_was_killed(tmp_path: Path) -> None:
    """kill -9 gives nobody a chance to say anything; the pipe closes all the same."""
    notes = tmp_path / "notes"
    script = (
        "import asyncio, sys\n"
        "from valkyrie.api.server import Supervisor, executor_environment\n"
        "async def main():\n"
        "    await Supervisor(sys.argv[1:], executor_environment()).start()\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, sys.executable, "-c", CHILD, str(notes), "1"])
    try:
        await until(lambda: noted(notes))
        parent.kill()
        await until(lambda: "orphaned" in noted(notes))
    finally:
        parent.kill()
        parent.wait()


def test_what_the_executor_inherits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKYRIE_SECRET_KEY", "k")
    monkeypatch.setenv("VALKYRIE_DATABASE_URL", "sqlite:///x")
    monkeypatch.setenv("VALKYRIE_API_KEY", "not for it")
    monkeypatch.setenv("VALKYRIE_METRICS_TOKEN", "not for it")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a")
    monkeypatch.setenv("OPENAI_API_KEY", "not for it")
    found = executor_environment()
    assert found["VALKYRIE_SECRET_KEY"] == "k"
    assert found["AWS_SECRET_ACCESS_KEY"] == "a"
    assert "not for it" not in found.values()
    assert PARENT_PIPE not in found


async def serve(tmp_path: Path, *more: str) -> tuple[asyncio.subprocess.Process, dict[str, Any]]:
    """`valkyrie serve` as a process, and what it says when it is ready."""
    kept = {"PATH", "HOME", "PYTHONPATH", "LANG"}
    environment = {name: value for name, value in os.environ.items() if name in kept}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "valkyrie", "serve", "--port", "0", "--json", *more),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            **environment,
            "VALKYRIE_HOME": str(tmp_path / "home"),
            "VALKYRIE_CONFIG_PATH": str(tmp_path / "valkyrie.yaml"),
        },
    )
    assert process.stdout
    line = await process.stdout.readline()
    return process, json.loads(line) if line else {}


async def test_serve_runs_an_executor_and_ends_with_it(tmp_path: Path) -> None:
    process, ready = await serve(tmp_path, "--no-auth")
    try:
        assert (ready["kind"], ready["database"], ready["executor"]) == ("tracker", "sqlite", True)
        async with httpx.AsyncClient(verify=False, base_url=ready["url"], timeout=60) as http:
            assert (await http.get("/health")).json()["status"] == "ok"
            first = await alive(http)
            os.kill(first["pid"], signal.SIGKILL)
            assert (await alive(http, other_than=first["pid"]))["pid"] != first["pid"]
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
        assert process.stderr
        said = (await process.stderr.read()).decode()
        assert "was ended by SIGKILL; it is started again" in said
        assert "told to end" in said
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def alive(http: httpx.AsyncClient, other_than: int | None = None) -> dict[str, Any]:
    """What the executor says, once it says anything."""
    async with asyncio.timeout(60):
        while True:
            status: dict[str, Any] | None = (await http.get("/v1/executor")).json()
            if status and status["pid"] != other_than:
                return status
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--port", "{taken}"], 1, "port {taken}: Address already in use"),
        (["--host", "0.0.0.0", "--no-auth"], 2, "--no-auth would let everyone"),
        (["--port", "65536"], 2, "65536"),
        (["--drain-timeout", "nan"], 2, "nan"),
    ],
)
def test_what_cannot_be_served_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        given = [word.format(taken=taken) for word in words]
        assert main(["serve", "--no-executor", *given]) == code
    assert said.format(taken=taken) in capsys.readouterr().err
