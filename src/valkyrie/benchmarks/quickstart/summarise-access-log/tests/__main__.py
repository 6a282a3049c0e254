"""Grades /app/summary.json: one sixth for each value that is right."""

import json

from checks import APP, FILES, Checks, read_text, same

EXPECTED = json.loads(FILES["expected.json"])

checks = Checks()
for key, value in EXPECTED.items():
    with checks.check(key):
        summary = json.loads(read_text(APP / "summary.json"))
        same(set(summary), set(EXPECTED), "keys")
        same(summary[key], value, key)
        same(type(summary[key]), type(value), f"type of {key}")
checks.reward(partial=True)
