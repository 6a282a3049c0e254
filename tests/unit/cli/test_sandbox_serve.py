"""`sandbox serve`."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pexpect
import pytest

from tests.unit.cli.command_result import CommandResult

Valk = Callable[..., CommandResult]
Serve = Callable[..., "tuple[subprocess.Popen[str], dict[str, Any]]"]


@pytest.fixture
def serve(program_env: dict[str, str]) -> Iterator[Serve]:
    """Starts servers as processes of their own; gives each with the document it printed first."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        child = subprocess.Popen(
            [sys.executable, "-m", "valkyrie", "sandbox", "serve", "--provider", "process", "--json", *words],
            env=program_env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        assert child.stdout is not None
        return child, json.loads(child.stdout.readline())

    yield start
    for child in started:
        if child.poll() is None:
            child.kill()
        child.communicate()


def client(document: dict[str, Any], key: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=document["api_url"], headers=headers, timeout=30, trust_env=False)


def runs(pid: int) -> bool:
    """Whether a process is there and not only waiting to be collected."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_its_sandboxes(serve: Serve, tmp_path: Path, number: int) -> None:
    child, document = serve()
    assert document["api_url"].startswith("http://127.0.0.1:") and document["target"] == "local"
    with client(document, document["api_key"]) as api:
        made = api.post("/sandbox", json={"labels": {"mine": "yes"}})
        assert made.status_code == 200
        sandbox = made.json()
        ran = api.post(
            f"{sandbox['toolboxProxyUrl']}/{sandbox['id']}/process/execute",
            json={"command": "nohup sleep 600 >/dev/null 2>&1 & echo $!"},
        )
        pid = int(ran.json()["result"])
        assert runs(pid)
    with client(document, "not-the-key") as stranger:
        assert stranger.get("/sandbox").status_code == 401
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, json.loads(out)) == (
        0,
        {"schema_version": 1, "kind": "sandbox_server_ended", "sandboxes": 1},
    )
    assert not runs(pid)
    assert "NOTHING IS ISOLATED" in err and document["api_key"] not in err
    with pytest.raises(httpx.ConnectError), client(document, document["api_key"]) as api:
        api.get("/sandbox")
    assert not (tmp_path / "home" / "sandboxes").exists()


def test_the_key_can_be_a_file_that_goes_with_the_server(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("an old one")
    file.chmod(0o644)
    child, document = serve("--key-file", str(file), "--public-url", "https://tunnel.example/")
    assert document["api_key"] is None and document["api_url"] == "https://tunnel.example/api"
    key = file.read_text().strip()
    assert len(key) > 30 and file.stat().st_mode & 0o777 == 0o600
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0 and key not in out and not file.exists()


@pytest.mark.slow
def test_two_servers_leave_each_others_sandboxes_alone(serve: Serve) -> None:
    first, one = serve()
    second, other = serve()
    with client(one, one["api_key"]) as mine, client(other, other["api_key"]) as theirs:
        made = mine.post("/sandbox", json={}).json()
        assert theirs.get("/sandbox").json()["items"] == []
        assert theirs.get(f"/sandbox/{made['id']}").status_code == 404
        second.send_signal(signal.SIGTERM)
        assert json.loads(second.communicate(timeout=60)[0])["sandboxes"] == 0
        assert mine.get(f"/sandbox/{made['id']}").json()["state"] == "started"
    first.send_signal(signal.SIGTERM)
    assert json.loads(first.communicate(timeout=60)[0])["sandboxes"] == 1


def test_on_a_terminal_it_prints_what_to_export(program_env: dict[str, str]) -> None:
    words = ["-m", "valkyrie", "sandbox", "serve", "--provider", "process"]
    child = pexpect.spawn(sys.executable, words, env=program_env, encoding="utf-8", timeout=30)
    try:
        child.expect(r"export DAYTONA_API_URL=http://127.0.0.1:\d+/api\r\n")
        child.expect(r"export DAYTONA_TARGET=local\r\nexport DAYTONA_API_KEY=[\w-]{30,}\r\n")
        child.expect(r"Ctrl\+C ends")
        child.sendintr()
        child.expect("Ended")
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)
    assert child.exitstatus == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--host", "0.0.0.0", "--json"], "--allow-remote"),
        (["--host", "192.0.2.1", "--json"], "--allow-remote"),
        ([], "add --key-file FILE or --json"),
        (["--provider", "daytona", "--json"], "'daytona' is not one of"),
        (["--public-url", "tunnel.example", "--json"], "an http(s) URL with a host is wanted"),
        (["--port", "70000", "--json"], "70000 is not in the range"),
    ],
)
def test_what_would_not_be_safe_or_seen_is_refused(valk: Valk, words: list[str], says: str) -> None:
    said = valk("sandbox", "serve", *words)
    assert (said.code, said.out) == (2, "") and says in said.err


def test_a_port_in_use_is_named(program_env: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ["sandbox", "serve", "--provider", "process", "--port", port, "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "valkyrie", *words], env=program_env, capture_output=True, text=True
        )
    error = json.loads(done.stderr.splitlines()[-1])
    assert done.returncode == 1 and done.stdout == ""
    assert f"port {port}" in error["error_message"] and "in use" in error["error_message"]
