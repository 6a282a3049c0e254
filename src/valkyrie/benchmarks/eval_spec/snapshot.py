"""A workspace brought to a folder of the host, within limits: contents are hostile, and only ever read."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import SandboxFileNotFoundError
from sandboxes.openat import is_utf8
from sandboxes.protocol import Sandbox
from sandboxes.types import CopyLimits, CopyReport, OutputSink

LIMITS = CopyLimits(max_bytes=2 << 30, max_file_bytes=256 << 20, max_entries=200_000)
_LINK = "a link"
_TOO_LARGE = ("for a file", "over the limits")
_CUT_SHORT = ("not looked at", "left of")
MOST_TOLD = 10
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a workspace at one moment."""

    folder: Path
    """Read only: it may be the user's own `--work-dir`. Links are left behind, or not to be followed."""
    too_large: frozenset[str] = frozenset()
    """Files that were left behind for their size."""
    cut_short: bool = False
    """More than the limits allow was there: what is missing here may have been there."""
    untouched: bool = False
    """Nothing has been written since set-up."""


@dataclass(frozen=True, slots=True)
class Before:
    """What a workspace was when the agent got it."""

    folders: tuple[Path, ...]
    """Later ones lie over earlier ones."""
    too_large: frozenset[str] = frozenset()
    """Files that were there and are in none of the folders, for their size."""
    live_since: int | None = None
    """When set-up ended (ns), if the first folder is `--work-dir`: what changed there later, people or other
    trials changed, and not the agent."""
    not_looked_at: tuple[str, ...] = ()
    """Files and folders, relative to the workspace, that the agent was not shown."""


def files_in(
    folder: Path, *, but: frozenset[str] = frozenset(), unseen: Collection[str] = ()
) -> Iterator[tuple[str, Path]]:
    """Regular files below a folder, by their path in it; links are passed over, and so are names in `but`
    and paths in `unseen`."""
    waiting = [("", os.fspath(folder), 0)]
    while waiting:
        prefix, path, depth = waiting.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name in but or not is_utf8(entry.name) or prefix + entry.name in unseen:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if depth < MAX_DEPTH:
                        waiting.append((f"{prefix}{entry.name}/", entry.path, depth + 1))
                elif entry.is_file(follow_symlinks=False):
                    yield prefix + entry.name, Path(entry.path)


async def download(sandbox: Sandbox, path: str, into: Path, log: OutputSink) -> Snapshot:
    """Bring a folder of the sandbox out; one the agent removed, or put a link for, is an empty one.

    What is at `into` from an earlier time goes.
    """
    if into.exists():
        await asyncio.to_thread(shutil.rmtree, into)
    try:
        report = await sandbox.download_folder(path, into, LIMITS)
    except SandboxFileNotFoundError as error:
        log("stderr", f"{path} is taken for empty: {error}\n")
        into.mkdir(parents=True, exist_ok=True)
        return Snapshot(into)
    return _told(report, path, into, log)


def _told(report: CopyReport, path: str, into: Path, log: OutputSink) -> Snapshot:
    lost = [(name, why) for name, why in report.skipped if why != _LINK]
    for name, why in lost[:MOST_TOLD]:
        log("stderr", f"{path}/{name} is left behind: {why}\n")
    links = len(report.skipped) - len(lost)
    if links:
        log("stderr", f"{path}: {links}{'+' if report.skipped_count > 100 else ''} links are left behind\n")
    cut_short = any(mark in why for _, why in lost for mark in _CUT_SHORT)
    unlisted = report.skipped_count > len(report.skipped) and bool(lost)
    too_large = frozenset(name for name, why in lost if why.endswith(_TOO_LARGE))
    return Snapshot(into, too_large, cut_short or unlisted)
