"""Parts of an experiment that run apart, named runs, and what their files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.evals.commands import Valk, valk
from tests.integration.evals.test_eval_command import SAYS_BYE, records, spec, stimulus
from tests.integration.evals.test_experiment import experiment

__all__ = ["experiment", "valk"]


def shard(valk: Valk, file: Path, which: str, *more: str) -> Path:
    words = ("--shard", which, "--run-id", "r1", "--output-dir", "out", "--no-require-pass", *more)
    ended = valk("experiment", "run", file, *words)
    assert ended.code == 0, ended.out + ended.err
    number, count = which.split("/")
    return Path("out", "r1", f"shard-{number}-of-{count}")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_shards_of_an_experiment_are_merged_to_the_whole(valk: Valk, experiment: Path) -> None:
    folders = [shard(valk, experiment, f"{number}/2") for number in (1, 2)]
    about = [read(folder / "shard-manifest.json") for folder in folders]
    assert len({one["planDigest"] for one in about}) == 1
    assert all(sorted(one["selectedShardKeys"]) == sorted(one["completedShardKeys"]) for one in about)
    keys = [key for one in about for key in one["selectedShardKeys"]]
    assert len(keys) == len(set(keys)) == 16
    assert "evals/a/eval.yaml::muted::default::s0::trial-0" in keys
    plan = read(folders[0] / "plan-snapshot.json")
    assert [one["plannedStimulusCount"] for one in plan["evals"]] == [4, 4, 4, 4]
    assert read(folders[0] / "experiment-manifest.json")["experiment"]["baseline"] == "muted"
    found = [record for folder in folders for record in records(folder / "spoken")]
    assert {record["runId"] for record in found} == {"r1"}
    assert all(record["shardKey"] == record["itemId"] in keys for record in found)
    assert all(record["experiment"]["runId"] == "r1" for record in found)

    merged = valk("experiment", "merge", *folders, "--output-dir", "all", "--json")
    assert merged.code == 0, merged.err
    whole = valk("experiment", "run", experiment, "--no-require-pass", "--json")
    one, other = (json.loads(said.out.splitlines()[0]) for said in (merged, whole))
    assert one["sentences"] == other["sentences"]
    assert valk("experiment", "merge", *folders, "--output-dir", "all", "--require-pass").code == 1


def test_what_cannot_be_merged(valk: Valk, experiment: Path) -> None:
    first, second = (shard(valk, experiment, f"{number}/2") for number in (1, 2))

    def refused(*words: object) -> str:
        ended = valk("experiment", "merge", *words)
        assert ended.code in (1, 2), ended.out
        return ended.err

    assert "Shards are missing: 2/2" in refused(first)
    assert "lies in" in refused(first, second, "--output-dir", first / "x")
    manifest = read(second / "shard-manifest.json")
    (second / "shard-manifest.json").write_text(json.dumps({**manifest, "completedShardKeys": []}))
    assert "is not complete" in refused(first, second)
    (second / "shard-manifest.json").write_text(json.dumps({**manifest, "planDigest": "other"}))
    assert "not of the same plan" in refused(first, second)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shard", "1/2"], "--shard needs --run-id"),
        (["--shard", "3/2", "--run-id", "r"], "like 1/4"),
        (["--shard", "1/2", "--run-id", "../x"], "--run-id"),
        (["--shard", "9/9", "--run-id", "r"], "Use fewer shards"),
        (["--eval-filter", "evals/c"], "It has evals/a/eval.yaml, evals/b/eval.yaml"),
    ],
)
def test_what_is_no_shard(valk: Valk, experiment: Path, words: list[str], said: str) -> None:
    ended = valk("experiment", "run", experiment, *words, "--dry-run")
    assert ended.code == 2 and said in ended.err, ended.err


@pytest.mark.parametrize("pattern", ["evals/a/eval.yaml", "evals/a", "*/a/*", "x/evals/a"])
def test_only_some_evals(valk: Valk, experiment: Path, pattern: str) -> None:
    said = valk("experiment", "run", experiment, "--eval-filter", pattern, "--dry-run", "--json")
    assert {one["eval"] for one in said.json["evals"]} == {"a"}, said.out


def test_an_experiments_folder_is_compared_and_gated(valk: Valk, experiment: Path) -> None:
    text = experiment.read_text().replace("baseline: muted", "baseline: spoken")
    experiment.write_text(text)
    words = ("--run-id", "r", "--output-dir", "out", "--no-require-pass")
    assert valk("experiment", "run", experiment, *words).code == 0
    assert valk("compare", "out/r").code == 0
    gated = valk("compare", "out/r", "--fail-on-regression")
    assert gated.code == 1 and "Gate:" in gated.out, gated.out
    both = valk("compare", "--baseline", "out/r/muted", "--treatment", "out/r/spoken", "--fail-on-regression")
    assert both.code == 0, both.out


def test_a_named_run(valk: Valk, tmp_path: Path) -> None:
    file = spec(tmp_path, stimulus("a"), stimulus("b", SAYS_BYE))
    first = valk("eval", "agent", "-e", file, "--run-id", "nightly-7", "--no-require-pass")
    assert first.code == 0, first.err
    folder = tmp_path / "vally-results" / "nightly-7"
    assert [record["runId"] for record in records(folder)] == ["nightly-7"] * 2
    assert [record["evalName"] for record in records(folder)] == ["mine"] * 2
    (summary,) = map(json.loads, (folder / "run-summary.jsonl").read_text().splitlines())
    assert (summary["runId"], summary["passed"], summary["hadExecutionErrors"]) == ("nightly-7", False, False)
    assert summary["evals"][0]["stimuliRun"] == 2
    about = read(folder / "executor-session-logs" / "mine" / "default" / "a" / "trial-0" / "metadata.json")
    assert about["trialId"] == records(folder)[0]["itemId"]
    again = valk("eval", "-e", file, "--run-id", "nightly-7")
    assert again.code == 2 and "--resume" in again.err


def test_a_parameter_with_a_default_may_be_a_number(valk: Valk, tmp_path: Path) -> None:
    file = tmp_path / "eval.yaml"
    file.write_text(
        "name: p\ndefaults:\n  executor: mock\n  runs: ${RUNS=2}\nstimuli:\n  - name: a\n"
        "    prompt: say ${WORD=hello}\n    graders: [{type: output-contains, config: {substring: hello}}]\n"
    )
    assert len(valk("eval", "-e", file, "--output", "jsonl").out.splitlines()) == 2
    ended = valk("eval", "-e", file, "--output", "jsonl", "--param", "RUNS=1", "--param", "WORD=goodbye")
    assert len(ended.out.splitlines()) == 1 and ended.code == 1
