"""Folders and archives on their way to a tracker: packed, known by their digest, sent once."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from valkyrie.client.connection import Call, Connection, path
from valkyrie.client.faults import TrackerUnreachableError
from valkyrie.errors import UsageError

Pack = Callable[[Path], object]
LARGE = 1 << 20


@asynccontextmanager
async def packed(pack: Pack) -> AsyncIterator[Path]:
    """An archive made by `pack`, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as folder:
        archive = Path(folder) / "archive.zip"
        await asyncio.to_thread(pack, archive)
        yield archive


async def upload(connection: Connection, archive: Path) -> str:
    """Send an archive unless the tracker has it; how a request names it."""
    digest = await asyncio.to_thread(_sha256, archive)
    where = path("uploads", digest)
    if not await connection.exists(where):
        await put(connection, Call("PUT", where, file=archive))
    return f"upload:{digest}"


async def put(connection: Connection, call: Call) -> Any:
    """Send a file. A tracker that takes no more of it hangs up, and its refusal may be lost with the rest."""
    try:
        return await connection.ask(call)
    except TrackerUnreachableError as error:
        size = call.file.stat().st_size if call.file and error.sent else 0
        if size < LARGE:
            raise
        raise TrackerUnreachableError(
            f"{error} It may also be that {size:,} bytes are more than it takes (its VALKYRIE_UPLOAD_LIMIT).",
            sent=True,
        ) from None


async def upload_agent(connection: Connection, source: Path) -> str:
    """Send an agent's folder or zip; its contract is checked first, here."""
    from benchmark_runner.agent_bundle.bundle import pack, read_contract
    from benchmark_runner.agent_bundle.contract import load_contract

    if source.suffix == ".zip" and source.is_file():
        file, text = await asyncio.to_thread(read_contract, source)
        load_contract(text, where=f"{source}/{file}")
        return await upload(connection, source)
    if not source.is_dir():
        raise UsageError(
            f"{source} is no folder. An agent is a folder with a contract.yaml (`valk agent init NAME`)."
        )
    contract = await asyncio.to_thread(load_contract, source)
    async with packed(lambda target: pack(source, contract.name, target)) as archive:
        return await upload(connection, archive)


async def upload_benchmark(connection: Connection, source: Path) -> str:
    """Send a folder of tasks, or a zip of one."""
    from valkyrie.benchmarks.bundle import pack_benchmark

    if source.suffix == ".zip" and source.is_file():
        return await upload(connection, source)
    if not source.is_dir():
        raise UsageError(f"no folder {source}; --benchmark takes a name, or the path of a folder of tasks")
    async with packed(lambda target: pack_benchmark(source, target)) as archive:
        return await upload(connection, archive)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
