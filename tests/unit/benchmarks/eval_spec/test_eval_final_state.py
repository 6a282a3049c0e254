"""Final states that are kept for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.benchmarks.eval_spec.stimulus_attempt import write
from valkyrie.benchmarks.eval_spec import snapshots
from valkyrie.benchmarks.eval_spec.snapshots import files_in, folder_name, keep_artifacts, materialise
from valkyrie.errors import UsageError


def names(folder: Path) -> list[str]:
    return sorted(name for name, _ in files_in(folder))


async def test_a_final_state_replaces_an_earlier_one_of_ours(tmp_path: Path) -> None:
    first = write(tmp_path / "first", {"a": "1", "old": "1"})
    second = write(tmp_path / "second", {"a": "2", "sub/b": "2"})
    (second / "a").chmod(0o755)
    target = tmp_path / "kept/main/one"
    await materialise(first, target)
    await materialise(second, target)
    assert names(target) == ["a", "sub/b"]
    assert (target / "a").read_text() == "2"
    assert (target / "a").stat().st_mode & 0o111
    (target / "sub/b").write_text("mine")
    assert (second / "sub/b").read_text() == "2", "it is a copy"
    assert sorted(path.name for path in target.parent.iterdir()) == [".one.valkyrie", "one"]


@pytest.mark.parametrize("kind", ["full folder", "file", "link", "made anew"])
async def test_what_we_did_not_make_is_not_replaced(tmp_path: Path, kind: str) -> None:
    final = write(tmp_path / "final", {"a": "1"})
    target, elsewhere = tmp_path / "kept", write(tmp_path / "elsewhere", {"precious": "x"})
    if kind == "full folder":
        write(target, {"precious": "x"})
    elif kind == "file":
        target.write_text("precious")
    elif kind == "link":
        target.symlink_to(elsewhere)
    else:
        await materialise(final, target)
        target.rename(tmp_path / "moved")
        write(target, {"precious": "x"})
    with pytest.raises(UsageError, match="name another place"):
        await materialise(final, target)
    assert (elsewhere / "precious").exists()
    assert target.is_file() or (target / "precious").exists()


async def test_an_empty_folder_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    await materialise(write(tmp_path / "final", {"a": "1"}), tmp_path / "kept")
    assert names(tmp_path / "kept") == ["a"]


async def test_kept_states_do_not_hold_those_kept_before(tmp_path: Path) -> None:
    work_dir = write(tmp_path / "work", {"a": "1"})
    for name in ("one", "two", "three"):
        await materialise(work_dir, work_dir / "kept/main" / name / "trial-0")
    assert names(work_dir / "kept/main/three/trial-0") == ["a"]


async def test_links_are_not_followed(tmp_path: Path) -> None:
    final = write(tmp_path / "final", {"a": "1"})
    (tmp_path / "secret").write_text("secret")
    (final / "out").symlink_to(tmp_path / "secret")
    (final / "folder").symlink_to(tmp_path)
    (final / "up").symlink_to("../secret")
    (final / "in").symlink_to("a")
    await materialise(final, tmp_path / "kept")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["a", "in"]
    assert (tmp_path / "kept/in").is_symlink() and (tmp_path / "kept/in").read_text() == "1"
    assert await keep_artifacts(final, ["**/*", "out", "folder"], [], tmp_path / "artifacts") == ["a"]
    assert names(tmp_path / "artifacts") == ["a"]


async def test_artifacts_by_glob_exclude_wins(tmp_path: Path) -> None:
    final = write(
        tmp_path / "final", {"a.txt": "", "b.log": "", "out/c.txt": "", "out/.d": "", "out/e/f": ""}
    )
    chosen = await keep_artifacts(final, ["*.txt", "out"], ["out/e", "**/.*"], tmp_path / "artifacts")
    assert sorted(chosen) == names(tmp_path / "artifacts") == ["a.txt", "out/c.txt"]
    assert await keep_artifacts(final, ["../*", "/etc/passwd", "none"], [], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


async def test_artifacts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = write(tmp_path / "final", {str(number): "x" * 100 for number in range(20)})
    monkeypatch.setattr(snapshots, "MOST_ARTIFACTS", 5)
    assert len(await keep_artifacts(final, ["*"], [], tmp_path / "few")) == 5
    monkeypatch.setattr(snapshots, "MOST_ARTIFACT_BYTES", 250)
    assert len(await keep_artifacts(final, ["*"], [], tmp_path / "small")) == 2


def test_names_of_folders() -> None:
    assert folder_name("plain-name_1.2") == "plain-name_1.2"
    odd = ["a/b", "a b", "a:b", "..", "", "ü", ".hidden", "x" * 300, "x" * 301]
    made = [folder_name(name) for name in odd]
    assert len(set(made)) == len(odd)
    assert all("/" not in name and not name.startswith(".") and 0 < len(name) < 100 for name in made)
