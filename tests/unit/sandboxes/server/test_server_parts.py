"""The parts of the sandbox server that need no server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from sandboxes.errors import SandboxCapacityError, SandboxFileNotFoundError, SandboxNotFoundError
from sandboxes.null import NullProvider
from sandboxes.server import Grant, SandboxServer
from sandboxes.server.app import create_request
from sandboxes.server.bodies import CreateSandbox
from sandboxes.server.file_routes import MultipartReader, part_head
from sandboxes.server.server import Access, AccessTable, ApiError, OutputBudget, OutputLog, api_error
from sandboxes.types import HostSource, ImageSource, SnapshotSource


def access(**options: object) -> Access:
    given: dict[str, object] = {"host_image": False, "max_sandboxes": 10, **options}
    return Access(NullProvider(), {"Id": "run-1"}, **given)  # type: ignore[arg-type]


def test_importing_the_server_brings_no_web_framework_and_no_sdk() -> None:
    heavy = {"fastapi", "starlette", "uvicorn", "daytona", "websockets"}
    script = f"import sys, sandboxes.server; print(list({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_grant_does_not_show_its_key() -> None:
    grant = Grant(api_key="very secret", api_url="http://127.0.0.1:1/api")
    assert "very secret" not in repr(grant) + str(grant)


def test_keys_are_long_random_and_not_kept() -> None:
    table = AccessTable()
    mine = access()
    keys = {table.add(mine) for _ in range(100)}
    assert len(keys) == 100
    assert min(map(len, keys)) >= 43
    key = keys.pop()
    assert table.find(key) is mine
    assert key not in repr(vars(table))
    table.remove(key)
    assert table.find(key) is None
    assert table.find("ü\udcff") is None


def test_there_is_no_address_before_the_start() -> None:
    with pytest.raises(RuntimeError, match="before it is started"):
        _ = SandboxServer().url
    assert SandboxServer(public_url="https://x.example/api").url == "https://x.example/api"


def test_a_request_carries_what_was_asked_for_under_the_grants_labels() -> None:
    asked = CreateSandbox.model_validate(
        {
            "name": "n",
            "labels": {"a": "1", "Id": "forged"},
            "env": {"E": "v"},
            "cpu": 2,
            "memory": 4,
            "networkBlockAll": True,
            "autoStopInterval": 9,
            "buildInfo": {"dockerfileContent": "# made by the SDK\nFROM alpine:3\n"},
            "somethingNew": 1,
        }
    )
    request = create_request(access(), asked)
    assert request.labels == {"a": "1", "Id": "run-1"}
    assert request.env_vars == {"E": "v"}
    assert request.source == ImageSource(image="alpine:3")
    assert (request.effective_limits.cpus, request.effective_limits.memory_mb) == (2.0, 4096)
    assert request.effective_limits.disk_mb is None
    assert (request.network_policy, request.auto_stop_interval) == ("none", 9)
    assert create_request(access(host_image=True), asked).source == HostSource()


def test_sources() -> None:
    assert create_request(access(), CreateSandbox()).source == HostSource()
    assert create_request(access(), CreateSandbox(snapshot="s")).source == SnapshotSource(snapshot="s")
    for steps in ("FROM a\nRUN b", "RUN a", "", "FROM a AS b"):
        asked = CreateSandbox.model_validate({"buildInfo": {"dockerfileContent": steps}})
        with pytest.raises(ApiError, match="not built here"):
            create_request(access(), asked)


def test_providers_errors_get_their_status() -> None:
    assert api_error(SandboxNotFoundError("x")).status == 404
    assert api_error(SandboxFileNotFoundError("x")).status == 404
    full = api_error(SandboxCapacityError("x", retry_after=7.2))
    assert (full.status, full.headers["Retry-After"]) == (429, "7")


async def test_a_log_keeps_the_end_and_lets_others_follow() -> None:
    log = OutputLog(limit=1000)
    for n in range(20):
        log("stdout", f"{n:02} ")
    assert log.text().endswith("18 19 ")
    assert not log.text().startswith("00")
    following = asyncio.ensure_future(_all(log))
    await asyncio.sleep(0)
    log("stderr", "ü")
    log.close()
    assert (await following).endswith("19 ü")
    assert log.text("stderr") == "ü"


async def _all(log: OutputLog) -> str:
    return b"".join([data async for _, data in log.follow()]).decode()


async def test_a_follower_too_slow_goes_on_with_what_is_left() -> None:
    log = OutputLog(limit=1000)
    log("stdout", "first")
    following = log.follow()
    assert await anext(following) == ("stdout", b"first")
    for n in range(100):
        log("stdout", str(n))
    log.close()
    rest = [data.decode() async for _, data in following]
    assert rest[-1] == "99"
    assert len(rest) < 100


async def test_logs_share_a_budget_and_give_it_back() -> None:
    budget = OutputBudget(limit=10_000)
    logs = [OutputLog(budget=budget) for _ in range(5)]
    for log in logs:
        for _ in range(100):
            log("stdout", "x" * 100)
    assert budget.used <= 10_000
    for log in logs:
        log.clear()
    assert budget.used == 0


async def _one_by_one(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_a_form_is_read_in_pieces(size: int) -> None:
    path = 'a "b" \\ ü%20'
    head = part_head("x-y", "files[0].file", path, "text/plain")
    body = (
        head
        + b"one\r\n--x-z\r\n"
        + b"\r\n"
        + part_head("x-y", "second", "p", "text/plain")
        + b"\r\n--x-y--\r\n"
    )
    form = MultipartReader("multipart/form-data; boundary=x-y", _one_by_one(body, size))
    first = await form.next_part()
    assert first is not None
    assert (first.name, first.filename) == ("files[0].file", path)
    assert b"".join([piece async for piece in form.data()]) == b"one\r\n--x-z\r\n"
    second = await form.next_part()
    assert second is not None
    assert second.name == "second"
    assert await form.text() == ""
    assert await form.next_part() is None


def test_a_path_cannot_add_headers() -> None:
    head = part_head("b", "file", "x\r\nSet-Cookie: y\r\n\r\n", "text/plain")
    assert head.count(b"\r\n") == 4
    assert b"Set-Cookie" in head
