"""`disk` counts what runs keep in a shared artifact folder, by real files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stored_runs import add_run
from valkyrie.artifact_store.disk import DiskArtifacts
from valkyrie.artifact_store.protocol import run_prefix
from valkyrie.store.schema import run
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import DiskView


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[LocalTracker]:
    opened = LocalTracker(tmp_path / "data")
    yield opened
    opened.close()


def keep(tracker: LocalTracker, folder: Path, **sizes: int) -> str:
    """A run that keeps files of these sizes in a folder."""
    store = DiskArtifacts(folder)
    run_id = add_run(tracker.store, 1, place={"artifacts": store.place})
    for name, size in sizes.items():
        store.put_text(f"{run_prefix(run_id)}t/{name}", "x" * size)
    return run_id


def elsewhere(view: DiskView) -> dict[Path, int]:
    return {Path(where.removeprefix("file://")): size for where, size in view.elsewhere}


def test_runs_without_a_shared_folder_have_nothing_elsewhere(tracker: LocalTracker) -> None:
    add_run(tracker.store, 1)
    assert list(tracker.disk().elsewhere) == []


def test_what_runs_keep_in_folders_is_counted_by_folder(tracker: LocalTracker, tmp_path: Path) -> None:
    shared, other = tmp_path / "shared", tmp_path / "other"
    keep(tracker, shared, a=1_000, b=24)
    keep(tracker, shared, a=76)
    keep(tracker, other, a=5_000)
    DiskArtifacts(shared).put_text("benchmarks/run-of-another-tracker/t/a", "x" * 9_999)
    view = tracker.disk()
    assert elsewhere(view) == {other: 5_000, shared: 1_100}
    assert [size for _, size in view.elsewhere] == [5_000, 1_100], "the largest first"


def test_a_deleted_run_is_counted_no_more(tracker: LocalTracker, tmp_path: Path) -> None:
    gone, stays = keep(tracker, tmp_path / "shared", a=500), keep(tracker, tmp_path / "shared", a=7)
    with tracker.store.writing() as connection:
        connection.execute(run.update().where(run.c.id == gone).values(state="FINISHED"))
    tracker.delete(gone)
    assert elsewhere(tracker.disk()) == {tmp_path / "shared": 7}
    assert [run_id for run_id, *_ in tracker.disk().runs] == [stays]
