"""`valkyrie eval` from the command line: what it runs, prints, leaves behind, and how it ends."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.evals.commands import Valk
from tests.integration.evals.commands import valk as valk
from valkyrie.cli import eval as eval_cli
from valkyrie.cli import experiment as experiment_cli
from valkyrie.store import leases

SAYS_HELLO = {"type": "output-contains", "config": {"substring": "hello"}}
SAYS_BYE = {"type": "output-contains", "config": {"substring": "goodbye"}}


def spec(folder: Path, *stimuli: dict[str, Any], file: str = "eval.yaml", **top: Any) -> Path:
    document = {"name": "mine", "defaults": {"executor": "mock"}, "stimuli": list(stimuli), **top}
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def stimulus(name: str, *graders: dict[str, Any], prompt: str = "say hello", **more: Any) -> dict[str, Any]:
    return {"name": name, "prompt": prompt, "graders": list(graders or [SAYS_HELLO]), **more}


def fixture(folder: Path, name: str, **content: Any) -> None:
    path = folder / ".mock-executor" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def the_folder(tmp_path: Path, parent: str = "vally-results") -> Path:
    (folder,) = (tmp_path / parent).iterdir()
    return folder


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("stimuli", "top", "flags", "code"),
    [
        ([stimulus("a")], {}, [], 0),
        ([stimulus("a"), stimulus("b", SAYS_BYE)], {}, [], 1),
        ([stimulus("a", SAYS_BYE)], {}, ["--threshold", "0"], 0),
        ([stimulus("a", SAYS_HELLO, SAYS_BYE)], {}, ["--threshold", "0.5"], 0),
        ([stimulus("a", SAYS_HELLO, SAYS_BYE)], {"scoring": {"threshold": 0.5}}, [], 0),
        ([stimulus("a", SAYS_HELLO, SAYS_BYE)], {"scoring": {"threshold": 0.5}}, ["--threshold", "0.51"], 1),
        ([stimulus("a", SAYS_HELLO, SAYS_BYE)], {"scoring": {"threshold": 0.7}}, [], 1),
        ([stimulus("a", SAYS_BYE)], {}, ["--skip-grade"], 0),
        ([stimulus("a", SAYS_BYE)], {}, ["--runs", "0"], 0),
        ([stimulus("late")], {}, ["--timeout", "200ms", "--max-retries", "0"], 1),
        ([stimulus("late")], {}, ["--timeout", "200ms", "--max-retries", "0", "--threshold", "0"], 1),
        ([stimulus("a", {"type": "output-contains", "config": {"nothing": 1}})], {}, [], 2),
        ([stimulus("a", {"type": "output-contain", "config": {"substring": "x"}})], {}, [], 2),
        ([], {}, [], 2),
    ],
)  # fmt: skip
def test_exit_codes(
    valk: Valk,
    tmp_path: Path,
    stimuli: list[dict[str, Any]],
    top: dict[str, Any],
    flags: list[str],
    code: int,
) -> None:
    fixture(tmp_path, "late", output="hello", delay=30)
    ended = valk("eval", "-e", spec(tmp_path, *stimuli, **top), *flags)
    assert ended.code == code, ended.out + ended.err
    if code == 2:
        assert not (tmp_path / "vally-results").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "a folder that holds one, --suite NAME, or --tag"),
        (["-e", "eval.yaml", "--suite", "x"], "--suite cannot be combined with --eval-spec"),
        (["--suite", "x"], "no suite 'x'"),
        (["--suite", "x", "--eval-plugin", "a:b"], "--eval-plugin cannot be combined with --suite"),
        (["--tag", "a=b", "--eval-plugin", "a:b"], "--eval-plugin needs --eval-spec"),
        (["-e", "gone.yaml"], "gone.yaml: there is no such file"),
        (["-e", "eval.yaml", "--timeout", "5"], "5s"),
        (["-e", "eval.yaml", "--threshold", "1.5"], "--threshold"),
        (["-e", "eval.yaml", "--model", "a,,b"], "a name is missing"),
        (["-e", "eval.yaml", "--model", "a,a"], "a twice"),
        (["-e", "eval.yaml", "--skill-dir", "gone"], "--skill-dir"),
        (["-e", "eval.yaml", "--work-dir", "gone"], "--work-dir"),
        (["-e", "eval.yaml", "--output-dir", "eval.yaml"], "eval.yaml: this is a file; name a folder"),
        (["-e", "eval.yaml", "--judge-url", "gate.test"], "begins with http:// or https://"),
        (["-e", "eval.yaml", "--executor", "mok"], "mock"),
        (["-e", "eval.yaml", "--tag", "tier=none"], "no stimulus"),
        (["-e", "eval.yaml", "--resume"], "leave out"),
        (["--resume"], "no eval was started here"),
        (["--resume", "abc"], "No job 'abc'"),
        (["-e", "eval.yaml", "--executor", "mini-swe-agent", "--model", "x/y"], "cannot hold a conversation"),
    ],
)
def test_what_is_refused_before_anything_starts(
    valk: Valk, tmp_path: Path, flags: list[str], said: str
) -> None:
    spec(tmp_path, stimulus("a"), {"name": "two", "turns": ["hello", "again"], "graders": [SAYS_HELLO]})
    ended = valk("eval", *flags)
    assert ended.code == (1 if "conversation" in said else 2)
    assert said in ended.err, ended.err
    assert not (tmp_path / "vally-results").exists()


def test_the_workspace_collision_names_both(valk: Valk, tmp_path: Path) -> None:
    file = spec(tmp_path, stimulus("a"))
    ended = valk("eval", "-e", file, "--model", "gpt-5.5,claude-opus-4.8", "--workspace", tmp_path / "ws")
    assert ended.code == 2
    assert (
        f"Workspace path collision at '{tmp_path}/ws/main/a': claimed by 'mine × gpt-5.5' and "
        "'mine × claude-opus-4.8'. Rename one of the stimuli or use distinct --workspace roots." in ended.err
    )


def test_the_tree_it_leaves(valk: Valk, tmp_path: Path) -> None:
    file = spec(tmp_path, stimulus("a"), stimulus("b/c", SAYS_BYE))
    assert valk("eval", "-e", file, "--runs", "2", "--model", "m", "--junit").code == 1
    folder = the_folder(tmp_path)
    logs = folder / "executor-session-logs" / "mine" / "m" / "a"
    assert sorted(path.name for path in folder.iterdir()) == [
        "eval-results.junit.xml",
        "eval-results.md",
        "eval.json",
        "executor-session-logs",
        "otel-spans.jsonl",
        "results.jsonl",
        "run-summary.jsonl",
    ]
    assert sorted(path.name for path in logs.iterdir()) == ["trial-0", "trial-1"]
    about = json.loads((logs / "trial-1" / "metadata.json").read_text())
    assert about["logSource"] == "raw-event-fallback" and (logs / "trial-1" / "events.jsonl").exists()
    found = records(folder)
    assert [(one["stimulus"], one["trialIndex"], one["gradeResult"]["passed"]) for one in found] == [
        ("a", 0, True),
        ("a", 1, True),
        ("b/c", 0, False),
        ("b/c", 1, False),
    ]
    assert found[0]["trajectory"]["output"] == "say hello" and found[0]["status"] == "success"


def test_what_the_agent_told_is_among_the_runs_outputs(valk: Valk, tmp_path: Path) -> None:
    assert valk("eval", "-e", spec(tmp_path, stimulus("a")), "--runs", "2").code == 0
    first, second = records(the_folder(tmp_path))
    assert valk("run", "outputs", first["runId"], "--output-dir", tmp_path / "taken").code == 0
    told = sorted((tmp_path / "taken").rglob("agent/transcript.json"))
    assert [json.loads(path.read_text()) for path in told] == [second["trajectory"], first["trajectory"]]


def test_models_are_reported_apart(valk: Valk, tmp_path: Path) -> None:
    ended = valk("eval", "-e", spec(tmp_path, stimulus("a")), "--model", "one,two", "--no-color")
    assert ended.code == 0
    assert "✔ mine [one] all graders passed" in ended.out and "✔ mine [two] all graders passed" in ended.out
    assert [one["model"] for one in records(the_folder(tmp_path))] == ["one", "two"]


def test_several_trials_are_summed_up(valk: Valk, tmp_path: Path) -> None:
    fixture(tmp_path, "flaky", trials=[{"output": "hello"}] * 4 + [{"output": "no"}])
    ended = valk("eval", "-e", spec(tmp_path, stimulus("flaky")), "--runs", "5")
    assert ended.code == 1
    assert "━━━ flaky (5 trials) ━━━" in ended.out
    assert "pass@5: 100.0%" in ended.out and "pass^5: 0.0%" in ended.out
    assert "pass rate: 4/5 (80.0%)" in ended.out and "flaky (two trials disagree: 40.0%)" in ended.out


def test_jsonl_goes_to_stdout_alone_and_is_graded_again_to_the_same_verdicts(
    valk: Valk, tmp_path: Path
) -> None:
    file = spec(tmp_path, stimulus("a"), stimulus("b", SAYS_BYE), stimulus("c", {"type": "completed"}))
    first = valk("eval", "-e", file, "--output", "jsonl")
    lines = [json.loads(line) for line in first.out.splitlines()]
    again = valk("grade", "--eval-spec", file, "--output", "jsonl", stdin=first.out)
    graded = [json.loads(line) for line in again.out.splitlines()]

    def verdicts(found: list[dict[str, Any]]) -> list[tuple[str, bool, float]]:
        return [(one["stimulus"], one["gradeResult"]["passed"], one["gradeResult"]["score"]) for one in found]

    assert verdicts(lines) == verdicts(graded) == [("a", True, 1.0), ("b", False, 0.0), ("c", True, 1.0)]
    assert "mine" in first.err


def test_captured_now_and_graded_later(valk: Valk, tmp_path: Path) -> None:
    file = spec(tmp_path, stimulus("a"), stimulus("b", SAYS_BYE))
    captured = valk("eval", "-e", file, "--skip-grade", "--output", "jsonl")
    assert captured.code == 0
    assert all("gradeResult" not in json.loads(line) for line in captured.out.splitlines())
    assert valk("grade", "-e", file, stdin=captured.out).code == 1


def test_an_error_is_no_wrong_answer(valk: Valk, tmp_path: Path) -> None:
    fixture(tmp_path, "late", output="hello", delay=30)
    broken = {"type": "program", "config": {"program": "no-such-program-at-all"}}
    file = spec(tmp_path, stimulus("late"), stimulus("odd", broken), stimulus("wrong", SAYS_BYE))
    ended = valk("eval", "-e", file, "--timeout", "300ms", "--max-retries", "0")
    assert ended.code == 1
    by_name = {one["stimulus"]: one for one in records(the_folder(tmp_path))}
    assert by_name["late"]["status"] == "error" and "longer than" in by_name["late"]["error"]
    assert by_name["odd"]["gradeResult"]["status"] == "error"
    assert by_name["wrong"]["status"] == "success" and by_name["wrong"]["gradeResult"]["passed"] is False


def test_retries_use_the_slot_of_nobody_and_are_counted(valk: Valk, tmp_path: Path) -> None:
    fixture(
        tmp_path,
        "shaky",
        output="hello",
        error={"message": "connection reset", "retryable": True, "times": 1},
    )
    ended = valk("eval", "-e", spec(tmp_path, stimulus("shaky"), stimulus("b")))
    assert ended.code == 0, ended.out
    assert [one["attempts"] for one in records(the_folder(tmp_path))] == [2, 1]


def test_suites_and_tags_choose(valk: Valk, tmp_path: Path) -> None:
    spec(
        tmp_path,
        stimulus("cheap", tags={"cost": "free"}),
        stimulus("dear", tags={"cost": "llm"}),
        file="evals/x/eval.yaml",
    )
    spec(tmp_path, stimulus("other", tags={"cost": "free"}), name="second", file="evals/y/eval.yml")
    suites = "suites: {smoke: {filter: {cost: free}}, all: {filter: {}}}\n"
    (tmp_path / ".vally.yaml").write_text(f"{suites}paths: {{results: out/}}\n")

    def ran(*flags: str) -> list[str]:
        ended = valk("eval", *flags, "--output", "jsonl")
        assert ended.code == 0, ended.err
        return [json.loads(line)["stimulus"] for line in ended.out.splitlines()]

    assert ran("--suite", "smoke") == ["cheap", "other"]
    assert ran("--suite", "all") == ["cheap", "dear", "other"]
    assert ran("--tag", "cost=llm") == ["dear"]
    assert ran("--tag", "cost=!llm") == ["cheap", "other"]
    assert ran("--suite", "all", "--tag", "cost=llm,none") == ["dear"]
    assert len([*(tmp_path / "out").iterdir()]) == 5 and not (tmp_path / "vally-results").exists()


def test_the_work_dir_is_started_from_and_never_written(valk: Valk, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "there.txt").write_text("before")
    fixture(work, "a", output="hello", files={"there.txt": "after", "new.txt": "made"})
    graders = [
        {"type": "file-contains", "config": {"path": "there.txt", "value": "after"}},
        {"type": "file-exists", "config": {"path": "new.txt"}},
        {"type": "diff-contains", "config": {"value": "+made"}},
    ]
    ended = valk(
        "eval",
        "-e",
        spec(tmp_path, stimulus("a", *graders)),
        "--work-dir",
        work,
        "--workspace",
        tmp_path / "ws",
    )
    assert ended.code == 0, ended.out
    assert (work / "there.txt").read_text() == "before" and not (work / "new.txt").exists()
    assert (tmp_path / "ws" / "main" / "a" / "there.txt").read_text() == "after"


def test_what_had_changed_after_a_turn(valk: Valk, tmp_path: Path) -> None:
    graders = [
        {"type": "diff-empty", "turn": 0},
        {"type": "diff-contains", "turn": 1, "config": {"value": "+two"}},
        {"type": "diff-not-contains", "turn": 1, "config": {"value": "+three"}},
        {"type": "diff-contains", "config": {"value": "+three", "turn": 2}},
        {"type": "diff-not-contains", "config": {"value": "+two"}},
    ]
    told = {"name": "a", "turns": ["one", "two", "three"], "graders": graders}
    turns = ["1", *({"output": "k", "files": {"x.txt": f"{word}\n"}} for word in ("two", "three"))]
    fixture(tmp_path, "a", turns=turns)
    file = spec(tmp_path, told)
    ended = valk("eval", "-e", file)
    assert ended.code == 0, ended.out
    folder = the_folder(tmp_path)
    again = valk("grade", "-e", file, "--artifact-dir", folder, stdin=(folder / "results.jsonl").read_text())
    assert again.code == 0, again.out


def test_an_eval_that_was_stopped_goes_on(valk: Valk, tmp_path: Path) -> None:
    """Whatever ended it, what has a verdict keeps it and the report is the same."""
    file = spec(tmp_path, stimulus("a"), stimulus("b", SAYS_BYE))
    said = ("--param", "WHO=you there", "--timeout", "5m", "--junit")
    assert valk("eval", "-e", file, *said).code == 1
    folder = the_folder(tmp_path)
    before = (folder / "results.jsonl").read_text()
    ended = valk("eval", "--resume", folder)
    assert ended.code == 1 and (folder / "results.jsonl").read_text() == before
    again = "--param 'WHO=you there' --timeout 300s --junit"
    assert f"\nvalk eval --eval-spec {file} {again}\n" in (folder / "eval-results.md").read_text()
    jobs = valk("job", "list", "--json").json["jobs"]
    assert len(jobs) == 1 and jobs[0]["state"] == "completed"


def test_a_tracker_is_told_of_an_eval_by_ingesting_it(
    valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKER_SERVICE_URL", "http://127.0.0.1:9")
    ended = valk("eval", "-e", spec(tmp_path, stimulus("a")))
    assert ended.code == 0 and f"`valk ingest {the_folder(tmp_path)}`" in ended.err


def test_the_document_of_json(valk: Valk, tmp_path: Path) -> None:
    ended = valk("eval", "-e", spec(tmp_path, stimulus("a")), "--json")
    assert ended.code == 0
    assert ended.json["kind"] == "eval" and ended.json["passed"] is True
    assert ended.json["evals"][0]["stimuli"][0]["passes"] == 1


def test_an_eval_plugin_turns_another_file_into_a_spec(valk: Valk, tmp_path: Path) -> None:
    (tmp_path / "foreign.txt").write_text("greet|say hello|hello\n")
    (tmp_path / "plugin.py").write_text(
        "def read_eval(path):\n"
        "    rows = [line.split('|') for line in path.read_text().splitlines()]\n"
        "    return {'name': path.stem, 'defaults': {'executor': 'mock'}, 'stimuli': [\n"
        "        {'name': n, 'prompt': p, 'graders': [\n"
        "            {'type': 'output-contains', 'config': {'substring': s}}]}\n"
        "        for n, p, s in rows]}\n"
    )
    ended = valk("eval", "-e", "foreign.txt", "--eval-plugin", "plugin.py", "--output", "jsonl")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["stimulus"] == "greet"


def test_what_other_trials_left_is_not_in_the_view_of_the_work_dir(valk: Valk, tmp_path: Path) -> None:
    """The data folder and earlier results lie below the working directory here."""
    hidden = {
        "type": "run-command",
        "config": {"command": "test -e other.txt -a ! -e home -a ! -e vally-results"},
    }
    (tmp_path / "other.txt").write_text("to be seen")
    ended = valk("eval", "-e", spec(tmp_path, stimulus("a", hidden)))
    assert ended.code == 0, ended.out


def test_nor_is_it_there_for_graders_where_nothing_runs(valk: Valk, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("to be seen")
    fixture(tmp_path, "wrote", output="done", files={"made.txt": "x"})
    unseen = ["**/eval.json", "eval.yaml", "home", "vally-results/**", "**/.mock-executor"]
    graders = [{"type": "file-not-exists", "config": {"path": path}} for path in unseen]
    graders += [{"type": "file-exists", "config": {"path": "*.txt"}}]
    graders += [{"type": "file-not-contains", "config": {"path": "**/*", "value": "file-not-exists"}}]
    file = spec(tmp_path, stimulus("a", *graders), stimulus("wrote", *graders, prompt="write it"))
    ended = valk("eval", "-e", file, "--workspace", tmp_path / "ws", "--skip-validate")
    assert ended.code == 0, ended.out
    for name, files in (("a", {"other.txt"}), ("wrote", {"other.txt", "made.txt"})):
        assert {path.name for path in (tmp_path / "ws" / "main" / name).iterdir()} == files


def test_our_words_mean_what_the_specs_mean(valk: Valk, tmp_path: Path) -> None:
    (tmp_path / "evals").mkdir()
    spec(tmp_path / "evals", stimulus("a"), stimulus("b, c"), stimulus("d"), file="greet.eval.yaml")
    words = ("--agent", "mock:gpt-x", "--task-ids", "d", "b, c", "--trials", "2", "--concurrency", "3")
    ended = valk("eval", "evals", *words)
    assert ended.code == 0, ended.err
    found = records(the_folder(tmp_path))
    assert sorted(one["stimulus"] for one in found) == ["b, c", "b, c", "d", "d"]
    assert {one["model"] for one in found} == {"gpt-x"}
    planned = valk("eval", "--benchmark", "evals", "--executor", "mock", "--model", "gpt-y", "--dry-run")
    assert planned.code == 0 and "gpt-y" in planned.out
    assert valk("agent", "init", "mine").code == 0
    planned = valk("eval", "evals", "--agent", "./mine", "--dry-run")
    assert planned.code == 0 and "mine" in planned.out, planned.err


def test_every_trial_is_told_of_while_others_write_to_the_same_store(
    valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = itertools.count()  # another process commits before every look for work
    monkeypatch.setattr(leases, "data_version", lambda _connection: next(written))
    file = spec(tmp_path, *(stimulus(f"s{number}") for number in range(60)))
    ended = valk("eval", "-e", file, "--output", "jsonl", "--output-dir", "out", "--workers", "20")
    told = [json.loads(line)["stimulus"] for line in ended.out.splitlines()]
    assert (ended.code, told) == (0, [f"s{number}" for number in range(60)])


def test_an_eval_that_is_killed_leaves_the_records_of_what_had_ended(
    valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_words: object, **_more: object) -> None:
        raise KeyboardInterrupt

    file = spec(tmp_path, stimulus("a"), stimulus("b/c", SAYS_BYE))
    with monkeypatch.context() as patched:
        patched.setattr(eval_cli, "write_all", killed)
        assert valk("eval", "-e", file, "--runs", "2").code == 130
    folder = the_folder(tmp_path)
    left = records(folder)
    assert not (folder / "eval-results.md").exists()
    assert {(one["stimulus"], one["trialIndex"]) for one in left} == {
        ("a", 0),
        ("a", 1),
        ("b/c", 0),
        ("b/c", 1),
    }
    assert all((folder / one["sessionLog"]).exists() for one in left)
    assert valk("eval", "--resume").code == 1
    assert sorted(map(str, records(folder))) == sorted(map(str, left))


def test_an_experiment_that_is_killed_leaves_records_by_variant(
    valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec(tmp_path, stimulus("a"))
    plan = {
        "name": "two",
        "evals": ["eval.yaml"],
        "vary": ["/defaults/model"],
        "baseline": "x",
        "variants": {one: {"overrides": {"model": one}} for one in ("x", "y")},
    }
    (tmp_path / "experiment.yaml").write_text(json.dumps(plan))

    def killed(*_words: object, **_more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment_cli, "write_experiment", killed)
    assert valk("experiment", "run", "experiment.yaml").code == 130
    folder = the_folder(tmp_path, "vally-experiment-results")
    assert [[one["variant"] for one in records(folder / name)] for name in ("x", "y")] == [["x"], ["y"]]
