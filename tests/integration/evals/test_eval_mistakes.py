"""What people get wrong with `valk eval`, interrupt or change under it: what it says, and what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.evals.commands import Valk
from tests.integration.evals.commands import valk as valk
from tests.integration.evals.test_eval_command import fixture, records, spec, stimulus, the_folder

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = [sys.executable, "-c", "import sys; from valkyrie.cli.main import main; sys.exit(main())"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-e", "eval.yml"], "Did you mean 'eval.yaml'?"),
        (["-e", ".."], "is a folder that holds no eval spec"),
        (["-e", "-"], "not read from stdin"),
        (["eval.yaml", "--task-ids", "odds"], "no stimulus is called 'odds'."),
        (["eval.yaml", "--agent", "./no-such-agent"], "nothing is there"),
        (["--timeout", "5", "-e", "eval.yaml"], "'--timeout': '5' is not a duration"),
        (["-e", "eval.yaml", "--tag", "teir=smoke"], "Tags they have: tier. Did you mean 'tier'?"),
        (["-e", "eval.yaml", "--tag", "tier=smok"], "Values of tier: smoke. Did you mean 'smoke'?"),
        (["-e", "eval.yaml", "--workspace", "eval.yaml"], "this is a file; name a folder"),
        (["-e", "eval.yaml", "--output-dir", "eval.yaml"], "this is a file; name a folder"),
        (["-e", "eval.yaml", "--skill-dir", "skills"], "skills/one/SKILL.md:1:1: "),
        (["--tag", "tier=smoke"], "`paths.evals` of .vally.yaml says where they are"),
        (["--resume", "."], "holds the eval.json of an eval"),
    ],
)
def test_a_mistake_is_named_with_the_way_out(valk: Valk, tmp_path: Path, words: list[str], said: str) -> None:
    spec(tmp_path, stimulus("a", tags={"tier": "smoke"}))
    (tmp_path / "skills" / "one").mkdir(parents=True)
    (tmp_path / "skills" / "one" / "SKILL.md").write_text("no frontmatter\n")
    ended = valk("eval", *words)
    assert ended.code == 2
    assert said in ended.err, ended.err
    assert not (tmp_path / "vally-results").exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nam": "a", "prompt": "x"}, "has no `name`. `nam` looks like it."),
        ({"name": "a", "promt": "x"}, "has no `prompt` (or `turns`). `promt` looks like it."),
        (
            {
                "name": "a",
                "prompt": "x",
                "graders": [{"type": "output-contains", "config": {"substrng": "x"}}],
            },
            "`substring` is missing. `substrng` looks like it.",
        ),
    ],
)
def test_a_misspelt_key_is_found_beside_the_missing_one(
    valk: Valk, tmp_path: Path, wrong: dict[str, object], said: str
) -> None:
    ended = valk("eval", "-e", spec(tmp_path, {"graders": [{"type": "completed"}], **wrong}))
    assert ended.code == 2 and said in ended.err, ended.err


def test_all_that_is_wrong_is_said_at_once(valk: Valk, tmp_path: Path) -> None:
    late = stimulus("a", {"type": "wall-time", "config": {"max": 5}}, timeout=600)
    bare = stimulus("b", environment={"files": [{"src": "gone.txt", "dest": "x"}], "skills": ["nowhere"]})
    ended = valk("eval", "-e", spec(tmp_path, late, bare))
    assert ended.code == 2
    for said in ("`timeout` is 600 without a unit", "`max` is 5;", "'gone.txt' is not there", "nowhere"):
        assert ended.err.count(said) == 1, ended.err


def test_resume_takes_the_output_folder_for_the_newest_eval_in_it(valk: Valk, tmp_path: Path) -> None:
    file = spec(tmp_path, stimulus("a"))
    assert valk("eval", "-e", file, "--name", "first").code == 0
    assert valk("eval", "-e", file, "--name", "second").code == 0
    ended = valk("eval", "--resume", "vally-results", "--json")
    assert ended.code == 0 and ended.json["name"] == "second"


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ([stimulus("a"), stimulus("c")], "b, c"),
        ([stimulus("a"), stimulus("b", runs=2)], "began with: b"),
        ([stimulus("a")], "began with: b"),
    ],
)
def test_a_spec_with_other_stimuli_is_not_gone_on_with(
    valk: Valk, tmp_path: Path, now: list[dict[str, object]], said: str
) -> None:
    file = spec(tmp_path, stimulus("a"), stimulus("b"))
    assert valk("eval", "-e", file).code == 0
    spec(tmp_path, *now)
    ended = valk("eval", "--resume")
    assert ended.code == 1 and said in ended.err, ended.err
    assert "a bug" not in ended.err


def test_deleted_runs_are_said_to_be_gone(valk: Valk, tmp_path: Path) -> None:
    assert valk("eval", "-e", spec(tmp_path, stimulus("a"))).code == 0
    run = valk("run", "list", "--json").json["runs"][0]["id"]
    assert valk("run", "delete", run, "--yes").code == 0
    ended = valk("eval", "--resume")
    assert ended.code == 1 and "runs were deleted" in ended.err


def test_an_evals_job_goes_on_as_an_eval(valk: Valk, tmp_path: Path) -> None:
    assert valk("eval", "-e", spec(tmp_path, stimulus("a"))).code == 0
    job = json.loads((the_folder(tmp_path) / "eval.json").read_text())["id"]
    ended = valk("job", "resume", job)
    assert ended.code == 1 and f"`valk eval --resume {job[:8]}` goes on" in ended.err


@pytest.fixture
def beside(valk: Valk, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An eval in another process, under way until it is ended."""
    file = spec(tmp_path, stimulus("a"), stimulus("late"))
    fixture(tmp_path, "late", delay=100)
    eval_there = [*PROGRAM, "eval", "-e", str(file), "--shutdown-timeout", "1s"]
    process = subprocess.Popen(eval_there, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_others_leave_an_eval_alone_while_it_runs(
    valk: Valk, beside: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    run = _with_one_ended(valk, beside)
    for verb in ("resume", "retry"):
        ended = valk("run", verb, run)
        assert ended.code == 1 and "An eval is at work on run" in ended.err, ended
    beside.terminate()
    assert beside.wait(60) == 130
    assert [line["stimulus"] for line in records(the_folder(tmp_path))] == ["a"]


def _with_one_ended(valk: Valk, process: subprocess.Popen[bytes]) -> str:
    """The run of the eval beside this one, once its first trial has a verdict."""
    for _ in range(300):
        assert process.poll() is None, process.communicate()
        runs = valk("run", "list", "--json")
        if runs.code == 0 and runs.json["runs"] and runs.json["runs"][0]["counts"].get("FINISHED"):
            return str(runs.json["runs"][0]["id"])
        time.sleep(0.1)
    raise AssertionError("the eval did not begin")


@pytest.mark.parametrize("flags", [[], ["--output", "jsonl"]])
def test_a_reader_that_leaves_ends_nothing(valk: Valk, tmp_path: Path, flags: list[str]) -> None:
    """`| head -1`: everything is run and written, and nobody is shown a traceback."""
    file = spec(tmp_path, *(stimulus(f"s{number}") for number in range(30)))
    reading, writing = os.pipe()
    os.close(reading)
    command = [*PROGRAM, "eval", "-e", str(file), *flags]
    done = subprocess.run(
        command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert done.returncode == 0 and "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
    assert len((the_folder(tmp_path) / "results.jsonl").read_text().splitlines()) == 30
