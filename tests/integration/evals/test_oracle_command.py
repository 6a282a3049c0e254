"""`valk oracle`: golden inputs in an agent's place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integration.evals.commands import Valk
from tests.integration.evals.commands import valk as valk
from tests.integration.evals.test_eval_command import records, spec, stimulus, the_folder

PATCH = "--- /dev/null\n+++ b/fixed.txt\n@@ -0,0 +1 @@\n+fixed\n"
FIXED = {"type": "file-contains", "config": {"path": "fixed.txt", "value": "fixed"}}
MADE = {"type": "file-exists", "config": {"path": "made"}}
AS_PATCHED = {"type": "expected-diff", "config": {"allow_other_files": True}}
SAID = {"type": "output-contains", "config": {"substring": "done"}}
STORY = {
    "schema_version": "ATIF-v1.6",
    "session_id": "golden",
    "agent": {"name": "author", "version": "1"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "fix it"},
        {"step_id": 2, "source": "agent", "message": "All done."},
    ],
}


def golden(tmp_path: Path, **more: Any) -> Path:
    (tmp_path / "fix.patch").write_text(PATCH)
    (tmp_path / "good.json").write_text(json.dumps(STORY))
    empty = {"commands": ["true"]}
    right = stimulus(
        "right",
        FIXED,
        MADE,
        AS_PATCHED,
        SAID,
        golden_patch={"path": "fix.patch"},
        golden_command="touch made",
        golden_trajectory={"path": "good.json"},
        agent_environment=empty,
        **more,
    )
    return spec(tmp_path, right, stimulus("nobody-knows", SAID, agent_environment=empty))


def test_the_golden_inputs_pass(valk: Valk, tmp_path: Path) -> None:
    file = golden(tmp_path)
    said = valk("oracle", "-e", file, "--output", "jsonl")
    assert said.code == 0, said.out + said.err
    (line,) = [json.loads(one) for one in said.out.splitlines()]
    assert (line["type"], line["stimulus"], line["gradeResult"]["score"]) == ("trial-result", "right", 1.0)
    assert line["trajectory"]["output"] == "All done."


def test_without_them_nothing_passes(valk: Valk, tmp_path: Path) -> None:
    file = golden(tmp_path)
    said = valk("oracle", "-e", file, "--stimulus", "right", "--no-golden-input")
    assert said.code == 1, said.out + said.err
    (record,) = records(the_folder(tmp_path))
    assert record["gradeResult"]["score"] == 0.0


def test_a_patch_that_does_not_apply(valk: Valk, tmp_path: Path) -> None:
    file = golden(tmp_path)
    (tmp_path / "fix.patch").write_text(PATCH.replace("-0,0 +1", "-1 +1").replace("/dev/null", "a/none"))
    said = valk("oracle", "-e", file)
    assert said.code == 1, said.out + said.err


def test_what_cannot_be_asked(valk: Valk, tmp_path: Path) -> None:
    file = spec(tmp_path, stimulus("a", SAID))
    said = valk("oracle", "-e", file)
    assert said.code == 2 and "no stimulus has a golden input" in said.err
    said = valk("oracle", "-e", file, "--stimulus", "b")
    assert said.code == 2 and "nothing is called 'b'" in said.err


def test_graders_of_absence_are_not_applicable_where_nobody_worked(valk: Valk, tmp_path: Path) -> None:
    never = [
        {"type": "output-not-contains", "config": {"substring": "sorry"}},
        {"type": "transcript-not-contains", "config": {"substring": "sorry"}},
        {"type": "tool-calls", "config": {"disallowed": ["bash"]}},
        {"type": "skill-invocation", "config": {"disallowed": ["a"]}},
    ]
    wanted = {"type": "tool-calls", "config": {"required": ["bash"], "disallowed": ["rm"]}}
    more = {"golden_command": "touch made", "agent_environment": {"commands": ["true"]}}
    some = stimulus("some", MADE, *never, **more)
    none = stimulus("none", *never, **more)
    told = stimulus("told", *never, golden_trajectory={"inline": STORY}, **more)
    file = spec(tmp_path, some, none, stimulus("wanted", MADE, wanted, **more), told)
    said = valk("oracle", "-e", file, "--output", "jsonl")
    lines = {one["stimulus"]: one for one in map(json.loads, said.out.splitlines())}
    graders = lines["some"]["gradeResult"]["details"]
    assert [one.get("status", "ok") for one in graders] == ["ok", *["skipped"] * 4]
    assert graders[1]["evidence"].startswith("n/a: no agent worked")
    assert lines["some"]["gradeResult"]["score"] == 1.0
    assert not (lines["none"].get("gradeResult") or {}).get("passed")
    assert lines["wanted"]["gradeResult"]["passed"] is False
    assert all("status" not in one for one in lines["told"]["gradeResult"]["details"])


def test_a_golden_patch_that_is_missing_is_said_before_the_start(valk: Valk, tmp_path: Path) -> None:
    file = spec(tmp_path, stimulus("a", SAID, golden_patch={"path": "gone.patch"}))
    for words in (("lint", "-e", file), ("eval", "-e", file), ("oracle", "-e", file)):
        said = valk(*words)
        assert said.code in (1, 2) and "`golden_patch`: 'gone.patch' is no file in" in said.out + said.err
    assert not (tmp_path / "vally-results").exists()
