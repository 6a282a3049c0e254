"""Grades /app/duration.py from the outside."""

import json

from checks import APP, PYTHON, Checks, run, same

UNITS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}

PARSE = {
    "0s": 0,
    "2d 4h": 187200,
    "  7s  ": 7,
    "1w 1d 1h 1m 1s": 694861,
    "007m": 420,
    "3d0h5s": 259205,
    "999999999999999999999s": 999999999999999999999,
}
FORMAT = {
    "0": "0s",
    "694861": "1w1d1h1m1s",
    "60480000": "100w",
    "0061": "1m1s",
}
SUM = [
    (["30m", "45m"], "1h15m"),
    (["23h", "59m", "60s"], "1d"),
    (["6d 23h", "1h", "1s"], "1w1s"),
]
BAD_DURATIONS = ["", "10", "1h1h", "30m1h", "1.5h", "-5m", "5 m", "1H", "１h", "1_0s", "1y"]
BAD_NUMBERS = ["", "-1", "1.0", "1_000"]
BAD_WORDS = [[], ["parse", "1h", "2h"], ["format", "1", "2"], ["sum"], ["convert", "1h"]]


def duration(*arguments):
    return run([*PYTHON, APP / "duration.py", *arguments])


def prints(arguments, line):
    ran = duration(*arguments)
    same((ran.code, ran.stdout), (0, line + "\n"), f"{arguments}")


def refuses(arguments, named=""):
    ran = duration(*arguments)
    same((ran.code, ran.stdout), (2, ""), f"{arguments}")
    assert ran.stderr.strip() and named in ran.stderr, f"{arguments}: message {ran.stderr!r} lacks {named!r}"
    assert "Traceback" not in ran.stderr, f"{arguments}: a traceback is no message"


checks = Checks()
with checks.check("parse"):
    for text, seconds in PARSE.items():
        prints(["parse", text], str(seconds))
with checks.check("parse --json"):
    for arguments in (["--json", "36h"], ["36h", "--json"]):
        ran = duration("parse", *arguments)
        same(ran.code, 0, "exit code")
        same(json.loads(ran.stdout), {"seconds": 129600, "canonical": "1d12h"}, "object")
with checks.check("format"):
    for number, text in FORMAT.items():
        prints(["format", number], text)
with checks.check("sum"):
    for durations, text in SUM:
        prints(["sum", *durations], text)
with checks.check("bad durations"):
    for text in BAD_DURATIONS:
        refuses(["parse", text], text)
    refuses(["sum", "1h", "oops", "2h"], "oops")
with checks.check("bad numbers"):
    for text in BAD_NUMBERS:
        refuses(["format", text], text)
with checks.check("bad words"):
    for arguments in BAD_WORDS:
        refuses(arguments)
with checks.check("help"):
    ran = duration("--help")
    same(ran.code, 0, "exit code")
    assert "parse" in ran.stdout and "format" in ran.stdout and "sum" in ran.stdout
checks.reward()
