"""Grades /app/clean.csv against the records that are right."""

import csv
import io
import json

from checks import APP, TESTS, Checks, same

EXPECTED = json.loads((TESTS / "expected.json").read_text())

checks = Checks()
with checks.check("plain UTF-8 that begins with the header"):
    text = (APP / "clean.csv").read_bytes().decode("utf-8")
    assert not text.startswith("\ufeff"), "there is a byte order mark"
with checks.check("the records are right"):
    content = (APP / "clean.csv").read_bytes().decode("utf-8")
    rows = list(csv.reader(io.StringIO(content, newline=""), strict=True))
    same(rows[0], EXPECTED[0], "header")
    for number, (row, right) in enumerate(zip(rows, EXPECTED, strict=False)):
        same(row, right, f"record {number}")
    same(len(rows), len(EXPECTED), "number of records")
checks.reward()
