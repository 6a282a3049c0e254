"""Published records: every format reads the same, and what is wrong is named with its place."""

from __future__ import annotations

import gzip
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from valkyrie.benchmarks.named import conversion
from valkyrie.errors import UsageError

ROWS = [{"id": "1", "text": 'a,b\n"c" ü'}, {"id": "2", "text": "d"}]


def as_csv(delimiter: str) -> str:
    quoted = [(row["id"], '"' + row["text"].replace('"', '""') + '"') for row in ROWS]
    return "\n".join([delimiter.join(("id", "text")), *(delimiter.join(row) for row in quoted)]) + "\n"


CONTENTS = {
    "rows.jsonl": "\n".join(map(json.dumps, ROWS)) + "\n\n",
    "rows.json": json.dumps(ROWS),
    "viewer.json": json.dumps(
        {"features": [], "rows": [{"row_idx": n, "row": r} for n, r in enumerate(ROWS)]}
    ),
    "rows.csv": as_csv(","),
    "rows.tsv": as_csv("\t"),
    "marked.csv": "\ufeff" + as_csv(","),
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("packed", [False, True])
def test_formats(name: str, packed: bool, tmp_path: Path) -> None:
    content = CONTENTS[name].encode()
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    found = list(conversion.read_records(path))
    assert [dict(record.fields) for record in found] == ROWS
    assert found[0].sha256 == conversion.digest_of(ROWS[0])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"id": 1}\n{"id": \n', "a.jsonl line 2: not JSON"),
        ("a.jsonl", b"[1]\n", "line 1: a record is an object"),
        ("a.jsonl", b'{"id": 1}\n\xff\n', "not UTF-8"),
        ("a.jsonl", b"\n", "holds no records"),
        ("a.json", b'"text"', "expected a list of records"),
        ("a.csv", b"id,text\n1,2,3\n", "line 2: has more columns"),
        ("a.csv", b'id,text\n"1\n', "not CSV"),
        ("a.jsonl.gz", b"no gzip", "cannot read"),
        ("a.jsonl.gz", gzip.compress(b'{"id": 1}\n' * 99, mtime=0)[:-9], "cannot read"),
        ("a.xlsx", b"", "cannot tell what it is"),
    ],
)
def test_what_is_wrong_is_named(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        list(conversion.read_records(tmp_path / name))


def test_a_gzip_bomb_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "MOST_BYTES", 1 << 20)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b" " * (2 << 20), mtime=0))
    with pytest.raises(UsageError, match="cannot be a data set"):
        list(conversion.read_records(tmp_path / "a.jsonl.gz"))


@pytest.mark.skipif(find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_without_its_library_says_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"pyarrow.*to_json"):
        list(conversion.read_records(tmp_path / "a.parquet"))


def test_a_missing_field_is_named_with_what_there_is() -> None:
    record = conversion.PublishedRecord(
        {"Answr": "1", "none": None, "list": [], "blank": " "}, "a.jsonl line 3"
    )
    with pytest.raises(
        UsageError, match=r"a.jsonl line 3: .* no field 'Answer'.*Answr.*Did you mean 'Answr'"
    ):
        record.text("Answer")
    with pytest.raises(UsageError, match="'list' should be text"):
        record.text("list")
    with pytest.raises(UsageError, match="'blank' is empty"):
        record.text("blank")
    assert record.text("none", "Answr") == "1"


def test_one_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("b-v1.jsonl", "a-v0.jsonl", "notes.txt"):
        (tmp_path / "data" / name).write_text("{}")
    assert conversion.file_of(tmp_path, ("*v1*",), "data").name == "b-v1.jsonl"
    with pytest.raises(UsageError, match=r"several files.*a-v0.jsonl, b-v1.jsonl"):
        conversion.file_of(tmp_path, ("*v2*",), "data")
    with pytest.raises(UsageError, match="holds no file of records"):
        conversion.file_of(tmp_path, ())
