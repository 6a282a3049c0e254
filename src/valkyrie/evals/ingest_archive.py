"""Results that were sent: unpacked, read and stored, whoever packed them."""

from __future__ import annotations

import calendar
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark_runner.archive import OpenArchive, open_archive
from valkyrie.errors import UserError, ValkyrieError
from valkyrie.evals.ingesting import ingest_runs, read_runs
from valkyrie.tracker.bounds import check_text
from valkyrie.views import IngestedRun

if TYPE_CHECKING:
    from valkyrie.tracker.local import LocalTracker

PREFIX = "results-"
"""Folders below the one archives come in at."""
STALE_S = 24 * 3600.0
MOST_RECORDS = 256 * 1024 * 1024
"""Bytes of all files that are held in memory while they are stored; artifacts and logs are not."""
_HELD = ("results.jsonl", "run_config.json", "final_score.json", "eval.json")


def ingest_archive(
    opened: LocalTracker,
    archive: Path,
    *,
    label: str | None = None,
    dry_run: bool = False,
    replace: bool = False,
) -> list[IngestedRun]:
    """Store the results in an archive (a zip of one top folder) beside which there is room to unpack it."""
    check_text("label", label)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=PREFIX) as folder:
        root = Path(folder)
        with _as_sent(archive, root):
            with open_archive(archive) as found:
                found.extract(root, lambda *_: None)
                _set_times(found, root)
                _check_records(found, root)
            runs = [changed(run, sent_as=run.file.relative_to(root).as_posix()) for run in read_runs([root])]
            return ingest_runs(opened, runs, label=label, dry_run=dry_run, replace=replace)


def sweep_unpacked(incoming: Path) -> None:
    """Remove what servers that were killed had unpacked."""
    for folder in incoming.glob(f"{PREFIX}*"):
        if folder.stat().st_mtime < time.time() - STALE_S:
            shutil.rmtree(folder, ignore_errors=True)


def _set_times(found: OpenArchive, root: Path) -> None:
    """Files are as old as the archive says, and none is from the future."""
    now = time.time()
    for member in found.members:
        if not member.is_folder:
            when = min(float(calendar.timegm((*member.info.date_time, 0, 0, 0))), now)
            os.utime(root / member.name, (when, when))


def _check_records(found: OpenArchive, root: Path) -> None:
    """A small archive can hold a great deal: a server has other things to remember."""
    held = (root / one.name for one in found.members if one.name.rpartition("/")[2] in _HELD)
    size = sum(file.stat().st_size for file in held if file.is_file())
    if size > MOST_RECORDS:
        raise UserError(
            f"These results have {size >> 20} MiB besides artifacts and logs; {MOST_RECORDS >> 20} are taken "
            "at a time. Send fewer runs at once.",
            cause="too_large",
        )


@contextmanager
def _as_sent(archive: Path, root: Path) -> Iterator[None]:
    """Errors name files as they were sent: where they lie on this machine is its own affair."""
    try:
        yield
    except ValkyrieError as error:
        text = str(error).replace(f"{root}/", "").replace(str(root), "The archive")
        error.args = (text.replace(str(archive), "The archive"),)
        raise
