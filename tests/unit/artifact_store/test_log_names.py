"""How logs are named and cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from valkyrie.artifact_store.logs import whole_characters
from valkyrie.artifact_store.protocol import LogName, stream_name
from valkyrie.aws.services import batch

NAME = LogName("run", "task", 0, 1, 1_700_000_000.123456)


def test_a_stream_is_the_task_and_when_it_began() -> None:
    assert stream_name(NAME) == f"task_{1_700_000_000_123_456:x}"
    assert stream_name(replace(NAME, task_id="a:b*c/d ü")) == f"a_b_c/d ü_{1_700_000_000_123_456:x}"
    assert stream_name(replace(NAME, attempt=7)) == stream_name(NAME)


@pytest.mark.parametrize("task_id", ["x" * 512, "x" * 5000, "☃" * 600, "a:b*" * 300])
def test_long_ids_stay_apart(task_id: str) -> None:
    others = [replace(NAME, task_id=task_id + end, k=k) for end in ("", "1", "2") for k in (0, 1)]
    names = {stream_name(name) for name in others}
    assert len(names) == len(others)
    for name in names:
        assert len(name) == 512 and ":" not in name and "*" not in name
        assert name.endswith(f"_{1_700_000_000_123_456:x}")


@given(st.text())
def test_whole_characters(text: str) -> None:
    data = text.encode("utf-8", "replace")
    for end in range(len(data) + 1):
        whole = whole_characters(data[:end])
        data[:whole].decode()
        assert end - whole < 4


@settings(max_examples=25)
@given(st.lists(st.sampled_from(["", "x", "☃", "\n", "x" * 300_000, "\n" * 11_000, "☃" * 90_000])))
def test_batches_keep_every_byte_and_every_limit(pieces: list[str]) -> None:
    data = "".join(pieces).encode()
    at, messages = 0, []
    while at < len(data):
        some, taken = batch(data[at : at + (1 << 20)])
        assert 0 < taken and 0 < len(some) <= 10_000
        sizes = [len(message.encode()) for message in some]
        assert min(sizes) >= 1 and max(sizes) <= 256 * 1024 - 26
        assert sum(sizes) + 26 * len(sizes) <= 1_048_576
        assert sum(sizes) == taken
        messages += some
        at += taken
    # Only a chunk that broke off inside a character is not given back to the letter.
    assert len("".join(messages).encode()) == len(data)


def test_broken_bytes_are_shipped_too() -> None:
    messages, taken = batch(b"a\xff\xfe\nb\xe2\x98")
    assert (messages, taken) == (["a��\n", "b�"], 7)
