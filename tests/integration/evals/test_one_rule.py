"""One rule for errors: the same trials give the same score, interval and sentence wherever they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.evals.commands import Valk
from tests.integration.evals.commands import valk as valk
from tests.integration.evals.test_eval_command import SAYS_HELLO, fixture, records, spec, stimulus, the_folder

NAMES = [f"s{number}" for number in range(8)]
Json = dict[str, Any]


def ran(valk: Valk, tmp_path: Path, name: str, late: int, lost: int = 0, *, families: bool = False) -> Json:
    """Run the eval `answers` for an agent that times out on so many stimuli and fails to be run on others."""
    place = tmp_path / f"spec-{name}"
    place.mkdir()
    tags = [{"family": f"f{number // 2}"} if families else {} for number in range(len(NAMES))]
    stimuli = [stimulus(one, SAYS_HELLO, tags=own) for one, own in zip(NAMES, tags, strict=True)]
    file = spec(place, *stimuli, name="answers")
    for one in NAMES[:late]:
        fixture(place, one, output="hello", delay=60)
    for one in NAMES[len(NAMES) - lost :]:
        fixture(place, one, error={"message": "connection reset", "retryable": True, "times": 99})
    words = ("--timeout", "3s", "--max-retries", "0", "--name", name, "--output-dir", f"out-{name}")
    said = valk("eval", "-e", file, "--model", name, *words)
    assert said.code == (1 if late or lost else 0), said.out + said.err
    return {"text": " ".join(said.out.split()), "folder": the_folder(tmp_path, f"out-{name}")}


def run_ids(valk: Valk) -> Iterator[str]:
    """The ids of all runs of the store, the first one first."""
    yield from (run["id"] for run in valk("run", "list", "--order-by", "asc", "--json").json["runs"])


def numbers(document: Json) -> Json:
    """Scores, intervals and the sentence of a comparison of two, whatever the two are called."""
    found = document.get("paired", document)
    (one,) = found["comparisons"]
    sentence = one["sentence"].replace(one["a"], "A").replace(one["b"], "B")
    agents = [
        (agent["scores"]["infrastructure_excluded"], agent["score_low"], agent["score_high"])
        for agent in found["agents"]
    ]
    names = ("difference", "interval", "p_value", "verdict", "a_lacks", "b_lacks", "excluded", "limits")
    return {"agents": agents, "sentence": sentence, **{name: one[name] for name in names}}


@pytest.mark.parametrize(
    ("lost", "families"),
    [
        pytest.param(0, False, marks=pytest.mark.slow),
        pytest.param(2, False, marks=pytest.mark.slow),
        (2, True),
    ],
)
def test_the_same_trials_say_the_same_everywhere(
    valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, families: bool
) -> None:
    fast = ran(valk, tmp_path, "fast", 0, families=families)
    slow = ran(valk, tmp_path, "slow", 4, lost, families=families)
    ids = list(run_ids(valk))
    own = [valk("run", "fetch", one, "--json").json["run"]["score"] for one in ids]
    of_runs = valk("compare", *ids, "--json")
    expected = numbers(of_runs.json)
    assert ("families" in expected["agents"][0][0]["method"]) is families
    assert [agent[0]["mean"] for agent in expected["agents"]] == [1.0, 4 / 8 if not lost else 2 / 6]
    assert [score["score_graded"] for score in own] == [agent[0]["mean"] for agent in expected["agents"]]
    assert [score["interval"] for score in own] == [agent[0]["interval"] for agent in expected["agents"]]
    assert all(score["final_interval"] for score in own)

    said = "score 50.0% (" if not lost else "score 25.0% to 50.0%, depending on 2 ungraded trials"
    assert said in slow["text"], slow["text"]
    assert "4 errors by the agent's own doing count 0" in slow["text"]
    assert [one["attempts"] for one in records(slow["folder"])] == [1] * 8, "nobody tries again"

    assert numbers(valk("compare", "fast", "slow", "--json").json) == expected, "jobs"
    folders = valk("compare", fast["folder"], slow["folder"], "--json")
    assert numbers(folders.json) == expected, "folders"

    exported = []
    for one in ids:
        valk("export", one, "--exporter", "jsonl", "--output-dir", tmp_path / "exports" / one)
        exported.append(tmp_path / "exports" / one)
    assert numbers(valk("compare", *exported, "--json").json) == expected, "exports"

    for source in ((fast["folder"], slow["folder"]), exported):
        monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / f"home-{source[0].name}"))
        for folder in source:
            assert valk("ingest", folder).code == 0
        again = list(run_ids(valk))
        assert numbers(valk("compare", *again, "--json").json) == expected, "ingested"
        stored = [valk("run", "fetch", one, "--json").json["run"]["score"] for one in again]
        for before, after in zip(own, stored, strict=True):
            for name in ("final_score", "score_graded", "interval", "final_interval", "score_low"):
                assert before[name] == after[name], name


def test_a_gate_sees_what_an_agent_did_not_finish(valk: Valk, tmp_path: Path) -> None:
    fast, slow = ran(valk, tmp_path, "fast", 0), ran(valk, tmp_path, "slow", 4)
    for words in ((fast["folder"], slow["folder"]), tuple(run_ids(valk)), ("fast", "slow")):
        said = valk("compare", *words, "--fail-if-worse", "--json")
        assert said.code == 1 and "is worse than" in said.json["gate"]["failures"][0], words
        said = valk("compare", *words, "--no-worse-than", "2%", "--json")
        assert said.code == 1, words
        back = valk("compare", *reversed(words), "--no-worse-than", "2%", "--json")
        assert (back.code, back.json["gate"]["outcome"]) == (0, "no worse"), words


@pytest.mark.slow
def test_going_on_gives_no_second_try_to_what_the_agent_ended(valk: Valk, tmp_path: Path) -> None:
    slow = ran(valk, tmp_path, "slow", 1, lost=1)
    assert "Go on with what is missing" in slow["text"]
    again = valk("eval", "--resume", "slow")
    assert again.code == 1
    found = {one["stimulus"]: one for one in records(slow["folder"])}
    assert (found["s0"]["attempts"], found["s7"]["attempts"]) == (1, 2)
    assert json.dumps(found["s0"]["fault"]["cause"]) == '"agent_timeout"'


@pytest.mark.slow
def test_nothing_is_missing_where_all_ended_by_the_agents_doing(valk: Valk, tmp_path: Path) -> None:
    assert "Go on with what is missing" not in ran(valk, tmp_path, "slow", 1)["text"]
