"""Grades /app/summary.json: one sixth for each value that is right."""

import json

from checks import APP, TESTS, Checks, same

EXPECTED = json.loads((TESTS / "expected.json").read_text())

checks = Checks()
for key, value in EXPECTED.items():
    with checks.check(key):
        summary = json.loads((APP / "summary.json").read_text())
        same(set(summary), set(EXPECTED), "keys")
        same(summary[key], value, key)
        same(type(summary[key]), type(value), f"type of {key}")
checks.reward(partial=True)
