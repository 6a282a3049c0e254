"""No secret reaches a log, however the output is cut."""

from __future__ import annotations

import base64
import json
import tempfile
import tracemalloc
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes import masker as masker_module
from sandboxes.masker import Masker

KEY = 'sk-ab/cd+ef"gh 12'


def through(masker: Masker, pieces: list[tuple[str, str]]) -> dict[str, str]:
    out = {"stdout": "", "stderr": ""}
    with masker.sink(lambda stream, text: out.__setitem__(stream, out[stream] + text)) as sink:
        for stream, text in pieces:
            sink(stream, text)  # type: ignore[arg-type]
    return out


def test_a_secret_in_pieces_on_two_streams() -> None:
    pieces = [
        ("stdout", "key=sk-ab"),
        ("stderr", "err sk"),
        ("stdout", KEY[5:] + " ok"),
        ("stderr", KEY[2:] + "\n"),
    ]
    assert through(Masker([KEY]), pieces) == {"stdout": "key=*** ok", "stderr": "err ***\n"}


def test_what_only_begins_like_a_secret_comes_out_at_the_end() -> None:
    assert through(Masker([KEY]), [("stdout", "sk-"), ("stdout", "ab")])["stdout"] == "sk-ab"


def test_it_comes_out_too_when_the_command_is_cancelled() -> None:
    out: list[str] = []
    with pytest.raises(KeyboardInterrupt), Masker([KEY]).sink(lambda _stream, text: out.append(text)) as sink:
        sink("stdout", "last words: sk-")
        raise KeyboardInterrupt
    assert "".join(out) == "last words: sk-"


@pytest.mark.parametrize(
    "form",
    [
        KEY,
        json.dumps({"k": KEY}),
        quote(KEY, safe=""),
        base64.b64encode(KEY.encode()).decode(),
        base64.b64encode(f"user:{KEY}".encode()).decode(),
        base64.b64encode(f"me:{KEY}@".encode()).decode(),
        base64.urlsafe_b64encode(f"u:{KEY}??>>".encode()).decode(),
    ],
)
def test_forms_a_secret_travels_in(form: str) -> None:
    masked = Masker([KEY]).text(f"<{form}>")
    assert "***" in masked
    assert form not in masked
    if form.isalnum():
        assert len(masked) < 20


def test_lines_of_a_key_file() -> None:
    key = "-----BEGIN KEY-----\nabcdefghijklmnopqrstuvwxyz\n-----END KEY-----\n"
    assert Masker([key]).text("got abcdefghijklmnopqrstuvwxyz.") == "got ***."


def test_settings_with_secret_names_are_hidden_longest_first() -> None:
    masker = Masker.from_settings(
        {"Authorization": "Bearer abcdef", "X-Other": "plain", "x-api-key": "abcdefgh", "retries": 4096}
    )
    assert masker.text("Bearer abcdef, abcdef, abcdefgh, plain 4096") == "***, ***, ***, plain 4096"


def test_short_values_are_left_alone() -> None:
    assert Masker(["abc", ""]).text("abc abc") == "abc abc"
    assert "abc" not in repr(Masker(["abcdef"]))


def test_one_secret_within_another() -> None:
    masker = Masker(["abcd", "abcdefgh", "ghij"])
    assert masker.text("abcd.") == "***."
    assert through(masker, [("stdout", "abcd"), ("stdout", "efgh"), ("stdout", "ij!")])["stdout"] == "***!"


alphabet = st.text(st.sampled_from("ab"), max_size=40)


@given(
    st.lists(st.text(st.sampled_from("ab"), min_size=4, max_size=8), min_size=1, max_size=3),
    st.lists(alphabet),
)
def test_cutting_changes_nothing_and_no_secret_survives(values: list[str], pieces: list[str]) -> None:
    whole = "".join(pieces)
    covered = [False] * len(whole)
    masker = Masker(values)
    for form in masker._forms:
        for at in range(len(whole)):
            if whole.startswith(form, at):
                covered[at : at + len(form)] = [True] * len(form)
    plain = "".join(char for char, hidden in zip(whole, covered, strict=True) if not hidden)
    cut = through(masker, [("stdout", piece) for piece in pieces])["stdout"]
    assert cut.replace("***", "") == plain
    assert cut == masker.text(whole)


def test_a_long_stream_is_not_kept_in_memory() -> None:
    out: list[int] = []
    with Masker(["aaaa"]).sink(lambda _stream, text: out.append(len(text))) as sink:
        for _ in range(1000):
            sink("stdout", "a" * 100)
    assert sum(out) == 3, "one mask for one uninterrupted run of the secret"


@given(st.binary(max_size=60), st.binary(max_size=60), st.integers(1, 40))
def test_files_are_masked_however_they_are_read(before: bytes, after: bytes, piece: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(masker_module, "_PIECE", piece)
        path = Path(folder, "kept")
        path.write_bytes(before + KEY.encode() + after)
        path.chmod(0o750)
        Masker([KEY]).file(path)
        assert path.read_bytes() == before + b"***" + after
        assert path.stat().st_mode & 0o777 == 0o750
        assert [found.name for found in Path(folder).iterdir()] == ["kept"]


@pytest.mark.parametrize(
    "form", [json.dumps({"key": KEY}), quote(KEY, safe=""), base64.b64encode(f"x:{KEY}:y".encode()).decode()]
)
def test_files_are_masked_in_every_form(tmp_path: Path, form: str) -> None:
    (tmp_path / "kept").write_text(f"\N{SNOWMAN} {form}")
    Masker([KEY]).file(tmp_path / "kept")
    text = (tmp_path / "kept").read_text()
    assert "***" in text and text.startswith("\N{SNOWMAN} ") and form not in text


def test_a_file_without_secrets_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"sk-ab/cd+ef is not all of it")
    before = path.stat()
    Masker([KEY]).file(path)
    assert path.stat() == before


def test_a_large_file_is_masked_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    with path.open("wb") as file:
        file.truncate(48 << 20)
        file.seek(0, 2)
        file.write(KEY.encode())
    tracemalloc.start()
    try:
        Masker([KEY]).file(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert path.stat().st_size == (48 << 20) + 3
