"""What answers are made of: JSON and tars in pieces, and events whose ids promise only what was sent."""

from __future__ import annotations

import io
import json
import tarfile
from collections import namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.api.answers import encode
from valkyrie.api.hub import cut_to_size, trial_events
from valkyrie.api.streams import PIECE_BYTES, gather, tar_of
from valkyrie.errors import InfrastructureError


def test_odd_values_are_json_all_the_same() -> None:
    assert json.loads(encode({"a": float("nan"), "b": float("inf")})) == {"a": None, "b": None}
    assert json.loads(encode({"name": "half \ud800"})) == {"name": "half \ud800"}


@given(st.lists(st.binary(max_size=2000), max_size=5))
def test_a_tar_in_pieces_is_a_tar(contents: list[bytes]) -> None:
    files = [(f"t/{'x' * 150}/{number}", iter([one]), len(one)) for number, one in enumerate(contents)]
    with tarfile.open(fileobj=io.BytesIO(b"".join(tar_of(files)))) as tar:
        assert [tar.extractfile(member).read() for member in tar] == contents  # type: ignore[union-attr]


def test_a_tar_keeps_names_that_are_no_unicode() -> None:
    name = b"t/\xff\xfe".decode("utf-8", "surrogateescape")
    with tarfile.open(fileobj=io.BytesIO(b"".join(tar_of([(name, iter([b"x"]), 1)])))) as tar:
        assert tar.getnames() == [name]


def test_a_file_that_grew_is_cut_and_one_that_shrank_breaks_the_tar() -> None:
    with tarfile.open(fileobj=io.BytesIO(b"".join(tar_of([("t", iter([b"ab", b"cd"]), 3)])))) as tar:
        assert tar.extractfile("t").read() == b"abc"  # type: ignore[union-attr]
    with pytest.raises(InfrastructureError, match="shorter"):
        list(tar_of([("t", iter([b"ab"]), 3)]))


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(1, 100))
def test_gathered_pieces_are_the_same_bytes_in_fewer(pieces: list[bytes], least: int) -> None:
    found = list(gather(pieces, least))
    assert b"".join(found) == b"".join(pieces)
    assert all(len(one) >= least for one in found[:-1])


@given(st.lists(st.integers(0, 3 * PIECE_BYTES), max_size=4))
def test_no_piece_of_a_stream_is_large(sizes: list[int]) -> None:
    found = list(cut_to_size([b"x" * size for size in sizes]))
    assert sum(map(len, found)) == sum(sizes)
    assert all(len(one) <= PIECE_BYTES for one in found)


NAMES = (
    "task_id k state attempts score passed category cause message exit_code exit_reason not_before "
    "started_at finished_at timing digest usage cost confirmed score_confirmed evidence position family "
    "result version"
)
Row = namedtuple("Row", NAMES)  # type: ignore[misc]


def row(task_id: str, version: int) -> Any:
    return Row(**{**dict.fromkeys(NAMES.split()), "task_id": task_id, "version": version})


@given(st.lists(st.integers(0, 5), max_size=12).map(sorted), st.integers(0, 5))
def test_an_id_promises_only_what_was_sent(versions: list[int], since: int) -> None:
    rows = [
        row(f"t{number}", version) for number, version in enumerate(versions) if version > since or not since
    ]
    told = trial_events(rows, since).decode().split("\n\n")[:-1]
    assert len(told) == len(rows)
    for number, event in enumerate(told):
        promised = int(event.split("\n")[1].removeprefix("id: "))
        unsent = [one for one in rows[number + 1 :] if one.version <= promised]
        assert promised == 0 or not unsent
    if rows:
        assert promised == max(since, rows[-1].version)
