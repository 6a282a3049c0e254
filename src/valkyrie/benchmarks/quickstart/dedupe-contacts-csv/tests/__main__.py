"""Grades /app/clean.csv against the records that are right."""

import csv
import io
import json

from checks import APP, FILES, Checks, read_text, same

EXPECTED = json.loads(FILES["expected.json"])

checks = Checks()
with checks.check("plain UTF-8 that begins with the header"):
    text = read_text(APP / "clean.csv")
    assert not text.startswith("\ufeff"), "there is a byte order mark"
with checks.check("the records are right"):
    content = read_text(APP / "clean.csv")
    rows = list(csv.reader(io.StringIO(content, newline=""), strict=True))
    same(rows[0], EXPECTED[0], "header")
    for number, (row, right) in enumerate(zip(rows, EXPECTED, strict=False)):
        same(row, right, f"record {number}")
    same(len(rows), len(EXPECTED), "number of records")
checks.reward()
