"""What graders are made of: JSON queries, patches, programs, loops, bounded reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.grade.sample_transcripts import Bench, called, outcome, result_of, said, story
from valkyrie.grade import base
from valkyrie.grade.builtin.json_values import JsonQuery, QueryError
from valkyrie.grade.builtin.usage import most_repeats
from valkyrie.grade.builtin.workspace import changes_of
from valkyrie.grade.protocol import ProgramResult
from valkyrie.specs.model import GraderSpec, SourceLocation

STORE = {"shop": {"books": [{"t": "a", "p": 1}, {"t": "b", "p": 2}, {"t": "c"}], "x.y": 5, "q'": 6, "p": 9}}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("$", [STORE]),
        ("$.shop.books[0].t", ["a"]),
        ("$.shop.books[-1].t", ["c"]),
        ("$.shop.books[5]", []),
        ("$.shop.books[*].t", ["a", "b", "c"]),
        ("$.shop.books.*.p", [1, 2]),
        ("$.shop.books[0:2].p", [1, 2]),
        ("$.shop.books[::2].t", ["a", "c"]),
        ("$.shop.books[::-1].t", ["c", "b", "a"]),
        ("$.shop.books[0,2].t", ["a", "c"]),
        ("$['shop']['x.y']", [5]),
        ('$["shop"]["x.y"]', [5]),
        ("$.shop['q\\'']", [6]),
        ("$.shop['x.y','p']", [5, 9]),
        ("$..p", [9, 1, 2]),
        ("$..books[1].p", [2]),
        ("$..[0].t", ["a"]),
        (" $.shop.p ", [9]),
        ("$.shop.nothing.more", []),
    ],
)
def test_query(query: str, expected: list[Any]) -> None:
    assert JsonQuery(query).find(STORE) == expected


@pytest.mark.parametrize(
    "query", ["", "a", "$.", "$[", "$['a'", "$x", "$.a[b]", "$[?@.a]", "$.a..", "$ .a", "$.[0]"]
)
def test_no_query(query: str) -> None:
    with pytest.raises(QueryError):
        JsonQuery(query)


@given(
    st.recursive(st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_everything_is_below_the_top(document: Any) -> None:
    found = JsonQuery("$..*").find(document)
    assert len(found) == sum(json.dumps(document).count(sign) for sign in ",") + _filled(document)


def _filled(node: Any) -> int:
    """Lists and maps with something in them: each has one item more than commas."""
    if not isinstance(node, dict | list) or not node:
        return 0
    texts = sum(str(key).count(",") for key in node) if isinstance(node, dict) else 0
    inner = node.values() if isinstance(node, dict) else node
    return 1 - texts + sum(_filled(one) for one in inner)


def test_a_patch_is_its_changes() -> None:
    patch = (
        "diff --git a/old.py b/new.py\nsimilarity index 90%\nrename from old.py\nrename to new.py\n"
        "index 1..2\n--- a/old.py\n+++ b/new.py\n@@ -1,2 +1,2 @@ def f():\n--- a list\n++++ more\n same\n"
        "\\ No newline at end of file\n"
        "diff --git a/bin b/bin\nnew file mode 100755\nBinary files /dev/null and b/bin differ\n"
        "--- a/gone.txt\t2020-01-01\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n"
    )
    found = changes_of(patch)
    assert {path: change.lines for path, change in found.items()} == {
        "new.py": ("--- a list", "++++ more"),
        "bin": (),
        "gone.txt": ("-bye",),
    }
    assert found["new.py"].notes == {"rename from", "rename to"}
    assert found["bin"].notes == {"new", "binary"}


@given(st.text(alphabet="+-@ ab/\ndif", max_size=80))
def test_any_text_can_be_read_as_a_patch(text: str) -> None:
    changes_of(text)


@given(st.lists(st.sampled_from("ab"), max_size=12), st.integers(1, 4))
def test_repeats_by_counting(calls: list[str], longest: int) -> None:
    repeats, _ = most_repeats(calls, longest)
    best = 1 if calls else 0
    for period in range(1, longest + 1):
        for start in range(len(calls)):
            block, count = calls[start : start + period], 1
            while len(block) == period and calls[start + count * period :][:period] == block:
                count += 1
            best = max(best, count)
    assert repeats == best


async def test_what_a_command_and_a_program_are_run_as() -> None:
    bench = Bench(ProgramResult(0, "", ""))
    happened = story(called("bash", command="ls"), said("done"))
    env = {"env": {"LEVEL": 3, "ON": True}, "sub_path": "./src/", "timeout": "90s"}
    for spec in (
        GraderSpec("run-command", {"command": "make test", **env}),
        GraderSpec("run-command", {"command": "make", "args": []}),
        GraderSpec("run-command", {"command": "make", "args": ["-j", 2]}),
        GraderSpec("program", {"program": "check", "args": ["a b"]}),
        GraderSpec("program", {"program": "check | tee x", "args": ["y"], "shell": True}),
    ):
        await result_of(spec, happened, bench=bench, diff="+x")
    assert [tuple(program.argv) for program in bench.programs] == [
        ("/bin/sh", "-c", "make test"),
        ("make",),
        ("make", "-j", "2"),
        ("check", "a b"),
        ("/bin/sh", "-c", "check | tee x y"),
    ]
    first, program = bench.programs[0], bench.programs[3]
    assert (first.sub_path, first.timeout, dict(first.env)) == ("src", 90.0, {"LEVEL": "3", "ON": "true"})
    assert (first.input, program.timeout) == (None, 60.0)
    told = json.loads(program.input or b"")
    assert told["stimulus"]["prompt"] == "do it"
    assert told["config"] == {"program": "check", "args": ["a b"]}
    assert told["trajectory"]["output"] == "done"
    assert told["trajectory"]["events"][0]["data"]["arguments"] == {"command": "ls"}
    assert told["diff"] == "+x"


async def test_a_program_gives_partial_credit() -> None:
    report = {"passed": False, "score": 0.25, "evidence": "1 of 4", "details": [{"case": 1}, "two"]}
    bench = Bench(ProgramResult(0, json.dumps(report), ""))
    found = await result_of(GraderSpec("program", {"program": "x"}), story(), bench=bench)
    assert (found.passed, found.score, found.evidence) == (False, 0.25, "1 of 4")
    assert found.details == [{"case": 1}, {"value": "two"}]


async def test_files_of_the_author_are_beside_the_spec(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "array"}')
    (tmp_path / "fix.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    place = SourceLocation(tmp_path / "eval.yaml", 3, 5)
    schema = GraderSpec("json-schema", {"schema": "schema.json"}, place=place)
    assert outcome(await result_of(schema, story(said("[]")))) == "pass"
    assert outcome(await result_of(schema, story(said("{}")))) == "fail"
    expected = GraderSpec("expected-diff", {"file": "fix.patch"}, place=place)
    diff = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -9,3 +9,3 @@\n c\n-a\n+b\n d\n"
    assert outcome(await result_of(expected, story(), diff=diff)) == "pass"


async def test_large_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MOST_BYTES", 10)
    (tmp_path / "big").write_text("x" * 11)
    for name in ("file-contains", "file-not-contains"):
        spec = GraderSpec(name, {"path": "big", "value": "x"})
        found = await result_of(spec, story(), workspace=tmp_path)
        assert outcome(found) == "fail"
        assert found.evidence.startswith("cannot tell: big: it is too large")


async def test_evidence_is_bounded() -> None:
    long = GraderSpec("output-contains", {"value": "y"})
    found = await result_of(long, story(said("x" * 100_000)))
    assert len(found.evidence) < 2100
