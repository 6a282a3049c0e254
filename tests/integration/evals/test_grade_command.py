"""`valkyrie grade`: results that came about before, graded again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.abilities import need_local_sandboxes
from tests.integration.evals.commands import Valk
from tests.integration.evals.commands import valk as valk
from tests.integration.evals.serving import serving
from valkyrie.testing.model_server import Fault, Script, ToolRequest

HELLO = {"type": "output-contains", "config": {"substring": "hello"}}
BYE = {"type": "output-contains", "config": {"substring": "goodbye"}}
A_FILE = {"type": "file-contains", "config": {"path": "**/*.md", "value": "# Notes"}}
COMMAND = {"type": "run-command", "config": {"command": "cat notes.md > copy.md", "timeout": "20s"}}
NO_COPY = {"type": "run-command", "config": {"command": "test", "args": ["!", "-e", "copy.md"]}}
DIFF = {"type": "diff-contains", "config": {"value": "+# Notes"}}


def write_spec(folder: Path, **stimuli: list[dict[str, Any]]) -> Path:
    document = {
        "name": "mine",
        "defaults": {"executor": "mock"},
        "stimuli": [
            {"name": name.replace("_", "-"), "prompt": "say hello", "graders": graders}
            for name, graders in stimuli.items()
        ],
    }
    path = folder / "eval.yaml"
    path.write_text(json.dumps(document))
    return path


def trial(stimulus: str | None, output: str | None, **more: Any) -> str:
    record: dict[str, Any] = {"type": "trial-result", "status": "success", **more}
    if stimulus:
        record["stimulus"] = stimulus
    record["trajectory"] = None if output is None else {"output": output, "events": []}
    return json.dumps(record) + "\n"


ATIF = json.dumps(
    {
        "schema_version": "ATIF-v1.7",
        "session_id": "s",
        "agent": {"name": "any", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "say hello"},
            {"step_id": 2, "source": "agent", "message": "hello there"},
        ],
    }
)
COPILOT = "\n".join(
    json.dumps({"type": kind, "data": data})
    for kind, data in (("user.message", {"content": "x"}), ("assistant.message", {"content": "hello"}))
)
OUTCOME = json.dumps({"stimulus": {"name": "a"}, "trajectory": {"output": "hello", "events": []}})


@pytest.mark.parametrize(
    ("graders", "stdin", "flags", "code"),
    [
        ([HELLO], trial("a", "Hello!"), [], 0),
        ([HELLO], trial("a", "nothing"), [], 1),
        ([HELLO], trial("a", "nothing"), ["--no-require-pass"], 0),
        ([HELLO], trial("a", "nothing"), ["--require-pass"], 1),
        ([HELLO, BYE], trial("a", "Hello!"), ["--threshold", "0.5"], 0),
        ([HELLO], trial("a", "nothing"), ["--threshold", "0"], 0),
        ([HELLO], trial("a", None, status="error", error="rate limit"), [], 1),
        ([HELLO], trial("a", None, status="error", error="rate limit"), ["--threshold", "0"], 1),
        ([HELLO], trial("a", "Hello!") + trial("a", None, status="error"), ["--no-require-pass"], 1),
        ([A_FILE], trial("a", "Hello!"), [], 1),
        ([A_FILE], trial("a", "Hello!"), ["--no-require-pass"], 1),
        ([HELLO], trial(None, "Hello!"), [], 0),
        ([HELLO], OUTCOME, [], 0),
        ([HELLO], f"[{OUTCOME},{OUTCOME}]", [], 0),
        ([HELLO], ATIF, [], 0),
        ([BYE], ATIF, [], 1),
        ([HELLO], COPILOT, ["--stimulus", "a"], 0),
        ([HELLO], trial("b", "Hello!"), [], 1),
        ([HELLO], "", [], 1),
        ([HELLO], "not json", [], 1),
        ([HELLO], trial("a", "Hello!"), ["--stimulus", "aa"], 2),
        ([HELLO], trial("a", "Hello!"), ["--workspace", "nowhere"], 2),
        ([HELLO], trial("a", "Hello!"), ["--diff-file", "nowhere"], 2),
        ([HELLO], trial("a", "Hello!"), ["--grader-plugin", "nowhere.py"], 2),
        ([{"type": "output-contians"}], trial("a", "Hello!"), [], 2),
    ],
)
def test_exit_codes(
    valk: Valk, tmp_path: Path, graders: list[dict[str, Any]], stdin: str, flags: list[str], code: int
) -> None:
    said = valk("grade", "-e", write_spec(tmp_path, a=graders), *flags, stdin=stdin)
    assert said.code == code, said.err + said.out


def test_a_spec_is_needed(valk: Valk, tmp_path: Path) -> None:
    assert valk("grade", stdin=OUTCOME).code == 2
    assert valk("grade", "-e", tmp_path / "none.yaml", stdin=OUTCOME).code == 2


def test_a_trajectory_without_a_name_needs_one(valk: Valk, tmp_path: Path) -> None:
    file = write_spec(tmp_path, a=[HELLO], b=[BYE])
    said = valk("grade", "-e", file, stdin=ATIF)
    assert said.code == 2
    assert "--stimulus" in said.err
    assert valk("grade", "-e", file, "--stimulus", "a", stdin=ATIF).code == 0
    assert valk("grade", "-e", file, "--stimulus", "b", stdin=ATIF).code == 1


def test_lines_on_stdout_and_the_summary_beside_them(valk: Valk, tmp_path: Path) -> None:
    file = write_spec(tmp_path, a=[HELLO], b=[HELLO])
    stdin = (
        trial("a", "hello", trialIndex=0) + trial("b", "no", trialIndex=0) + trial("a", "no", trialIndex=1)
    )
    said = valk("grade", "-e", file, "--output", "jsonl", stdin=stdin)
    found = [json.loads(line) for line in said.out.splitlines()]
    assert sorted((one["stimulus"], one["trialIndex"], one["gradeResult"]["passed"]) for one in found) == [
        ("a", 0, True),
        ("a", 1, False),
        ("b", 0, False),
    ]
    assert "1 passed, 2 failed" in said.err
    again = valk("grade", "-e", file, "--output", "jsonl", stdin=said.out)
    assert [json.loads(line)["gradeResult"]["passed"] for line in again.out.splitlines()] == [
        one["gradeResult"]["passed"] for one in found
    ]


def test_json_and_people(valk: Valk, tmp_path: Path) -> None:
    file = write_spec(tmp_path, a=[HELLO, BYE])
    said = valk("grade", "-e", file, "--json", stdin=trial("a", "hello"))
    (graded,) = said.json["trials"]
    assert [one["passed"] for one in graded["gradeResult"]["details"]] == [True, False]
    said = valk("grade", "-e", file, stdin=trial("a", "hello"))
    assert 'the output does not have "goodbye"' in said.out
    assert "the output has" not in said.out
    assert "the output has" in valk("grade", "-e", file, "--verbose", stdin=trial("a", "hello")).out


def test_a_plugin_beside_the_spec(valk: Valk, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, a=[{"type": "loud"}])
    (tmp_path / "mine.py").write_text(
        "class Loud:\n    type = 'loud'\n    def grade(self, given):\n"
        "        return given.transcript.output.isupper()\n"
    )
    for output, code in (("HEY", 0), ("hey", 1)):
        assert valk("grade", "-e", spec, "--grader-plugin", "mine.py", stdin=trial("a", output)).code == code


def test_results_of_an_eval_are_graded_to_the_same_verdicts(valk: Valk, tmp_path: Path) -> None:
    need_local_sandboxes(tmp_path / "try")
    project = tmp_path / "project"
    project.mkdir()
    file = write_spec(
        project,
        fine=[HELLO, A_FILE, COMMAND, NO_COPY],
        bad=[BYE, A_FILE],
        two_files=[{"type": "file-not-exists", "config": {"path": "notes.md"}}],
    )
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.md").write_text("# Notes\n")
    flags = ["--work-dir", work, "--workspace", tmp_path / "kept", "--output-dir", tmp_path / "out"]
    ran = valk("eval", "-e", file, *flags, "--runs", "2", "--network", "none")
    (folder,) = (tmp_path / "out").iterdir()
    stdin = (folder / "results.jsonl").read_text()
    said = valk("grade", "-e", file, "--workspace", tmp_path / "kept", "--output", "jsonl", stdin=stdin)
    assert (ran.code, said.code) == (1, 1)

    def verdicts(lines: str) -> list[Any]:
        found = [json.loads(line) for line in lines.splitlines()]
        return sorted(
            (
                one["stimulus"],
                one["trialIndex"],
                one["gradeResult"]["passed"],
                one["gradeResult"]["score"],
                [(grader["name"], grader["passed"]) for grader in one["gradeResult"]["details"]],
            )
            for one in found
        )

    assert verdicts(said.out) == verdicts(stdin)
    assert len(verdicts(stdin)) == 6
    assert {row[2] for row in verdicts(stdin)} == {True, False}
    assert not list((tmp_path / "kept").rglob("copy.md"))


def test_what_was_changed(valk: Valk, tmp_path: Path) -> None:
    file = write_spec(tmp_path, a=[DIFF])
    assert valk("grade", "-e", file, stdin=trial("a", "x")).code == 1
    patch = tmp_path / "some.patch"
    patch.write_text("--- /dev/null\n+++ b/notes.md\n@@ -0,0 +1 @@\n+# Notes\n")
    assert valk("grade", "-e", file, "--diff-file", patch, stdin=trial("a", "x")).code == 0
    results = tmp_path / "results"
    (results / "logs").mkdir(parents=True)
    patch.rename(results / "logs" / "workspace.patch")
    flags = ["--artifact-dir", results]
    assert valk("grade", "-e", file, *flags, stdin=trial("a", "x", patch="logs/workspace.patch")).code == 0
    outside = trial("a", "x", patch="../eval.yaml")
    assert valk("grade", "-e", file, *flags, stdin=outside).code == 1


@pytest.mark.parametrize(("score", "code"), [(5, 0), (2, 1)])
def test_a_judge_is_asked(
    valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, score: int, code: int
) -> None:
    monkeypatch.setenv("VALKYRIE_JUDGE_API_KEY", "any")
    answer = {"rubric_scores": [], "overall_score": score, "overall_reasoning": "so it seems"}
    file = write_spec(tmp_path, a=[{"type": "prompt", "config": {"prompt": "Is it friendly?"}}])
    with serving(Script.of(ToolRequest("submit_grade", answer))) as server:
        flags = ["--judge-model", "openai/judge", "--judge-url", server.url]
        said = valk("grade", "-e", file, *flags, "--json", stdin=trial("a", "hello"))
    assert said.code == code, said.out + said.err
    (graded,) = said.json["trials"]
    (detail,) = graded["gradeResult"]["details"]
    assert detail["kind"] == "llm"
    assert detail["usage"]


def test_a_judge_out_of_reach_is_an_error(
    valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALKYRIE_JUDGE_API_KEY", "any")
    file = write_spec(tmp_path, a=[HELLO, {"type": "prompt", "config": {"prompt": "Is it friendly?"}}])
    with serving(Script.of(Fault("unknown_model", every=1))) as server:
        flags = ["--judge-model", "openai/judge", "--judge-url", server.url, "--no-require-pass"]
        said = valk("grade", "-e", file, *flags, "--json", stdin=trial("a", "hello"))
    assert said.code == 1
    (graded,) = said.json["trials"]
    assert graded["fault"]["kind"] == "grader"
