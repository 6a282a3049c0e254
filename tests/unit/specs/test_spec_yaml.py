"""YAML with places: what is taken, what is refused, and that no text at all breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from valkyrie.specs.model import SpecError
from valkyrie.specs.reader import read_text
from valkyrie.specs.yaml_nodes import MAX_BYTES, load_yaml, parse_yaml

FILE = Path("eval.yaml")


def data(text: str) -> Any:
    return parse_yaml(text, FILE).data()


def fault(text: str) -> tuple[str, int, int]:
    with pytest.raises(SpecError) as caught:
        parse_yaml(text, FILE)
    (finding,) = caught.value.findings
    assert finding.place is not None
    return finding.message, finding.place.line, finding.place.column


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("True", True),
        ("2026-01-15", "2026-01-15"),
        ("1:30", "1:30"),
        ("012", 12),
        ("0x1F", 31),
        ("0o17", 15),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("~", None),
        ("", None),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("!!float 5", 5),
    ],
)
def test_scalars_are_those_of_yaml_1_2(written: str, meant: object) -> None:
    found = data(f"a: {written}")["a"]
    assert found == meant
    assert type(found) is type(meant)


def test_merge_keys_give_way_to_what_is_written() -> None:
    text = "base: &b {x: 1, y: 1}\nother: &o {y: 2, z: 2}\na:\n  <<: [*b, *o]\n  x: 0\n"
    assert data(text)["a"] == {"x": 0, "y": 1, "z": 2}


def test_an_anchor_may_be_used_again() -> None:
    assert data("a: &x 1\nb: *x\nc: &x 2\nd: *x") == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_places_are_those_of_keys_and_values() -> None:
    node = parse_yaml("a:\n  - b: é\n    ccc: [1,  2]\n", FILE)
    inner = (node.get("a") or node).items
    assert inner is not None
    assert (inner[0].keys["ccc"].line, inner[0].keys["ccc"].column) == (3, 5)
    numbers = (inner[0].get("ccc") or node).items
    assert numbers is not None
    assert (numbers[1].place.line, numbers[1].place.column) == (3, 15)


@pytest.mark.parametrize(
    ("text", "words", "line", "column"),
    [
        ("a: 1\nb: 2\na: 3", "`a` is given twice (first at 1:1)", 3, 1),
        ("a:\n  b: 1\n  'b': 2", "`b` is given twice (first at 2:3)", 3, 3),
        ("1: x", "put it in quotes", 1, 1),
        ("true: x", "put it in quotes", 1, 1),
        ("? [a]\n: b", "must be plain text", 1, 3),
        ("a: *b", "no `&b` above", 1, 4),
        ("a: &a [1, *a]", "refers to itself", 1, 11),
        ("a: 1\n---\nb: 2", "One document", 2, 1),
        ("a: b: c", "in quotes or in a block", 1, 5),
        ("a:\n\t- b", "Indent with spaces", 2, 1),
        ("a: {b: ${c}}", "in quotes", 1, 9),
        ("a: !ruby x", "`!ruby`", 1, 4),
        ("a: !!int x", "does not fit", 1, 4),
        ("<<: 3", "takes a map", 1, 1),
        ("[" * 5000, "deep", 1, 66),
    ],
)
def test_what_is_refused_has_its_place(text: str, words: str, line: int, column: int) -> None:
    message, *place = fault(text)
    assert words in message
    assert place == [line, column]


def test_a_small_text_cannot_stand_for_a_huge_one() -> None:
    levels = ["a0: &a0 [" + ",".join("x" * 10) + "]"]
    levels += [f"a{n}: &a{n} [" + ",".join([f"*a{n - 1}"] * 10) + "]" for n in range(1, 9)]
    message, line, _ = fault("\n".join(levels))
    assert "more than 200,000 values" in message
    assert line == 6


def test_size_and_encoding_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "eval.yaml"
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(SpecError, match="4 MiB"):
        load_yaml(file)
    file.write_bytes(b"a: \xff\xfe")
    with pytest.raises(SpecError, match="UTF-8"):
        load_yaml(file)
    file.write_bytes(b"\xef\xbb\xbfa: 1")
    assert load_yaml(file).data() == {"a": 1}


PIECES = st.sampled_from(
    [
        *"{}[],:&*!|>'\"%@`#?-~ \n\t",
        "a",
        "<<",
        "${X}",
        "- ",
        ": ",
        "stimuli:\n",
        "  - name: a\n",
        "    prompt: b\n",
    ]
)


@settings(max_examples=150)
@given(st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=25).map("".join)))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        spec = read_text(text, FILE).spec
    except SpecError as error:
        assert error.findings
    else:
        assert spec.stimuli


KEYS = st.sampled_from(
    "name prompt turns graders tags rubric environment constraints stimuli defaults config scoring type runs "
    "timeout files skills git mcpServers weights artifacts attachments golden_patch executor commands".split()
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 3), st.floats(), st.sampled_from(["", "a", "5m", "${Q}"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=150)
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_no_shape_breaks_the_reader(document: dict[str, object]) -> None:
    import json

    text = json.dumps(document).replace("NaN", ".nan").replace("Infinity", ".inf")
    try:
        read_text(text, FILE)
    except SpecError as error:
        assert all(finding.severity == "error" for finding in error.findings)
