"""What a judge is shown."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.grade.judges.judge_server import asked_at, grade, judge, prompt_spec, trial
from valkyrie.errors import GraderError
from valkyrie.grade.judges import PromptGrader
from valkyrie.grade.judges.evidence import gather
from valkyrie.trajectory.transcript import Transcript


def titles(given: object, wanted: list[str] | None) -> list[str]:
    return [piece.title for piece in gather(given, wanted)]  # type: ignore[arg-type]


def test_without_a_wish_there_is_what_there_is() -> None:
    assert titles(trial(), None) == ["final answer", "trajectory"]
    assert titles(trial(diff=""), None) == ["final answer", "trajectory", "diff"]
    assert titles(trial(transcript=Transcript("")), None) == ["final answer"]


@pytest.mark.parametrize("kind", ["trajectory", "diff", "repo", "golden_patch"])
async def test_what_is_wished_and_not_there_is_an_error(kind: str) -> None:
    with pytest.raises(GraderError, match=f"`{kind}`") as caught:
        gather(trial(transcript=Transcript("Done.")), [kind])
    assert caught.value.cause == "judge_evidence_missing"


def test_a_workspace_nobody_changed_is_told_so(tmp_path: Path) -> None:
    assert "was not changed" in gather(trial(diff=""), ["diff"])[-1].text


def test_only_what_is_wished_is_shown(tmp_path: Path) -> None:
    given = trial(diff="+new", golden_patch="+gold", workspace=tmp_path)
    assert titles(given, ["golden_patch"]) == ["final answer", "golden_patch"]
    assert titles(given, ["repo", "diff"]) == ["final answer", "repo", "diff"]


def test_the_stimulus_may_hold_the_golden_patch() -> None:
    given = trial()
    given = replace(given, stimulus=replace(given.stimulus, golden_patch="+gold"))
    assert gather(given, ["golden_patch"])[-1].text == "+gold"


def test_a_repository_is_read_within_bounds_and_without_following_links(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    work = tmp_path / "work"
    (work / "src").mkdir(parents=True)
    (work / "src" / "main.py").write_text("print('hi')\n")
    (work / "binary").write_bytes(b"\0\1\2")
    (work / "big.txt").write_text("b" * 5_000_000)
    (work / "link").symlink_to(secret)
    (work / "folder").symlink_to(tmp_path)
    (work / ".git").mkdir()
    (work / ".git" / "config").write_text("[core]")
    os.mkfifo(work / "pipe")
    (work / "closed").write_text("x")
    text = gather(trial(workspace=work), ["repo"])[-1].text
    assert "print('hi')" in text and "src/main.py" in text
    assert "host secret" not in text and "[core]" not in text
    assert len(text) < 40_000


def test_a_repository_of_very_many_files(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"f{number:03d}").write_text("x")
    text = gather(trial(workspace=tmp_path), ["repo"])[-1].text
    assert "there are more" in text and "f599" not in text


async def test_the_judge_sees_the_diff() -> None:
    async with judge(grade(5)) as server:
        given = asked_at(server, trial(diff="+def answer(): return 42"))
        await PromptGrader(prompt_spec(evidence=["diff"])).grade(given)
    asked = server.requests[0].body["messages"][-1]["content"]
    assert "+def answer(): return 42" in asked
    assert "trajectory" not in asked
