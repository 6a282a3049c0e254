"""A finished run brought to a tracker, where it shows beside other runs."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
import time
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark_service.client_http import checked_url, decode_json
from benchmark_service.http_client import HttpClient, HttpConnectionError, Incoming, shown_url
from sandboxes.retry import Backoff, Retries, parse_retry_after

if TYPE_CHECKING:
    from benchmark_runner.artifacts import RunArtifacts

KEY = "VALKYRIE_API_KEY"
TIMEOUT_S = 300.0
"""The tracker stores everything before it answers."""
BACKOFF = Backoff(first_s=0.5, longest_s=10.0, jitter=1.0, attempts=4, cap_asked_s=10.0)
PIECE = 1 << 18
_BUSY = frozenset({429, 502, 503, 504})
_LARGEST_ANSWER = 1 << 20
_TOP = "ingest"
_FILES = ("generation.json", "eval.json")


class ReportError(Exception):
    """The run could not be brought to the tracker; its own files are as they were."""


async def report_run(url: str, artifacts: RunArtifacts) -> str:
    """Send a run to the tracker at `url`; its id there. The key is read from VALKYRIE_API_KEY.

    A run that was sent before and has gone on since takes the place of what it was; sending it again changes
    nothing.
    """
    base = checked_tracker(url)
    with tempfile.TemporaryDirectory(prefix="benchmark-runner-") as folder:
        archive = Path(folder) / "run.zip"
        await asyncio.to_thread(_pack, artifacts, archive)
        answer = await _sent(base, archive)
    match answer:
        case [{"run_id": str(run_id)}]:
            return run_id
    raise ReportError(f"{base} did not answer with a run; is it a tracker?")


def checked_tracker(url: str) -> str:
    """A tracker's address; ReportError for what is none."""
    try:
        base = checked_url(url.strip())
    except ValueError:
        raise ReportError(
            f"a tracker's address looks like https://host:port, not {shown_url(url)!r}"
        ) from None
    if "@" in base.partition("://")[2].partition("/")[0]:
        raise ReportError(f"a tracker's address holds no user or password; set {KEY} instead")
    return base


def _pack(artifacts: RunArtifacts, target: Path) -> None:
    """The run's own files; links, and what else lies in the folder, stay behind."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in _files(artifacts):
            name = f"{_TOP}/{artifacts.run_id}/{file.relative_to(artifacts.root).as_posix()}"
            _add(archive, name, file)


def _files(artifacts: RunArtifacts) -> Iterator[Path]:
    """Told from all that lies there by name: a run's folder is its owner's, who may keep more in it."""
    config = artifacts.read_config()
    if config is None:
        raise ReportError(f"{artifacts.config_path} does not exist")
    yield artifacts.config_path
    yield artifacts.score_path
    for task_id in config.tasks:
        folder = artifacts.task_dir(task_id)
        if folder.is_symlink():
            continue
        yield from (folder / name for name in _FILES)
        logs = artifacts.log_dir(task_id)
        if not logs.is_symlink():
            for parent, _folders, names in os.walk(logs):
                yield from (Path(parent, name) for name in sorted(names) if name.isprintable())


def _add(archive: zipfile.ZipFile, name: str, file: Path) -> None:
    """A plain file with its time in UTC: the tracker dates trials by it."""
    try:
        status = file.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        return
    when = time.gmtime(max(status.st_mtime, 315532800.0))
    entry = zipfile.ZipInfo(name, when[:6])
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    with file.open("rb") as source, archive.open(entry, "w") as sink:
        while piece := source.read(PIECE):
            sink.write(piece)


async def _sent(base: str, archive: Path) -> Any:
    """The tracker's answer. Sending twice stores once, so what fails on the way is sent again."""
    key = os.environ.get(KEY, "").strip()
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ReportError(f"{KEY} has characters no key has; copy it again")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    http = HttpClient(headers, connect_s=5.0, read_s=TIMEOUT_S)
    retries = Retries(BACKOFF)
    try:
        while True:
            try:
                async with http.request("PUT", *_request(base, archive)) as incoming:
                    content = await _read(incoming)
                asked = parse_retry_after(incoming.headers.get("retry-after"))
                delay = retries.next_delay(asked) if incoming.status in _BUSY else None
                if delay is None:
                    return _answer(base, incoming.status, content)
            except HttpConnectionError as error:
                delay = retries.next_delay()
                if delay is None:
                    raise ReportError(f"cannot reach the tracker at {base}: {error}") from None
            await BACKOFF.sleep(delay)
    finally:
        await http.close()


def _request(base: str, archive: Path) -> tuple[str, dict[str, str], AsyncIterator[bytes]]:
    headers = {"Content-Type": "application/zip", "Content-Length": str(archive.stat().st_size)}
    return f"{base}/v1/ingest?replace=true", headers, _pieces(archive)


async def _pieces(archive: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(archive.open, "rb") as opened:
        while piece := await asyncio.to_thread(opened.read, PIECE):
            yield piece


async def _read(incoming: Incoming) -> bytes:
    content = b""
    async for piece in incoming.pieces:
        content += piece
        if len(content) > _LARGEST_ANSWER:
            break
    return content


def _answer(base: str, status: int, content: bytes) -> Any:
    try:
        answer = decode_json(content)
    except ValueError:
        answer = None
    if status == 200:
        return answer
    if status == 401:
        raise ReportError(f"the tracker at {base} does not know this key; set {KEY}")
    match answer:
        case {"error": {"message": str(said)}}:
            raise ReportError(f"the tracker at {base} refused it: {said[:2000]}")
    raise ReportError(f"{base} answered {status}; is it a tracker?")
