"""Grades /app/recovered and /app/lost.txt."""

import hashlib
import json

from checks import APP, FILES, Checks, files_below, read_text, same

INTACT = json.loads(FILES["intact.json"])
LOST = ["letters/2025 in review.txt", "photos/index.csv", "zz/last.bin"]

checks = Checks()
with checks.check("everything intact is recovered, and nothing else"):
    recovered = files_below(APP / "recovered")
    found = {name: hashlib.sha256(content).hexdigest() for name, content in recovered.items()}
    same(sorted(found), sorted(INTACT), "names")
    same(found, INTACT, "checksums")
with checks.check("what is lost is listed"):
    same(read_text(APP / "lost.txt").splitlines(), LOST, "lost.txt")
checks.reward()
