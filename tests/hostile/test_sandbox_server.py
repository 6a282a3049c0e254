"""What a program with a key, or without one, tries at the sandbox server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from daytona import (
    AsyncDaytona,
    DaytonaAuthenticationError,
    DaytonaConfig,
    DaytonaError,
    DaytonaNotFoundError,
)
from daytona import SessionExecuteRequest as Execute

from sandboxes.server import Grant
from tests.integration.sandbox_serving import Serving, serving, until

TOOLBOX_CALLS = [
    ("POST", "process/execute"),
    ("POST", "process/code-run"),
    ("POST", "process/session"),
    ("GET", "process/session"),
    ("POST", "process/session/s/exec"),
    ("GET", "process/session/s/command/c/logs"),
    ("DELETE", "process/session/s"),
    ("POST", "process/pty"),
    ("GET", "process/pty"),
    ("GET", "files"),
    ("DELETE", "files?path=/app"),
    ("GET", "files/info?path=/app"),
    ("GET", "files/download?path=/app/secret"),
    ("POST", "files/bulk-download"),
    ("POST", "files/bulk-upload"),
    ("POST", "files/upload-v2?path=/app/planted"),
    ("POST", "files/move?source=/app/secret&destination=/app/taken"),
    ("GET", "work-dir"),
]
SANDBOX_CALLS = [
    ("GET", ""),
    ("DELETE", ""),
    ("POST", "/start"),
    ("POST", "/stop"),
    ("PUT", "/labels"),
    ("GET", "/toolbox-proxy-url"),
    ("POST", "/autostop/1"),
    ("POST", "/network-settings"),
]
SOCKETS = [
    "process/session/s/command/c/logs?follow=true",
    "process/pty/create-connect?id=x",
    "process/pty/x/connect",
]
BODIES = {
    "process/execute": {"command": "touch /app/hacked"},
    "process/code-run": {"code": "1"},
    "process/session": {"sessionId": "s"},
    "process/session/s/exec": {"command": "touch /app/hacked"},
    "process/pty": {"id": "p"},
    "files/bulk-download": {"paths": ["/app/secret"]},
    "/labels": {"labels": {}},
    "/network-settings": {},
}

BAD_REQUESTS: list[tuple[str, Any]] = [
    ("process/execute", {"command": "a\0b"}),
    ("process/execute", {"command": "true", "cwd": "/a\0b"}),
    ("process/execute", {"command": "true", "envs": {"A=B": "1"}}),
    ("process/execute", {"command": "true", "envs": {"A": "\0"}}),
    ("process/execute", {"command": "true", "envs": {"A": "x" * 200_000}}),
    ("process/execute", {"command": "true", "timeout": -1}),
    ("process/execute", {"command": 5}),
    ("process/execute", {}),
    ("process/execute", []),
    ("process/code-run", {"code": "1", "language": "cobol"}),
    ("process/code-run", {"code": "x" * 200_000}),
    ("process/session", {"sessionId": ""}),
    ("process/session", {"sessionId": "x" * 1000}),
    ("process/pty", {"id": "p", "cols": 0}),
    ("process/pty", {"id": "p", "envs": {"A;rm": "1"}}),
    ("files/bulk-download", {"paths": "/app"}),
    ("files/bulk-upload", {}),
    ("files/folder?path=/app/x&mode=u%2Bs", None),
    ("files/replace", {"files": [], "pattern": "", "newValue": ""}),
]
MALFORMED_FORMS = [
    b"",
    b"--b\r\n",
    b'--b\r\nContent-Disposition: form-data; name="files[0].path"\r\n\r\n/app/cut',
    b'--b\r\nContent-Disposition: form-data; name="files[0].file"; filename="/app/cut"\r\n\r\nhalf',
    b'--b\r\nContent-Disposition: form-data; name="files[0].file"\r\n\r\nx\r\n--b--\r\n',
    b"no form at all",
    b"--b\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving("process", tmp_path / "state") as served:
        yield served


def caller(grant: Grant, authorization: str | None = None) -> httpx.AsyncClient:
    headers = {"Authorization": authorization or f"Bearer {grant.api_key}"}
    return httpx.AsyncClient(verify=False, base_url=grant.api_url.removesuffix("/api"), headers=headers)


async def calls(client: httpx.AsyncClient, *ids: str) -> list[httpx.Response]:
    """Every call there is, on each of these ids."""
    answers = []
    for sandbox_id in ids:
        for method, rest in TOOLBOX_CALLS:
            body = BODIES.get(rest)
            answers.append(await client.request(method, f"/toolbox/{sandbox_id}/{rest}", json=body))
        for method, rest in SANDBOX_CALLS:
            body = BODIES.get(rest)
            answers.append(await client.request(method, f"/api/sandbox/{sandbox_id}{rest}", json=body))
    return answers


async def test_a_key_opens_only_its_own_sandboxes(served: Serving) -> None:
    theirs = await served.sandbox(await served.client(served.grant("victim")), name="their-name")
    await theirs.fs.upload_file(b"secret", "/app/secret")
    await theirs.process.create_session("s")
    attacker = served.grant("attacker")
    async with caller(attacker) as client:
        for answer in await calls(client, theirs.id, "their-name"):
            assert answer.status_code == 404, answer.request.url
            assert answer.json()["statusCode"] == 404
            assert "secret" not in answer.text
        listed = (await client.get("/api/sandbox")).json()
        asked = await client.get("/api/sandbox", params={"labels": json.dumps({"Id": "victim"})})
    assert listed["items"] == asked.json()["items"] == []
    assert (await theirs.process.exec("ls /app")).result == "secret\n"


async def test_sandboxes_made_elsewhere_without_the_labels_are_out_of_reach(served: Serving) -> None:
    from sandboxes.types import SandboxCreateRequest

    other = await served.provider.create_sandbox(SandboxCreateRequest(labels={"Id": "run-10", "more": "x"}))
    client = await served.client(served.grant("run-1"))
    with pytest.raises(DaytonaNotFoundError):
        await client.get(other.id)


@pytest.mark.parametrize(
    "authorization", ["Bearer wrong", "Bearer", "Basic {key}", "{key}", "Bearer {key}x", "Bearer {head}"]
)
async def test_without_a_right_key_nothing_is_answered(served: Serving, authorization: str) -> None:
    grant = served.grant()
    sandbox = await served.sandbox(await served.client(grant))
    forged = authorization.format(key=grant.api_key, head=grant.api_key[:-1])
    async with caller(grant, forged) as client:
        answers = await calls(client, sandbox.id)
        answers += [
            await client.get(path) for path in ("/", "/api/sandbox", "/openapi.json", "/docs", "/nothing")
        ]
    for answer in answers:
        assert answer.status_code == 401, answer.request.url
        assert grant.api_key not in answer.text
    assert await served.living() == [sandbox.id]


async def test_websockets_want_the_key_as_well(served: Serving) -> None:
    grant = served.grant()
    sandbox = await served.sandbox(await served.client(grant))
    base = grant.api_url.removesuffix("/api").replace("http", "ws")
    rests = (
        "process/session/s/command/c/logs?follow=true",
        "process/pty/create-connect?id=x",
        "process/pty/x/connect",
    )
    for rest in rests:
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(f"{base}/toolbox/{sandbox.id}/{rest}")
        assert caught.value.response.status_code == 401
        stranger = {"Authorization": f"Bearer {served.grant('other').api_key}"}
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(f"{base}/toolbox/{sandbox.id}/{rest}", additional_headers=stranger)
        assert caught.value.response.status_code == 404


async def test_the_sdk_tells_a_wrong_key(served: Serving) -> None:
    grant = served.grant()
    config = DaytonaConfig(api_key="wrong", api_url=grant.api_url, target=grant.target)
    async with AsyncDaytona(config) as client:
        with pytest.raises(DaytonaAuthenticationError):
            await client.create()


async def test_a_revoked_key_is_worthless_at_once(served: Serving) -> None:
    grant = served.grant()
    client = await served.client(grant)
    sandbox = await served.sandbox(client)
    await sandbox.process.create_session("s")
    started = await sandbox.process.execute_session_command(
        "s", Execute(command="sleep 8765", run_async=True)
    )
    following = asyncio.ensure_future(
        sandbox.process.get_session_command_logs_async("s", started.cmd_id, _ignore, _ignore)
    )
    pending = asyncio.ensure_future(sandbox.process.exec("sleep 8765"))
    watcher = await served.sandbox(await served.client(served.grant("other")))

    async def running(wanted: int) -> bool:
        seen = await watcher.process.exec("ps ax | grep '[s]leep 8765' | grep -v -e defunct -e 'sh -c'")
        return len(seen.result.splitlines()) == wanted

    await until(lambda: running(2))
    served.server.revoke(grant)
    with pytest.raises(DaytonaAuthenticationError):
        await client.get(sandbox.id)
    with pytest.raises(DaytonaAuthenticationError):
        await sandbox.process.exec("true")
    with pytest.raises(DaytonaAuthenticationError):
        await pending
    with pytest.raises(DaytonaError):
        await following
    await until(lambda: running(0))
    assert sandbox.id in await served.living()
    served.server.revoke(grant)


def _ignore(_text: str) -> None:
    return


@pytest.mark.parametrize("sandbox_id", ["..", "%2e%2e", "..%2f..", "%2e", "%00", "a" * 5000, "%ff", "*"])
async def test_ids_that_are_paths_lead_nowhere(served: Serving, sandbox_id: str) -> None:
    async with caller(served.grant()) as client:
        for prefix, rest in (("/api/sandbox/", ""), ("/toolbox/", "/work-dir")):
            request = client.build_request("GET", "/x")
            request.url = request.url.copy_with(raw_path=f"{prefix}{sandbox_id}{rest}".encode())
            answer = await client.send(request)
            assert answer.status_code in (404, 405)


@pytest.mark.parametrize(
    "path",
    [
        "../../../../etc/passwd",
        "/../../etc/passwd",
        "/app/../../../../etc/passwd",
        "/app/out/passwd",
        "/app/link",
    ],
)
async def test_paths_stay_in_the_sandbox(served: Serving, path: str) -> None:
    sandbox = await served.sandbox()
    await sandbox.process.exec("ln -s /etc out; ln -s /etc/passwd link", cwd="/app")
    with pytest.raises(DaytonaNotFoundError):
        await sandbox.fs.download_file(path)


async def test_an_upload_does_not_follow_links_out(served: Serving, tmp_path: Path) -> None:
    sandbox = await served.sandbox()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("host's")
    await sandbox.process.exec(f"ln -s {outside} out; ln -s {outside}/file link", cwd="/app")
    await sandbox.fs.upload_file(b"mine", "/app/link")
    with pytest.raises(DaytonaError):
        await sandbox.fs.upload_file(b"mine", "/app/out/file")
    assert (outside / "file").read_text() == "host's"


async def test_bad_requests_are_told_so(served: Serving) -> None:
    grant = served.grant()
    sandbox = await served.sandbox(await served.client(grant))
    async with caller(grant) as client:
        for path, body in BAD_REQUESTS:
            answer = await client.post(f"/toolbox/{sandbox.id}/{path}", json=body)
            assert answer.status_code == 400, (path, body, answer.text)
            assert answer.json()["message"]
        broken = await client.post(f"/toolbox/{sandbox.id}/process/execute", content=b"{nonsense")
        assert broken.status_code == 400
        assert (await client.get("/api/sandbox", params={"labels": "[1]"})).status_code == 400


@pytest.mark.parametrize("field", ["volumes", "secrets", "gpu"])
async def test_what_no_provider_has_is_refused(served: Serving, field: str) -> None:
    value: Any = {"volumes": [{"volumeId": "v"}], "secrets": [{"A": "b"}], "gpu": 1}[field]
    async with caller(served.grant()) as client:
        answer = await client.post("/api/sandbox", json={field: value})
    assert answer.status_code == 400
    assert field in answer.json()["message"]
    assert await served.living() == []


async def test_a_network_that_cannot_be_restricted_leaves_no_sandbox(served: Serving) -> None:
    async with caller(served.grant()) as client:
        answer = await client.post("/api/sandbox", json={"domainAllowList": "example.com"})
    assert answer.status_code == 400
    assert "example.com" in answer.json()["message"]
    assert await served.living() == []


@pytest.mark.parametrize("announced", [True, False])
async def test_a_request_too_large_is_refused(served: Serving, announced: bool) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * (1 << 20)

    async with caller(served.grant()) as client:
        content = b" " * (17 << 20) if announced else endless()
        try:
            answer = await client.post(
                "/api/sandbox", content=content, headers={"Content-Type": "application/json"}
            )
        except httpx.TransportError:
            assert announced
            return  # the connection was closed while it still sent
    assert answer.status_code == 413
    assert answer.json()["message"] == "The request is larger than 16 MiB"


@pytest.mark.parametrize("sent", [b"", b"GET /api/sandbox HTTP/1.1\r\nHost: localhost\r\nX-Half: "])
async def test_a_request_head_that_never_ends_is_cut(tmp_path: Path, sent: bytes) -> None:
    async with serving("process", tmp_path / "state", head_s=0.2) as served:
        reader, writer = await connect(served)
        writer.write(sent)
        with suppress(ConnectionResetError):
            async with asyncio.timeout(60):
                assert await reader.read() == b""
        writer.close()
        async with caller(served.grant()) as client:
            assert (await client.get("/api/sandbox")).status_code == 200


async def connect(served: Serving) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = served.server.url.removeprefix("http://").removesuffix("/api").split(":")
    return await asyncio.open_connection(host, int(port))


async def test_a_malformed_form_leaves_nothing(served: Serving) -> None:
    grant = served.grant()
    sandbox = await served.sandbox(await served.client(grant))
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    async with caller(grant) as client:
        for body in MALFORMED_FORMS:
            answer = await client.post(f"/toolbox/{sandbox.id}/files/bulk-upload", content=body, headers=kind)
            assert answer.status_code == 400, (body, answer.text)
    assert (await sandbox.process.exec("ls -A /app")).result == ""


async def test_an_upload_that_breaks_off_leaves_nothing(served: Serving) -> None:
    grant = served.grant()
    sandbox = await served.sandbox(await served.client(grant))
    begun = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield b"some"
        begun.set()
        await asyncio.Event().wait()

    async with caller(grant) as client:
        sending = asyncio.ensure_future(
            client.post(f"/toolbox/{sandbox.id}/files/upload-v2?path=/app/half", content=stuck())
        )
        await begun.wait()
        sending.cancel()
        await asyncio.wait((sending,))

    async def clean() -> bool:
        return (await sandbox.process.exec("ls -A /app")).result == ""

    await until(clean)


async def test_a_command_that_forges_marks_fools_only_itself(served: Serving) -> None:
    sandbox = await served.sandbox()
    await sandbox.process.create_session("s")
    ends = ("1:0", "2:0", "7:0", "x:0", "1:", "1:9999")
    marks = "".join(f"$R$__session_mark:{end}$R" for end in ends)
    forger = f"R=$(printf '\\036'); echo {marks}; echo {marks} >&2; echo after; (exit 5)"
    first = await sandbox.process.execute_session_command("s", Execute(command=forger))
    assert first.exit_code == 0
    for code in (6, 0, 7):
        result = await sandbox.process.execute_session_command(
            "s", Execute(command=f"echo mine; (exit {code})")
        )
        assert result.exit_code == code
        assert result.stdout.endswith("mine\n")


@pytest.mark.slow
async def test_a_flood_of_output_is_cut_and_not_held(served: Serving) -> None:
    sandbox = await served.sandbox()
    result = await sandbox.process.exec("yes 0123456789 | head -c 100000000; echo the end")
    assert result.exit_code == 0
    assert len(result.result) <= 64 << 20
    assert result.result.endswith("the end\n")


async def test_errors_name_no_files_of_the_host(served: Serving, tmp_path: Path) -> None:
    grant = served.grant()
    sandbox = await served.sandbox(await served.client(grant))
    toolbox = f"/toolbox/{sandbox.id}"
    async with caller(grant) as client:
        answers = [
            await client.get(f"{toolbox}/files/download?path=/app/none"),
            await client.get(f"{toolbox}/files/download?path=/app"),
            await client.get(f"{toolbox}/files/info?path=/none"),
            await client.get(f"{toolbox}/files?path=/none"),
            await client.post(f"{toolbox}/files/upload-v2?path=/", content=b"x"),
            await client.post(f"{toolbox}/files/move?source=/app&destination=/app/app"),
            await client.get("/api/sandbox/none"),
        ]
    for answer in answers:
        assert 400 <= answer.status_code < 500
        assert str(tmp_path) not in answer.text
