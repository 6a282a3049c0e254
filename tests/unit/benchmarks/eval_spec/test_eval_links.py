"""Symbolic links of a workspace: kept for graders where they stay inside, hidden where they lead out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxes.protocol import Sandbox
from tests.unit.benchmarks.eval_spec.stimulus_attempt import StimulusAttempt, write
from tests.unit.grade.sample_transcripts import result_of, said, story
from valkyrie.benchmarks.eval_spec.snapshots import make_links, merge
from valkyrie.specs.model import GraderSpec

LINKED = """
cd /workspace
echo rules > AGENTS.md && ln -s AGENTS.md CLAUDE.md
mkdir -p docs/deep && ln -s ../AGENTS.md docs/rules.md && ln -s deep docs/short
echo inner > docs/deep/page.md
ln -s /etc/hostname host.txt && ln -s ../../../../etc/hostname up.txt && ln -s /etc etc
ln -s docs/short/../../../../../../etc/hostname round.txt
ln -s missing.txt gone.md && ln -s me me
"""


@pytest.fixture
async def final(attempt: StimulusAttempt, sandbox: Sandbox) -> Path:
    attempt.set_up_with({})
    await attempt.prepare(sandbox)
    assert (await sandbox.exec(LINKED)).exit_code == 0
    return await attempt.final(sandbox)


async def test_links_that_stay_inside_are_kept(final: Path) -> None:
    kept = {str(path.relative_to(final)) for path in final.rglob("*") if path.is_symlink()}
    assert kept - {"me"} == {"CLAUDE.md", "docs/rules.md", "docs/short", "gone.md"}
    for path in final.rglob("*"):
        assert os.path.realpath(path).startswith(os.path.realpath(final)), path


@pytest.mark.parametrize(
    ("grader", "passed"),
    [
        (GraderSpec("file-exists", {"path": "CLAUDE.md"}), True),
        (GraderSpec("file-contains", {"path": "CLAUDE.md", "value": "rules"}), True),
        (GraderSpec("file-contains", {"path": "docs/short/page.md", "value": "inner"}), True),
        (GraderSpec("file-exists", {"path": "gone.md"}), False),
        (GraderSpec("file-exists", {"path": "host.txt"}), False),
        (GraderSpec("file-exists", {"path": "round.txt"}), False),
        (GraderSpec("file-exists", {"path": "etc/hostname"}), False),
        (GraderSpec("file-exists", {"path": "me"}), False),
    ],
    ids=str,
)
async def test_graders_look_through_them(final: Path, grader: GraderSpec, passed: bool) -> None:
    result = await result_of(grader, story(said("done")), workspace=final)
    assert result.passed is passed, result.evidence


async def test_what_a_link_leads_to_may_be_hidden(final: Path) -> None:
    for path in ("CLAUDE.md", "AGENTS.md", "docs/rules.md", "docs/short/page.md"):
        grader = GraderSpec("file-exists", {"path": path})
        unseen = ("AGENTS.md", "docs/deep")
        result = await result_of(grader, story(said("done")), workspace=final, unseen=unseen)
        assert not result.passed, path


async def test_a_new_link_is_a_change(attempt: StimulusAttempt, sandbox: Sandbox) -> None:
    write(attempt.base, {"src/a.md": "a\n"})
    (attempt.base / "src/old.md").symlink_to("a.md")
    attempt.set_up_with({"src": "."})
    await attempt.prepare(sandbox)
    assert await attempt.diff(sandbox) == ""
    await sandbox.exec("cd /workspace && ln -s a.md new.md && rm old.md && ln -s /etc/hostname out.md")
    diff = await attempt.diff(sandbox)
    assert "new file mode 120000" in diff or "rename from old.md" in diff
    assert "new.md" in diff and "out.md" not in diff and "hostname" not in diff


def test_links_are_made_under_no_other_link(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    folder = write(tmp_path / "copy", {"a": "1"})
    assert make_links(folder, {"d": ".", "d/x": "../out", "": "a", "b": "a", "n": "", "a": "b"}, "/w") == 2
    assert sorted(os.listdir(folder)) == ["a", "b", "d"] and (folder / "a").read_text() == "1"


def test_links_may_name_the_workspace_as_a_whole(tmp_path: Path) -> None:
    folder = write(tmp_path / "copy", {"a": "1", "deep/b": "2"})
    links = {"deep/up": "/work/a", "deep/top": "/work", "beside": "/workshop/a", "sly": "/work/../etc"}
    assert make_links(folder, links, "/work") == 2
    assert (folder / "deep/up").read_text() == "1" and (folder / "deep/top").resolve() == folder.resolve()
    assert sorted(os.listdir(folder)) == ["a", "deep"]


def test_layers_are_merged_without_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    low, high = write(tmp_path / "low", {"deep/er/f": "1"}), write(tmp_path / "high", {"d/f": "2"})
    (low / "d").symlink_to("deep/er")
    (low / "x").symlink_to("d/../../secret")  # inside, as long as d is that link
    (low / "deep/secret").write_text("inner")
    assert not merge([low, high], tmp_path / "into")
    assert (tmp_path / "into/d/f").read_text() == "2"
    for path in (tmp_path / "into").rglob("*"):
        assert os.path.realpath(path).startswith(os.path.realpath(tmp_path / "into")), path
