"""Verbs about the library of an organisation: agents, secrets, benchmarks, uploads, and its disk."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from valkyrie.artifact_store.protocol import run_prefix
from valkyrie.benchmarks.catalog import known_benchmarks
from valkyrie.domain import Json
from valkyrie.errors import UnknownError, UsageError, UserError, ValkyrieError
from valkyrie.store import runs
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.app import CallerContext
from valkyrie.views import AgentView, BenchmarkView, DiskView, SecretView, TasksRequest, TasksView

_DIGEST = re.compile(r"[0-9a-f]{64}")
UPLOADS_KEPT_S = 7 * 86_400.0
MOST_UPLOADED = 20 << 30
"""Bytes of uploads an organisation may have at a time."""


class LibraryVerbs:
    """Agents, secrets, benchmarks and uploads of the caller's organisation, and the disk they are on."""

    def __init__(self, context: CallerContext) -> None:
        self._context = context

    def agents(self) -> Sequence[AgentView]:
        library = self._context.organisation.library()
        return [library.view(agent) for agent in library.list()]

    def push_agent(self, folder: Path, name: str | None = None, *, origin: str | None = None) -> AgentView:
        library = self._context.organisation.library()
        return library.view(library.push(folder, name, origin=origin, person=self._context.identity.person))

    def push_archive(self, file: Path, name: str, origin: str | None = None) -> AgentView:
        """Take an agent in that came as an archive."""
        library = self._context.organisation.library()
        return library.view(library.push_archive(file, name, origin, self._context.identity.person))

    def agent_archive(self, name: str) -> tuple[int | None, Iterator[bytes]]:
        """A pushed agent's archive: its size, if that is known, and its bytes."""
        return self._context.organisation.library().archive(name)

    def remove_agent(self, name: str) -> None:
        self._context.organisation.library().remove(name)

    def download_agent(self, name: str, output_dir: Path) -> Path:
        return self._context.organisation.library().download(name, output_dir)

    def secrets(self) -> Sequence[SecretView]:
        return self._context.organisation.secrets()

    def set_secret(self, name: str, value: str) -> None:
        self._context.organisation.set_secret(name, value)

    def remove_secret(self, name: str) -> None:
        self._context.organisation.remove_secret(name)

    def benchmarks(self) -> Sequence[BenchmarkView]:
        return known_benchmarks()

    def benchmark_tasks(self, request: TasksRequest) -> TasksView:
        benchmark = self._context.open_benchmark(request)

        async def ask() -> TasksView:
            try:
                return TasksView(await benchmark.list_tasks(request.dataset), await benchmark.datasets())
            finally:
                await benchmark.close()

        return asyncio.run(ask())

    # What comes with requests

    def has_upload(self, digest: str) -> bool:
        """Return whether this was sent before; it stays a while longer, because someone means to use it."""
        file = self._upload_file(digest)
        with contextlib.suppress(FileNotFoundError):
            os.utime(file)
        return file.is_file()

    def upload(self, digest: str, file: Path) -> None:
        """Keep an archive a request will name; `file` is moved away. Its bytes must be what `digest` says."""
        target = self._upload_file(digest)
        with file.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != digest:
                raise UsageError("what was sent is not what its digest says; send it again.")
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_room(target.parent, file.stat().st_size)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            part = Path(folder) / "part"
            try:
                file.rename(part)
            except OSError:
                shutil.copyfile(file, part)
            part.replace(target)

    def _upload_file(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise UnknownError(f"{digest[:80]!r} is no sha256 digest.")
        return self._context.organisation.uploads() / f"{digest}.zip"

    # The machine

    def disk(self) -> DiskView:
        self._context.data.make()
        wanted = runs.RunQuery({"org_id": self._context.identity.org_id}, limit=100_000)
        with self._context.store.reading() as connection:
            rows = runs.page(connection, wanted)[0]
        view = _disk_view(self._context.data, {row.id: row.state for row in rows})
        elsewhere = self._elsewhere(
            {row.id: row.place for row in rows if row.place and row.place.get("artifacts")}
        )
        if self._context.sees_machine:
            return replace(view, reclaimable_bytes=self._context.store.reclaimable(), elsewhere=elsewhere)
        size = sum(one for _, _, one in view.runs)
        return DiskView("", size, 0, [("runs", size)], view.runs, elsewhere=elsewhere)

    def _elsewhere(self, places: Mapping[str, Json]) -> list[tuple[str, int]]:
        """Return how much of these runs is kept in each shared folder or bucket."""
        found: dict[str, int] = {}
        away: set[str] = set()
        for run_id, place in places.items():
            prefix = run_prefix(run_id)
            kept = json.dumps(place["artifacts"], sort_keys=True)
            if kept in away or (store := self._context.organisation.artifacts(place["artifacts"])) is None:
                continue
            where = store.url(f"{prefix}x").removesuffix(f"{prefix}x")
            try:
                found[where] = found.get(where, 0) + sum(one.size for one in store.list(prefix))
            except ValkyrieError:  # what is here is worth showing all the same
                away.add(kept)
                found[f"{where} (cannot be reached)"] = 0
        return sorted(found.items(), key=lambda item: -item[1])


def _make_room(folder: Path, size: int) -> None:
    """Forget uploads nobody has used for long; refuse one for which there is no room then."""
    used, oldest = 0, time.time() - UPLOADS_KEPT_S
    for file in folder.glob("*.zip"):
        with contextlib.suppress(FileNotFoundError):
            found = file.stat()
            if found.st_mtime < oldest:
                file.unlink()
            else:
                used += found.st_size
    if used + size > MOST_UPLOADED:
        raise UserError(
            f"There is no room for the upload: {used >> 20} MiB of {MOST_UPLOADED >> 20} MiB are in use. "
            "What was not used for a week goes by itself; push agents instead of sending them with each run."
        )


def _folder_size(folder: Path) -> int:
    return sum(_size(Path(parent, name)) for parent, _, names in os.walk(folder) for name in names)


def _total_size(files: Iterable[Path]) -> int:
    return sum(map(_size, files))


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except FileNotFoundError:
        return 0  # moved or removed while we look: an executor may be at work


def _disk_view(data: DataFolder, states: Mapping[str, str]) -> DiskView:
    """Return where the bytes of a data folder are; `states` are its runs'."""
    sizes = sorted(
        ((run_id, state, _folder_size(data.run(run_id).root)) for run_id, state in states.items()),
        key=lambda item: -item[2],
    )
    parts = [
        ("database", _total_size(data.root.glob("valkyrie.db*"))),
        ("runs", sum(size for _, _, size in sizes)),
        ("agents", _folder_size(data.agents)),
        ("cache", _folder_size(data.cache)),
    ]
    return DiskView(
        data_folder=str(data.root),
        total_bytes=sum(size for _, size in parts),
        free_bytes=shutil.disk_usage(data.root).free,
        parts=parts,
        runs=sizes,
    )
