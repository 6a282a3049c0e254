"""The catalogue: every benchmark of the seed by every name people have for it."""

from __future__ import annotations

import re

import pytest

from valkyrie.benchmarks.named.catalog import catalog, converter_of, find, suggestion


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("SWE-bench Verified", "swe-bench-verified"),
        ("princeton-nlp/SWE-bench_Verified", "swe-bench-verified"),
        ("Laude Institute/Terminal-Bench-2.0", "terminal-bench-2"),
        ("Terminal-Bench 2.0", "terminal-bench-2"),
        ("ScaleAI/SWE-Bench Pro", "swe-bench-pro"),
        ("AIME", "aime"),
        ("ARC-AGI-2", "arc-agi-2"),
        ("bigcodebench", "bigcodebench"),
        ("BigCodeBench-Hard (instruct)", "bigcodebench-hard-instruct"),
        ("BigCodeBench-Hard (Complete)", "bigcodebench-hard-complete"),
        ("ReplicationBench", "replicationbench"),
        ("Replication Bench", "replicationbench"),
        ("GPQA Diamond", "gpqa-diamond"),
        ("gpqa_diamond", "gpqa-diamond"),
        ("Aider/Polyglot", "aider-polyglot"),
        ("openai/gsm8k", "gsm8k"),
        ("Human-Eval", "humaneval"),
    ],
)
def test_names_people_write(written: str, name: str) -> None:
    found = find(written)
    assert found is not None and found.name == name


def test_other_names_mean_nothing() -> None:
    assert find("quickstart") is None
    assert find("--- /") is None
    assert find("") is None
    assert "'aime'" in suggestion("amie")


def test_every_entry_is_whole() -> None:
    for entry in catalog():
        assert re.fullmatch("[a-z0-9-]+", entry.name)
        assert entry.tasks > 0 and entry.licence and entry.bring and entry.published, entry.name
        if entry.kind == "tasks":
            assert re.fullmatch("[0-9a-f]{40}", entry.commit), f"{entry.name} is not pinned"
        else:
            assert callable(converter_of(entry)), entry.name


def test_known_bad_ids_are_data() -> None:
    pro, verified = find("swe-bench-pro"), find("swe-bench-verified")
    assert pro and verified
    assert "network" in (verified.why_bad("psf__requests-1724") or "")
    assert verified.why_bad("psf__requests-1000") is None
    bad = "instance_NodeBB__NodeBB-00c70ce7b0541cfc94afe567921d7668cdc8f4ac-vnan"
    assert pro.why_bad(bad) == pro.why_bad(bad.lower()) != None  # noqa: E711 - three at once
