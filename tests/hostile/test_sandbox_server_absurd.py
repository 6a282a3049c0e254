"""Requests to the sandbox server that nobody means, and sandboxes whose agent misleads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.sandbox_serving import Serving, serving

JSON = {"Content-Type": "application/json"}
ABSURD = [
    {"cpu": -1},
    {"memory": -1},
    {"disk": -1},
    {"cpu": 10**30},
    {"memory": 10**9},
    {"disk": 10**12},
    {"env": {"A=B": "x"}},
    {"env": {"": "x"}},
    {"env": {"A": "\0"}},
    {"env": {"A": "x" * 200_000}},
]


ALONE = {"networkBlockAll": True}
"""A network is not what these tests are about, and not every machine has one to give."""


class Machine:
    """One sandbox, spoken to without an SDK that would check first."""

    def __init__(self, client: httpx.AsyncClient, served: Serving) -> None:
        self.client = client
        self.served = served
        self.id = ""

    async def make(self) -> None:
        self.id = (await self.client.post("/api/sandbox", json={"networkBlockAll": True})).json()["id"]

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        async with asyncio.timeout(60):
            return await self.client.request(method, f"/toolbox/{self.id}/{path}", **options)

    async def sh(self, command: str) -> str:
        answer = await self.ask("POST", "process/execute", json={"command": command, "cwd": "/app"})
        assert answer.json()["exitCode"] == 0, answer.text
        return str(answer.json()["result"])


@pytest.fixture(params=["process", "local"])
async def machine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Machine]:
    async with serving(request.param, tmp_path / "state") as served:
        grant = served.grant()
        base, headers = grant.api_url.removesuffix("/api"), {"Authorization": f"Bearer {grant.api_key}"}
        async with httpx.AsyncClient(verify=False, base_url=base, headers=headers, timeout=60) as client:
            made = Machine(client, served)
            await made.make()
            yield made


async def test_absurd_sandboxes_are_refused_and_none_is_left(machine: Machine) -> None:
    for body in ABSURD:
        answer = await machine.client.post("/api/sandbox", json=body)
        assert answer.status_code == 400, (body, answer.text)
        assert "cgroup" not in answer.text
    assert await machine.served.living() == [machine.id]


async def test_more_memory_than_there_is_gives_no_larger_disk(machine: Machine) -> None:
    answer = await machine.client.post("/api/sandbox", json={**ALONE, "memory": 100_000, "disk": 1_000_000})
    assert answer.status_code == 200, answer.text
    if machine.served.provider.capabilities().provider != "local":
        return
    size = await machine.client.post(
        f"/toolbox/{answer.json()['id']}/process/execute", json={"command": "df -k --output=size / | tail -1"}
    )
    total = int(
        next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line).split()[1]
    )
    assert 0 < int(size.json()["result"]) <= total


async def test_half_characters_and_endless_words_are_the_callers_mistake(machine: Machine) -> None:
    broken = [
        ("process/execute", b'{"command": "echo \\ud800"}'),
        ("process/execute", b'{"command": "true", "cwd": "\\udfff"}'),
        ("process/code-run", b'{"code": "\\ud800"}'),
        ("files/replace", b'{"files": ["/app/x"], "pattern": "\\ud800", "newValue": ""}'),
    ]
    for path, body in broken:
        answer = await machine.ask("POST", path, content=body, headers=JSON)
        assert answer.status_code == 400, (path, answer.text)
    for field in (b'"name": "\\ud800"', b'"user": "\\ud800"', b'"labels": {"a": "\\ud800"}'):
        made = await machine.client.post("/api/sandbox", content=b"{%s}" % field, headers=JSON)
        assert made.status_code == 400, (field, made.text)
    assert await machine.served.living() == [machine.id]
    words = await machine.ask("POST", "process/code-run", json={"code": "1", "argv": ["word"] * 500_000})
    assert words.status_code == 400 or words.json()["exitCode"] == 126
    assert await machine.sh("echo well") == "well\n"


async def test_files_from_the_end_of_time_are_listed(machine: Machine) -> None:
    await machine.sh("touch -d @9999999999999 late; touch -d @-9999999999999 early; touch now")
    listed = await machine.ask("GET", "files", params={"path": "/app"})
    assert {entry["name"] for entry in listed.json()} == {"late", "early", "now"}
    for name in ("late", "early"):
        assert (await machine.ask("GET", "files/info", params={"path": f"/app/{name}"})).status_code == 200


async def test_nobody_waits_for_the_other_end_of_a_pipe(machine: Machine) -> None:
    await machine.sh("mkfifo pipe; echo needle > file; mkdir folder; mkfifo folder/pipe")
    for path, found in (("/app/pipe", 0), ("/app/folder", 0), ("/app", 1), ("/app/file", 1)):
        answer = await machine.ask("GET", "files/find", params={"path": path, "pattern": "needle"})
        assert len(answer.json()) == found, path
    for path in ("/app/pipe", "/app/folder/pipe"):
        assert (await machine.ask("GET", "files/download", params={"path": path})).status_code == 404
    replaced = await machine.ask(
        "POST", "files/replace", json={"files": ["/app/pipe"], "pattern": "a", "newValue": "b"}
    )
    assert replaced.json()[0]["success"] is False


async def test_an_edit_never_holds_more_than_its_limit(machine: Machine) -> None:
    await machine.sh("truncate -s 30G sparse; head -c 1000000 /dev/zero | tr '\\0' a > grows")
    body: dict[str, Any] = {"files": ["/app/sparse"], "pattern": "a", "newValue": "b"}
    for wanted in (body, {"files": ["/app/grows"], "pattern": "a", "newValue": "b" * 1_000_000}):
        (told,) = (await machine.ask("POST", "files/replace", json=wanted)).json()
        assert told["success"] is False
        assert "larger than 64 MiB" in told["error"]
    assert await machine.sh("head -c 3 grows") == "aaa"


@pytest.mark.slow
async def test_answers_that_nobody_reads_do_not_pile_up(machine: Machine) -> None:
    sessions = f"/toolbox/{machine.id}/process/session"
    await machine.client.post(sessions, json={"sessionId": "s"})
    command = {"command": "head -c 20000000 /dev/zero | tr '\\0' a"}
    done = (await machine.client.post(f"{sessions}/s/exec", json=command)).json()
    path = f"{sessions}/s/command/{done['cmdId']}/logs"
    port, key = machine.client.base_url.port, machine.client.headers["authorization"]
    before = memory()
    unread = []
    for _ in range(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n\r\n".encode())
        unread.append(writer)
    await asyncio.sleep(1)  # nothing tells when a server has done all it will do for those who do not read
    assert memory() - before < 600 << 20
    for writer in unread:
        writer.transport.abort()
    assert len((await machine.client.get(path)).json()["stdout"]) == 20_000_000


def memory() -> int:
    """Bytes this process, server included, holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_a_forged_stat_fools_only_the_question(machine: Machine) -> None:
    """An agent that may write to the system's folders can replace the programs that answer."""
    if not machine.served.provider.capabilities().writable_system:
        pytest.skip("system folders are read-only here")
    await machine.sh("touch file; cp /usr/bin/stat /app/true-stat")
    forged = ("echo zz 1 2 root root", "echo nonsense", "echo ffff 99999999999999999999 -1 a b", "exit 0")
    for lie in forged:
        await machine.sh(
            f"rm -f /usr/bin/stat; printf '#!/bin/sh\\n{lie}\\n' > /usr/bin/stat; chmod +x /usr/bin/stat"
        )
        for path in ("files", "files/info"):
            answer = await machine.ask("GET", path, params={"path": "/app"})
            assert answer.status_code < 500, (lie, answer.text)
    assert await machine.sh("echo well") == "well\n"
