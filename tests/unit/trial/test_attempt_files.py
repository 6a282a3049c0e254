"""What an attempt leaves on disk: its log, its kept files, their names."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.secrets import Masker
from valkyrie.store.layout import DataFolder, RunFolder, encode_task_id
from valkyrie.trial import outputs as log_module
from valkyrie.trial.outputs import AttemptLog, scrub, scrub_names

printable = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=300)


@given(printable)
def test_any_task_id_is_one_safe_path_component(task_id: str) -> None:
    name = encode_task_id(task_id)
    assert "/" not in name and not name.startswith(".") and name not in ("", ".", "..")
    assert len(name.encode()) <= 255


@given(st.sets(printable, min_size=2, max_size=20))
def test_task_ids_keep_apart(task_ids: set[str]) -> None:
    assert len({encode_task_id(task_id) for task_id in task_ids}) == len(task_ids)


async def test_headings_alone_make_no_file(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "a" / "x.log")
    log.heading("setup")
    log.close()
    assert not (tmp_path / "a").exists()


async def test_output_comes_under_its_heading(tmp_path: Path) -> None:
    path = RunFolder(tmp_path).log("some/task", 0, 1)
    log = AttemptLog(path)
    log.heading("agent")
    log.write("stdout", "hällo\n")
    log.note("the end")
    log.close()
    heading, text, note = path.read_text().splitlines()
    assert heading.endswith(" agent") and text == "hällo" and note == "── the end"


async def test_a_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "LOG_LIMIT", 1000)
    log = AttemptLog(tmp_path / "x.log")
    for _ in range(1000):
        log.write("stdout", "\N{SNOWMAN}" * 33)
    log.close()
    assert (tmp_path / "x.log").stat().st_size < 2000
    assert "is not kept" in (tmp_path / "x.log").read_text()


def test_kept_files_hold_no_secret(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "f").write_bytes(b"key=abcd1234;\0binary abcd1234")
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "f")
    scrub(tmp_path, Masker(["abcd1234", "key"]))
    assert (tmp_path / "deep" / "f").read_bytes() == b"key=***;\0binary ***"
    assert (tmp_path / "link").is_symlink()


def test_names_of_kept_files_hold_no_secret(tmp_path: Path) -> None:
    for name in ("is-abcd1234/abcd1234.txt", "is-abcd1234/efgh5678.txt", "is-***/plain"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    scrub_names(tmp_path, Masker(["abcd1234", "efgh5678"]))
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert names == ["is-***-2/***.txt", "is-***-2/***.txt-2", "is-***/plain"]


async def test_a_log_on_a_full_disk_fails_the_one_who_writes_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_module, "FLUSH_EVERY_S", 0.0)
    log = AttemptLog(Path("/dev/full"))
    log.write("stdout", "a piece\n")
    await asyncio.sleep(0.01)
    with pytest.raises(OSError, match="No space left"):
        log.write("stdout", "another\n")
    log.note("an ending is noted where there is room for it")
    log.close()


async def test_what_we_note_holds_no_secret(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "x.log", Masker(["abcd1234"]))
    log.note("abcd1234.txt was left behind")
    log.close()
    assert (tmp_path / "x.log").read_text() == "── ***.txt was left behind\n"


def test_drafts_of_lost_attempts_are_swept(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    draft = data.run("known").draft(7, 1)
    draft.mkdir(parents=True)
    data.run("known").attempt("task", 0, 1).mkdir(parents=True)
    data.sweep_runs({"known"}, before=0.0)
    assert not draft.exists()
    assert data.run("known").attempt("task", 0, 1).exists()


def test_drafts_of_an_executor_that_is_gone_are_swept_when_they_are_old(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    names = ("living", "gone", "beginning")
    for name in names:
        data.run(name).draft(7, 1).mkdir(parents=True)
    for name in ("living", "gone"):
        os.utime(data.run(name).drafts, (1, 1))
    data.sweep_runs(names, before=1000.0, bound={"living": True, "gone": False, "beginning": False})
    assert [name for name in names if data.run(name).drafts.exists()] == ["living", "beginning"]


def test_folders_of_runs_that_were_never_stored_are_swept(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    for name in ("known", "orphan", "fresh"):
        (data.run(name).agent).mkdir(parents=True)
    for name in ("known", "orphan"):
        os.utime(data.run(name).root, (1, 1))
    under_way = data.run("fresh").draft(7, 1)
    under_way.mkdir(parents=True)
    data.sweep_runs({"known"}, before=1000.0)
    assert sorted(path.name for path in data.runs.iterdir()) == ["fresh", "known"]
    assert under_way.exists(), "a run that was stored a moment ago may be at work"
