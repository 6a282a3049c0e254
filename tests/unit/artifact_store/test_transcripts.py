"""What agents told, many attempts in one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from valkyrie.artifact_store.logs import Transcripts


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run" / "transcripts.jsonl"


def test_each_attempt_has_its_own(file: Path) -> None:
    stories = Transcripts(file)
    told = {("täsk/1", 0, 1): {"output": "first"}, ("täsk/1", 0, 2): {"output": "ü\n]"}, ("b", 3, 1): {}}
    for which, story in told.items():
        stories.keep(which, json.dumps(story, ensure_ascii=False).encode())
    assert {which: Transcripts(file).read(which) for which in told} == told
    assert stories.read(("b", 0, 1)) is None


def test_nothing_was_told(file: Path) -> None:
    assert Transcripts(file).find(("a", 0, 1)) is None


def test_a_reader_sees_what_comes_later(file: Path) -> None:
    reader, writer = Transcripts(file), Transcripts(file)
    for number in range(1, 4):
        assert reader.read(("a", 0, number)) is None
        writer.keep(("a", 0, number), b"%d" % number)
        assert reader.read(("a", 0, number)) == number


@pytest.mark.parametrize("left", range(1, 30))
def test_a_line_that_was_cut_short_spoils_no_other(file: Path, left: int) -> None:
    Transcripts(file).keep(("a", 0, 1), b'{"x": [1]}')
    whole = file.read_bytes()
    with file.open("ab") as torn:
        torn.write(whole.replace(b"a", b"t")[:left])
    reader = Transcripts(file)
    assert reader.read(("t", 0, 1)) in (None, {"x": [1]})
    Transcripts(file).keep(("b", 0, 1), b"{}")
    assert (reader.read(("a", 0, 1)), reader.read(("b", 0, 1))) == ({"x": [1]}, {})


def test_every_line_is_json(file: Path) -> None:
    for number in range(3):
        Transcripts(file).keep(("a", number, 1), b'{"n": %d}' % number)
    lines = [json.loads(line) for line in file.read_text().splitlines() if line]
    assert lines == [[["a", number, 1], {"n": number}] for number in range(3)]
