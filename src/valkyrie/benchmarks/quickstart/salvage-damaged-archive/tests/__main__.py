"""Grades /app/recovered and /app/lost.txt."""

import hashlib
import json

from checks import APP, TESTS, Checks, same

INTACT = json.loads((TESTS / "intact.json").read_text())
LOST = ["letters/2025 in review.txt", "photos/index.csv", "zz/last.bin"]

checks = Checks()
with checks.check("everything intact is recovered, and nothing else"):
    recovered = APP / "recovered"
    found = {
        str(path.relative_to(recovered)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in recovered.rglob("*")
        if path.is_file() or path.is_symlink()
    }
    same(sorted(found), sorted(INTACT), "names")
    same(found, INTACT, "checksums")
with checks.check("what is lost is listed"):
    same((APP / "lost.txt").read_text().splitlines(), LOST, "lost.txt")
checks.reward()
