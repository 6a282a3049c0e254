"""`benchmark add`, `list --available` and `remove`, as typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.command_result import CommandResult

Valk = Callable[..., CommandResult]


@pytest.fixture
def records(tmp_path: Path) -> str:
    rows = [{"id": n, "problem": f"What is {n}?", "answer": str(n)} for n in range(3)]
    (tmp_path / "aime.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "aime.jsonl"


def test_add_says_what_came_of_it(valk: Valk, records: str) -> None:
    said = valk("benchmark", "add", "AIME", "--from", records, "--limit", "2")
    assert said.code == 0
    assert "Added aime  2 tasks" in said.out and "From aime.jsonl" in said.out
    assert "licence" in said.err
    assert "Already there: aime" in valk("benchmark", "add", "aime", "--from", records, "--limit", "2").out
    again = valk("benchmark", "add", "aime", "--from", records)
    assert again.code == 2 and "--overwrite" in again.err
    document = json.loads(valk("benchmark", "add", "aime", "--from", records, "--overwrite", "--json").out)
    assert (document["kind"], document["tasks"], document["changed"]) == ("benchmark_added", 3, True)
    assert Path(document["folder"]).is_dir()


def test_available_names_all_and_what_was_added(valk: Valk, records: str) -> None:
    valk("benchmark", "add", "aime", "--from", records)
    said = valk("benchmark", "list", "--available")
    assert "3 of 60" in said.out and "terminal-bench-2" in said.out
    listed = json.loads(valk("benchmark", "list", "--available", "--json").out)["benchmarks"]
    assert [one["name"] for one in listed if one["added"]] == ["aime"]
    assert all(one["licence"] for one in listed)


def test_remove(valk: Valk, records: str) -> None:
    valk("benchmark", "add", "aime", "--from", records)
    assert valk("benchmark", "remove", "AIME").out == "Removed aime\n"
    assert valk("benchmark", "remove", "aime").code == 2
    assert "cannot be removed" in valk("benchmark", "remove", "quickstart").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("aime",), "needs --from"),
        (("aime", "--from", "none.jsonl"), "no such file or folder"),
        (("aime", "--from", "aime.jsonl", "--task-ids", ","), "names no task"),
        (("aime", "--from", "aime.jsonl", "--limit", "0"), "--limit"),
        (("Amie", "--from", "aime.jsonl"), "Did you mean 'aime'"),
        (("aimee",), "Did you mean 'aime'"),
        (("quickstart", "--from", "aime.jsonl"), "comes with the program"),
        (("gsm8k", "--from", "aime.jsonl"), "aime.jsonl line 1: the record has no field 'question'"),
    ],
)
def test_mistakes_are_usage(valk: Valk, records: str, words: tuple[str, ...], said: str) -> None:
    answer = valk("benchmark", "add", *words)
    assert answer.code == 2 and said in answer.err


def test_a_tracker_elsewhere_has_its_own(valk: Valk, records: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKER_SERVICE_URL", "http://127.0.0.1:9")
    said = valk("benchmark", "add", "aime", "--from", records)
    assert "The tracker at http://127.0.0.1:9 looks in its own data folder" in said.err
