"""Files through the real Daytona SDK."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from daytona import DaytonaError, DaytonaNotFoundError, FileDownloadRequest, FileUpload

from tests.integration.sandbox_serving import Serving, serving

BYTES = bytes(range(256)) * 40


@pytest.fixture(params=["process", "local"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(request.param, tmp_path / "state") as served:
        yield served


@pytest.fixture
async def sandbox(served: Serving) -> Any:
    return await served.sandbox()


@pytest.mark.parametrize("path", ["/app/plain", "/app/new folder/ü ö.bin", '/app/"quoted" & 100%20.bin'])
async def test_a_file_goes_in_and_comes_out(sandbox: Any, path: str) -> None:
    await sandbox.fs.upload_file(BYTES, path)
    assert await sandbox.fs.download_file(path) == BYTES
    await sandbox.fs.upload_file(b"", path)
    assert await sandbox.fs.download_file(path) == b""


async def test_relative_paths_begin_at_the_working_folder(sandbox: Any) -> None:
    await sandbox.fs.upload_file(b"here", "sub/file")
    assert (await sandbox.process.exec("cat sub/file")).result == "here"
    work = await sandbox.get_work_dir()
    assert await sandbox.fs.download_file(f"{work.rstrip('/')}/sub/file") == b"here"
    assert (await sandbox.get_user_home_dir()).startswith("/")


async def test_many_files_at_once(sandbox: Any, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(BYTES)
    uploads = [FileUpload(source=f"{n}".encode(), destination=f"/app/many/{n}") for n in range(50)]
    await sandbox.fs.upload_files([*uploads, FileUpload(str(tmp_path / "local"), "/app/many/local")])
    wanted = [FileDownloadRequest(source=f"/app/many/{n}") for n in (*range(50), "missing", "local")]
    results = await sandbox.fs.download_files(wanted)
    assert [r.result for r in results[:50]] == [f"{n}".encode() for n in range(50)]
    assert results[50].result is None
    assert results[50].error_details.status_code == 404
    assert results[51].result == BYTES


async def test_a_big_file_both_ways(sandbox: Any, tmp_path: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        for _ in range(48):
            file.write(os.urandom(1 << 20))
    await sandbox.fs.upload_file(str(big), "/app/big")
    await sandbox.fs.download_file("/app/big", str(tmp_path / "back"))
    assert _digest(tmp_path / "back") == _digest(big)
    streamed = hashlib.sha256()
    async for piece in await sandbox.fs.download_file_stream("/app/big"):
        streamed.update(piece)
    assert streamed.hexdigest() == _digest(big)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def test_a_stream_goes_in(sandbox: Any) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for n in range(100):
            yield f"{n}\n".encode() * 100

    await sandbox.fs.upload_file_stream(pieces(), "/app/streamed")
    assert (await sandbox.process.exec("wc -l < /app/streamed")).result.strip() == "10000"


async def test_what_is_not_there_is_not_found(sandbox: Any) -> None:
    for call in (
        sandbox.fs.download_file("/app/missing"),
        sandbox.fs.download_file("/app"),
        sandbox.fs.get_file_info("/app/missing"),
        sandbox.fs.list_files("/app/missing"),
        sandbox.fs.delete_file("/app/missing"),
        sandbox.fs.move_files("/app/missing", "/app/other"),
        sandbox.fs.search_files("/app/missing", "*"),
    ):
        with pytest.raises(DaytonaNotFoundError):
            await call


async def test_folders_are_listed(sandbox: Any) -> None:
    await sandbox.fs.upload_file(b"", "/app/sub/inner/deep")
    made = "ln -s /etc/passwd link; printf 12345 > 'a file\nwith a line'"
    assert (await sandbox.process.exec(made, cwd="/app")).exit_code == 0
    listed = {entry.path: entry for entry in await sandbox.fs.list_files("/app")}
    assert set(listed) == {"/app/a file\nwith a line", "/app/link", "/app/sub"}
    assert listed["/app/a file\nwith a line"].size == 5
    assert listed["/app/link"].mode.startswith("l")
    assert listed["/app/sub"].is_dir
    deeper = [entry.path for entry in await sandbox.fs.list_files("/app", depth=3)]
    assert "/app/sub/inner/deep" in deeper
    info = await sandbox.fs.get_file_info("/app/sub")
    assert (info.name, info.is_dir, info.permissions) == ("sub", True, "0755")


async def test_files_are_moved_changed_and_deleted(sandbox: Any) -> None:
    await sandbox.fs.create_folder("/app/made/deep", "0750")
    assert (await sandbox.fs.get_file_info("/app/made/deep")).permissions == "0750"
    await sandbox.fs.upload_file(b"#!/bin/sh\necho ran\n", "/app/made/run")
    await sandbox.fs.set_file_permissions("/app/made/run", mode="755")
    await sandbox.fs.move_files("/app/made/run", "/app/made/-moved")
    assert (await sandbox.process.exec("./-moved", cwd="/app/made")).result == "ran\n"
    await sandbox.fs.delete_file("/app/made/-moved")
    with pytest.raises(DaytonaError, match="recursive"):
        await sandbox.fs.delete_file("/app/made")
    await sandbox.fs.delete_file("/app/made", recursive=True)
    assert await sandbox.fs.list_files("/app") == []


async def test_files_are_searched(sandbox: Any) -> None:
    await sandbox.fs.upload_file(b"alpha\nbeta: x\n", "/app/one.txt")
    await sandbox.fs.upload_file(b"beta\n", "/app/sub/two.txt")
    await sandbox.fs.upload_file(b"beta", "/app/three.py")
    found = await sandbox.fs.search_files("/app", "*.txt")
    assert found.files == ["/app/one.txt", "/app/sub/two.txt"]
    lines = await sandbox.fs.find_files("/app", "beta")
    assert sorted((m.file, m.line, m.content) for m in lines) == [
        ("/app/one.txt", 2, "beta: x"),
        ("/app/sub/two.txt", 1, "beta"),
        ("/app/three.py", 1, "beta"),
    ]
    replaced = await sandbox.fs.replace_in_files(["/app/three.py", "/app/missing"], "beta", "gamma")
    assert [result.success for result in replaced] == [True, False]
    assert await sandbox.fs.download_file("/app/three.py") == b"gamma"


async def test_the_plain_routes_for_one_file(served: Serving) -> None:
    grant = served.grant()
    sandbox = await served.sandbox(await served.client(grant))
    files = f"{sandbox.toolbox_proxy_url}/{sandbox.id}/files"
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {grant.api_key}"}) as client:
        sent = await client.post(f"{files}/upload?path=/app/form", files={"file": ("name", b"by form")})
        assert sent.status_code == 200
        sent = await client.post(f"{files}/upload-v2?path=/app/raw", content=b"raw")
        assert sent.status_code == 200
        assert (await client.get(f"{files}/download?path=/app/form")).content == b"by form"
        assert (await client.get(f"{files}/download?path=/app/raw")).content == b"raw"
        missing = await client.get(f"{files}/download?path=/app/none")
        assert (missing.status_code, missing.json()["statusCode"]) == (404, 404)
