"""Bad days: what a person is told when the disk, the executor or the database is not as it should be."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from valkyrie.agents.contract_agent import OutputEnds
from valkyrie.cli.eval_options import named_agent
from valkyrie.cli.main import _explain
from valkyrie.cli.run_outputs import _AgentSilence
from valkyrie.errors import InfrastructureError, StoreError
from valkyrie.executor.client import ExecutorClient, socket_path
from valkyrie.store import Store, tenants
from valkyrie.store.layout import DataFolder

LISTENS = """
import socket, sys
link = socket.socket(socket.AF_UNIX)
link.bind(sys.argv[1])
link.listen()
print("listens", flush=True)
sys.stdin.read()
"""
FETCHES = """
import asyncio, sys
from pathlib import Path
from valkyrie.agents.packages import run_tool
from valkyrie.cli.agent import _ended_by_sigterm
script = "echo $$; sleep 1000 & echo $!; wait"
argv = ["/bin/sh", "-c", script]
with _ended_by_sigterm():
    asyncio.run(run_tool(argv, what="it", cwd=Path("/"), log=lambda line: print(line, flush=True)))
"""


@pytest.fixture
def suspended(tmp_path: Path) -> Iterator[tuple[DataFolder, int]]:
    data = DataFolder(tmp_path / "home").make()
    place = socket_path(data)
    place.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-c", LISTENS, str(place)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "listens\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        yield data, process.pid
        process.kill()


def test_a_suspended_executor_is_named_at_once(suspended: tuple[DataFolder, int]) -> None:
    data, pid = suspended
    client = ExecutorClient(data)
    began = time.monotonic()
    for ask in (client.ensure, client.begin):
        with pytest.raises(InfrastructureError, match=rf"Executor {pid} .* suspended.*kill -CONT {pid}"):
            ask()
    assert client.status() is None
    assert time.monotonic() - began < 8, "an answer was waited for"


def test_a_database_that_vanished_is_said_and_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "valkyrie.db"
    store = Store(path)
    with store.writing() as connection:
        tenants.create_org(connection, "kept")
    for file in tmp_path.iterdir():
        file.unlink()
    for look in (store.reading, store.writing):
        with pytest.raises(StoreError, match="is gone"), look():
            pass

    async def write() -> None:
        writer = store.writer()
        try:
            await writer.call(tenants.orgs)
        finally:
            await writer.close()

    with pytest.raises(StoreError, match="is gone") as told:
        asyncio.run(write())
    assert told.value.cause == "store_gone" and not path.exists()
    Store(path).close()
    with pytest.raises(StoreError, match="another file is in its place"), store.reading():
        pass
    store.close()


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap for a read-only folder")
def test_a_read_only_data_folder_can_be_looked_at(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    Store(home / "valkyrie.db").close()
    words = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(home), str(home)]
    env = {**os.environ, "VALKYRIE_HOME": str(home), "VALKYRIE_CONFIG_PATH": str(tmp_path / "v.yaml")}
    env.pop("VALKYRIE_DATABASE_URL", None)
    before = sorted(path.name for path in home.iterdir())
    command = [*words, sys.executable, "-m", "valkyrie", "run", "list"]
    said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    if "bwrap" in said.stderr:
        pytest.skip(said.stderr)
    assert (said.returncode, "Error" in said.stderr) == (0, False), said.stderr
    assert sorted(path.name for path in home.iterdir()) == before


def test_a_full_disk_is_called_so() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT):
        ending = _explain(OSError(number, os.strerror(number), "/data/results.json"))
        assert "disk is full (/data/results.json)" in ending.message and "valk disk" in ending.hint
        assert (ending.code, ending.reason) == (1, "disk_full")


def test_sigterm_ends_what_fetches_an_agent() -> None:
    words = [sys.executable, "-c", FETCHES]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        started = [int(process.stdout.readline()) for _ in range(2)]
        process.terminate()
        assert process.wait(60) != 0
    assert [pid for pid in started if _lives(pid)] == []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_an_install_error_keeps_its_first_and_its_last_lines() -> None:
    tail = OutputEnds(8)
    keep = tail.after(lambda _stream, _text: None)
    keep("stderr", "error: no compiler\n")
    for number in range(100):
        keep("stdout", f"line {number}\n")
    keep("stdout", "npm ERR! gave up")
    said = str(tail).split("\n  ")[1:]
    assert said[0] == "error: no compiler" and said[-1] == "npm ERR! gave up"
    assert "lines more" in said[5] and len(said) == 14
    short = OutputEnds(8)
    short.after(lambda _stream, _text: None)("stdout", "one\ntwo\n")
    assert str(short) == "\n  one\n  two"


def test_silence_of_the_agent_is_seen() -> None:
    for lines, found in (
        ("── 05:05:34 agent\n── 05:05:34 collect", True),
        ("── 05:05:34 install\n── 05:05:34 agent\nhello\n── 05:05:34 collect", False),
        ("── 05:05:34 agent", False),
    ):
        silence = _AgentSilence()
        for line in lines.split("\n"):
            silence.read(line)
        assert silence.found is found, lines


def test_the_folder_of_an_evals_agent_is_remembered_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    given = {"executor": "./mine", "executor_plugins": (), "model": None}
    assert named_agent(given) == (f"agent:{tmp_path.resolve() / 'mine'}", None)
