"""The packed work of a run's agents: kept once per digest, within limits, never with a secret in it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandboxes.masker import Masker
from valkyrie.artifact_store.disk import DiskArtifacts
from valkyrie.config import values
from valkyrie.store.layout import RunFolder
from valkyrie.trial.storage import (
    KeepLimits,
    KeptWork,
    RemoteStorage,
    digest_of,
    fetch,
    read_record,
    share,
    write_record,
)


def _archive(folder: Path, content: bytes, name: str = "work.tar") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def test_the_same_work_is_kept_once(tmp_path: Path) -> None:
    kept = KeptWork(RunFolder(tmp_path))
    one, other = _archive(tmp_path / "a", b"same"), _archive(tmp_path / "b", b"same")
    digest = digest_of(one)
    assert digest == digest_of(other)
    assert kept.keep(one, digest) is None and kept.keep(other, digest) is None
    assert [path.name for path in (tmp_path / "work").iterdir()] == [f"{digest}.tar"]
    assert kept.path(digest).stat().st_ino == one.stat().st_ino
    assert one.exists() and other.exists()


def test_work_over_a_limit_is_not_kept(tmp_path: Path) -> None:
    kept = KeptWork(RunFolder(tmp_path), KeepLimits(trial=10, run=15))
    for content, reason in ((b"x" * 11, "work_max_mb"), (b"a" * 10, None), (b"b" * 10, "work_run_max_mb")):
        archive = _archive(tmp_path / "draft", content)
        found = kept.keep(archive, digest_of(archive))
        assert reason in found if reason and found else found is None
        archive.unlink()
    # Another process counts what is there already.
    again = KeptWork(RunFolder(tmp_path), KeepLimits(trial=10, run=15))
    archive = _archive(tmp_path / "draft", b"c" * 6)
    assert "work_run_max_mb" in str(again.keep(archive, digest_of(archive)))


def test_work_that_holds_a_secret_is_not_kept(tmp_path: Path) -> None:
    kept = KeptWork(RunFolder(tmp_path))
    archive = _archive(tmp_path / "draft", b"key=swordfish\n")
    reason = kept.keep(archive, digest_of(archive), Masker(["swordfish"]))
    assert reason == "it holds the value of a secret"
    assert not kept.path(digest_of(archive)).exists()


def test_an_artifact_store_has_it_once_for_every_machine(tmp_path: Path) -> None:
    away = RemoteStorage(DiskArtifacts(tmp_path / "store"))
    here, there = KeptWork(RunFolder(tmp_path / "here")), KeptWork(RunFolder(tmp_path / "there"))
    archive = _archive(tmp_path / "here" / "draft", b"work")
    digest = digest_of(archive)
    assert here.keep(archive, digest) is None

    async def go() -> tuple[Path | None, Path | None]:
        await share(here, away, "run", digest)
        await share(here, away, "run", digest)
        return await fetch(there, away, "run", digest), await fetch(there, away, "run", "0" * 64)

    found, missing = asyncio.run(go())
    assert found is not None and found.read_bytes() == b"work" and missing is None
    assert [one.key for one in away.artifacts.list("")] == [f"benchmarks/run/.work/{digest}.tar"]  # type: ignore[union-attr]


def test_the_record_of_an_attempt(tmp_path: Path) -> None:
    assert read_record(tmp_path / "attempt-1") is None
    write_record(tmp_path / "attempt-1", {"digest": "d", "removed": ["/app/é"]})
    assert read_record(tmp_path / "attempt-1") == {"digest": "d", "removed": ["/app/é"]}
    (tmp_path / "attempt-1" / "work.json").write_text("{")
    assert read_record(tmp_path / "attempt-1") is None


def test_limits_are_configured_in_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    values.set_value("work_max_mb", "3")
    assert KeepLimits.configured() == KeepLimits(trial=3 << 20, run=10 << 30)
