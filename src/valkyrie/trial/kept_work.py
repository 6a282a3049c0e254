"""The packed work of a run's agents, kept so that it can be graded again without running them.

Each archive is kept once per run, under its digest: `<run folder>/work/<digest>.tar`, and in an artifact
store under `benchmarks/<run>/.work/<digest>.tar`. The attempt's own folder has `work.json`, which names the
digest. An archive that is too large, or that holds a secret value, is not kept; `keep` says why.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.masker import Masker
from valkyrie import config
from valkyrie.keeping.keys import run_prefix
from valkyrie.nouns import Json
from valkyrie.store.layout import RunFolder
from valkyrie.trial.away import Away

WORK = "work.tar"
"""The file of an attempt's draft the work is packed into."""
RECORD = "work.json"
"""The file of an attempt that says what was packed: `digest`, `removed`, `left`, `kept` and so on."""
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """How many bytes of work are kept."""

    trial: int = 256 << 20
    run: int = 10 << 30

    @classmethod
    def configured(cls) -> KeepLimits:
        """Return the limits of `work_max_mb` and `work_run_max_mb`."""
        trial, run = (config.effective(name).value for name in ("work_max_mb", "work_run_max_mb"))
        return cls(int(trial or 0) << 20, int(run or 0) << 20)


@dataclass(slots=True)
class KeptWork:
    """The archives of one run."""

    folder: RunFolder
    limits: KeepLimits = field(default_factory=KeepLimits)
    _total: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def path(self, digest: str) -> Path:
        """Return where the archive of that digest is, or would be, on this machine."""
        return self.folder.root / "work" / f"{digest}.tar"

    def keep(self, archive: Path, digest: str, masker: Masker | None = None) -> str | None:
        """Keep an archive; return why it is not kept, or None. Blocks; callable from any thread.

        The archive itself stays where it is: the kept file is a second name of it where possible.
        """
        size, place = archive.stat().st_size, self.path(digest)
        if size > self.limits.trial:
            return f"it has {_mb(size)}, and work_max_mb is {_mb(self.limits.trial)}"
        if masker is not None and masker.finds_in(archive):
            return "it holds the value of a secret"
        with self._lock:
            if place.exists():
                return None
            total = self._measure()
            if total + size > self.limits.run:
                return f"the run keeps {_mb(total)} already, and work_run_max_mb is {_mb(self.limits.run)}"
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _link(archive, place)
            self._total = total + size
        return None

    def _measure(self) -> int:
        if self._total is None:
            self._total = sum(path.stat().st_size for path in self.path("").parent.glob("*.tar"))
        return self._total


async def share(kept: KeptWork, away: Away, run_id: str, digest: str) -> None:
    """Put a kept archive into the run's artifact store, if there is one and it has none of that digest."""
    await away.put_once(work_key(run_id, digest), kept.path(digest))


async def fetch(kept: KeptWork, away: Away, run_id: str, digest: str) -> Path | None:
    """Return the archive of that digest, brought from the artifact store if need be; None if it is gone."""
    path = kept.path(digest)
    await away.get(work_key(run_id, digest), path)
    return path if path.exists() else None


def digest_of(archive: Path) -> str:
    """Return the digest an archive is kept under."""
    digest = hashlib.sha256()
    with archive.open("rb") as source:
        while piece := source.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def write_record(folder: Path, record: Json) -> None:
    """Write what was packed into an attempt's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")


def read_record(folder: Path) -> Json | None:
    """Return what was packed in an attempt, or None if nothing was."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def work_key(run_id: str, digest: str) -> str:
    """Return the key an archive has in the run's artifact store."""
    # No task's folder begins with a dot (`layout.encode_task_id`).
    return f"{run_prefix(run_id)}.work/{digest}.tar"


def _link(archive: Path, place: Path) -> None:
    """Give the archive a second name, or copy it where the file system has no hard links."""
    try:
        os.link(archive, place)
    except FileExistsError:
        return  # another process kept the same
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        part = place.with_name(f".{uuid.uuid4().hex}")
        shutil.copyfile(archive, part)
        part.replace(place)


def _mb(size: int) -> str:
    return f"{size / (1 << 20):.1f} MB"
