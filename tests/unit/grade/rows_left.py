"""Rules of graders that look at what the agent left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.grade.sample_transcripts import Bench, Row
from valkyrie.grade.protocol import ProgramResult

FILES = [
    Row("plain path", "file-exists", {"path": "go.mod"}, "pass"),
    Row("./ in front", "file-exists", {"path": "./go.mod"}, "pass"),
    Row("case matters", "file-exists", {"path": "GO.mod"}, "fail"),
    Row("*", "file-exists", {"path": "src/*.go"}, "pass"),
    Row("* stays in its folder", "file-exists", {"path": "*.go"}, "fail"),
    Row("**", "file-exists", {"path": "**/*.go"}, "pass"),
    Row("** is also no folder", "file-exists", {"path": "**/go.mod"}, "pass"),
    Row("** in the middle", "file-exists", {"path": "src/**/inner.txt"}, "pass"),
    Row("?", "file-exists", {"path": "g?.mod"}, "pass"),
    Row("? is one character", "file-exists", {"path": "go?.mod"}, "fail"),
    Row("{a,b}", "file-exists", {"path": "src/main.{py,go}"}, "pass"),
    Row("{a,b} with folders", "file-exists", {"path": "{lib,src/deep}/inner.txt"}, "pass"),
    Row("{a,b} absent", "file-exists", {"path": "src/main.{py,rs}"}, "fail"),
    Row("[..]", "file-exists", {"path": "[f-h]o.mod"}, "pass"),
    Row("[!..]", "file-exists", {"path": "[!g]o.mod"}, "fail"),
    Row("dotfiles match *", "file-exists", {"path": "*ignore"}, "pass"),
    Row("folders with a dot match **", "file-exists", {"path": "**/ci.yml"}, "pass"),
    Row("a folder is there too", "file-exists", {"path": "src"}, "pass"),
    Row("a folder, asked as one", "file-exists", {"path": "src/"}, "pass"),
    Row("a file, asked as a folder", "file-exists", {"path": "go.mod/"}, "fail"),
    Row("out of the workspace", "file-exists", {"path": "../outside/secret.txt"}, "fail"),
    Row("absolute", "file-exists", {"path": "/etc/passwd"}, "fail"),
    Row("a link out is not followed", "file-exists", {"path": "escape/secret.txt"}, "fail"),
    Row("a link out is no file", "file-exists", {"path": "escape.txt"}, "fail"),
    Row("a link inside is", "file-exists", {"path": "alias.mod"}, "pass"),
    Row("a broken link is not there", "file-exists", {"path": "broken"}, "fail"),
    Row("negated", "file-exists", {"path": "go.mod", "negate": True}, "fail"),
    Row("no workspace", "file-exists", {"path": "go.mod"}, "error", given={"workspace": None}),
    Row("workspace gone", "file-exists", {"path": "x"}, "error", given={"workspace": Path("/nonexistent/w")}),
    Row("absent", "file-not-exists", {"path": "function.json"}, "pass"),
    Row("present", "file-not-exists", {"path": "**/*.go"}, "fail"),
    Row("no workspace", "file-not-exists", {"path": "x"}, "error", given={"workspace": None}),
    Row("has it", "file-contains", {"path": "go.mod", "value": "module demo"}, "pass"),
    Row("case matters", "file-contains", {"path": "go.mod", "value": "Module"}, "fail"),
    Row("any file", "file-contains", {"path": "**/*.{go,mod}", "value": "package main"}, "pass"),
    Row("no file", "file-contains", {"path": "*.rs", "value": "x"}, "fail"),
    Row("dotfile", "file-contains", {"path": ".github/**", "value": "jobs"}, "pass"),
    Row("folders have no text", "file-contains", {"path": "src", "value": "package"}, "fail"),
    Row("not UTF-8: cannot tell", "file-contains", {"path": "latin.txt", "value": "caf"}, "fail"),
    Row("another file has it", "file-contains", {"path": "{latin.txt,go.mod}", "value": "demo"}, "pass"),
    Row("a link out is not read", "file-contains", {"path": "escape*", "value": "secret"}, "fail"),
    Row("a pipe is not waited for", "file-contains", {"path": "pipe", "value": "x"}, "fail"),
    Row("negated", "file-contains", {"path": "go.mod", "value": "demo", "negate": True}, "fail"),
    Row("absent", "file-not-contains", {"path": "go.mod", "value": "evil"}, "pass"),
    Row("present", "file-not-contains", {"path": "go.mod", "value": "demo"}, "fail"),
    Row("no file", "file-not-contains", {"path": "*.rs", "value": "x"}, "pass"),
    Row("not UTF-8: cannot tell", "file-not-contains", {"path": "latin.txt", "value": "zzz"}, "fail"),
    Row("matches", "file-matches", {"path": "go.mod", "pattern": r"(?m)^go \d"}, "pass"),
    Row("^ is the file's start", "file-matches", {"path": "go.mod", "pattern": "^go"}, "fail"),
    Row("no file", "file-matches", {"path": "*.rs", "pattern": "."}, "fail"),
    Row("invalid", "file-matches", {"path": "go.mod", "pattern": "*"}, "fail"),
    Row("not UTF-8: cannot tell", "file-matches", {"path": "latin.txt", "pattern": "caf"}, "fail"),
    Row("absent", "file-not-matches", {"path": "go.mod", "pattern": "evil"}, "pass"),
    Row("present", "file-not-matches", {"path": "**/*.go", "pattern": "package"}, "fail"),
    Row("no file", "file-not-matches", {"path": "*.rs", "pattern": "."}, "pass"),
    Row("invalid fails too", "file-not-matches", {"path": "go.mod", "pattern": "*"}, "fail"),
]
DIFF = (
    "diff --git a/app.py b/app.py\nindex 1..2 100644\n--- a/app.py\n+++ b/app.py\n"
    "@@ -1,3 +1,3 @@\n import os\n-x = 1\n+x = 2\n print(x)\n"
)
SAME = "--- a/app.py\n+++ b/app.py\n@@ -7,1 +9,1 @@\n-x = 1\n+x = 2\n"
OTHER = DIFF.replace("+x = 2", "+x = 3")
NEW_FILE = "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+hi\n"
TWO = ("first", "second")
DIFFS = [
    Row("value", "diff-contains", {"value": "+x = 2"}, "pass", given={"diff": DIFF}),
    Row("case matters", "diff-contains", {"value": "+X = 2"}, "fail", given={"diff": DIFF}),
    Row("pattern", "diff-contains", {"pattern": r"(?m)^\+x = \d$"}, "pass", given={"diff": DIFF}),
    Row("invalid pattern", "diff-contains", {"pattern": "("}, "fail", given={"diff": DIFF}),
    Row("absent", "diff-contains", {"value": "+y"}, "fail", given={"diff": DIFF}),
    Row("empty diff", "diff-contains", {"value": "x"}, "fail", given={"diff": ""}),
    Row("no diff", "diff-contains", {"value": "x"}, "error"),
    Row(
        "the last turn",
        "diff-contains",
        {"value": "x", "turn": 1},
        "pass",
        given={"diff": DIFF, "turns": TWO},
    ),
    Row(
        "an earlier turn",
        "diff-contains",
        {"value": "x", "turn": 0},
        "pass",
        given={"diff": "", "turns": TWO, "turn_diffs": {0: DIFF}},
    ),
    Row(
        "nothing yet",
        "diff-empty",
        {"turn": 0},
        "pass",
        given={"diff": DIFF, "turns": TWO, "turn_diffs": {0: ""}},
    ),
    Row(
        "a turn nobody looked after",
        "diff-contains",
        {"value": "x", "turn": 0},
        "error",
        given={"diff": DIFF, "turns": TWO},
    ),
    Row("absent", "diff-not-contains", {"value": "+y"}, "pass", given={"diff": DIFF}),
    Row("present", "diff-not-contains", {"value": "x = 1"}, "fail", given={"diff": DIFF}),
    Row("empty", "diff-empty", {}, "pass", given={"diff": "\n"}),
    Row("changed", "diff-empty", {}, "fail", given={"diff": DIFF}),
    Row("no diff", "diff-empty", {}, "error"),
    Row("other context and numbers", "expected-diff", {"patch": SAME}, "pass", given={"diff": DIFF}),
    Row("another line", "expected-diff", {"patch": SAME}, "fail", given={"diff": OTHER}),
    Row("a file too many", "expected-diff", {"patch": SAME}, "fail", given={"diff": DIFF + NEW_FILE}),
    Row(
        "others allowed",
        "expected-diff",
        {"patch": SAME, "allow_other_files": True},
        "pass",
        given={"diff": DIFF + NEW_FILE},
    ),
    Row("a file too few", "expected-diff", {"patch": SAME + NEW_FILE}, "fail", given={"diff": DIFF}),
    Row(
        "order of files", "expected-diff", {"patch": NEW_FILE + SAME}, "pass", given={"diff": DIFF + NEW_FILE}
    ),
    Row(
        "trailing blanks",
        "expected-diff",
        {"patch": SAME},
        "pass",
        given={"diff": DIFF.replace("+x = 2", "+x = 2  ")},
    ),
    Row(
        "blanks if asked",
        "expected-diff",
        {"patch": SAME, "ignore_whitespace": True},
        "pass",
        given={"diff": DIFF.replace("+x = 2", "+x=2")},
    ),
    Row("golden patch", "expected-diff", {}, "pass", given={"diff": DIFF, "golden_patch": SAME}),
    Row("nothing to compare with", "expected-diff", {}, "error", given={"diff": DIFF}),
    Row("no patch at all", "expected-diff", {"patch": "hello"}, "error", given={"diff": DIFF}),
]


def bench(
    code: int = 0, out: str = "", err: str = "", *, timed_out: bool = False, verdict: str | None = None
) -> dict[str, Any]:
    return {"bench": Bench(ProgramResult(code, out, err, timed_out, verdict))}


FILE = {"program": "x", "verdict": "file"}
PASS, NO_PASS = '{"passed": true}', '{"passed": false}'
COMMANDS = [
    Row("exit code 0", "run-command", {"command": "make"}, "pass", given=bench()),
    Row("another code", "run-command", {"command": "make"}, "fail", given=bench(2)),
    Row("expected code", "run-command", {"command": "x", "expected_exit_code": 2}, "pass", given=bench(2)),
    Row(
        "stdout_contains",
        "run-command",
        {"command": "x", "stdout_contains": "ok"},
        "pass",
        given=bench(0, "ok\n"),
    ),
    Row(
        "its case matters",
        "run-command",
        {"command": "x", "stdout_contains": "OK"},
        "fail",
        given=bench(0, "ok\n"),
    ),
    Row(
        "all of a list",
        "run-command",
        {"command": "x", "stdout_contains": ["ok", "no"]},
        "fail",
        given=bench(0, "ok\n"),
    ),
    Row(
        "stderr_contains",
        "run-command",
        {"command": "x", "stderr_contains": ["w"]},
        "pass",
        given=bench(0, "", "w"),
    ),
    Row(
        "stderr is not stdout",
        "run-command",
        {"command": "x", "stderr_contains": "w"},
        "fail",
        given=bench(0, "w"),
    ),
    Row(
        "stdout_matches",
        "run-command",
        {"command": "x", "stdout_matches": r"\d passed"},
        "pass",
        given=bench(0, "3 passed"),
    ),
    Row(
        "stdout_not_matches",
        "run-command",
        {"command": "x", "stdout_not_matches": ["FAIL", "ERR"]},
        "fail",
        given=bench(0, "an ERR"),
    ),
    Row(
        "code and text",
        "run-command",
        {"command": "x", "stdout_contains": "ok"},
        "fail",
        given=bench(1, "ok"),
    ),
    Row("invalid regex", "run-command", {"command": "x", "stdout_matches": "("}, "fail", given=bench()),
    Row("too slow", "run-command", {"command": "x"}, "fail", given=bench(timed_out=True)),
    Row("no sandbox", "run-command", {"command": "x"}, "error"),
    Row("exit code 0", "program", {"program": "./check"}, "pass", given=bench()),
    Row("another code", "program", {"program": "./check"}, "fail", given=bench(1)),
    Row("no JSON wins over 1", "program", {"program": "x"}, "fail", given=bench(1, '{"passed": true}')),
    Row("nor over a signal", "program", {"program": "x"}, "fail", given=bench(137, '{"passed": true}')),
    Row("JSON at 127", "program", {"program": "x"}, "error", given=bench(127, '{"passed": true}')),
    Row("JSON wins over 0", "program", {"program": "x"}, "fail", given=bench(0, '{"passed": false}')),
    Row(
        "JSON on the last line",
        "program",
        {"program": "x"},
        "fail",
        given=bench(0, 'log\n{"passed": false}\n'),
    ),
    Row("other JSON says nothing", "program", {"program": "x"}, "pass", given=bench(0, '{"lines": 3}')),
    Row("other text", "program", {"program": "x"}, "pass", given=bench(0, "all fine")),
    Row("score out of range", "program", {"program": "x"}, "error", given=bench(0, '{"score": 7}')),
    Row("passed is no bool", "program", {"program": "x"}, "error", given=bench(0, '{"passed": "yes"}')),
    Row("too slow", "program", {"program": "x"}, "error", given=bench(timed_out=True)),
    Row("cannot start", "program", {"program": "x"}, "error", given=bench(127, "", "not found")),
    Row("no sandbox", "program", {"program": "x"}, "error"),
    Row("a verdict", "program", FILE, "pass", given=bench(verdict='{"passed": true}')),
    Row("a bad verdict", "program", FILE, "fail", given=bench(verdict='{"passed": false}')),
    Row("a verdict and code 1", "program", FILE, "fail", given=bench(1, verdict='{"passed": true}')),
    Row("what is printed is no verdict", "program", FILE, "error", given=bench(0, '{"passed": true}')),
    Row("a verdict against stdout", "program", FILE, "fail", given=bench(0, PASS, verdict=NO_PASS)),
    Row("no verdict and code 1", "program", FILE, "fail", given=bench(1, PASS)),
    Row("a verdict that is none", "program", FILE, "error", given=bench(0, PASS, verdict="yes")),
    Row("cannot start, verdict", "program", FILE, "error", given=bench(127, PASS)),
]

METRICS = [
    Row("within", "custom-metrics", {"assertions": [{"metric": "cost", "min": 1, "max": 3}]}, "pass"),
    Row("over", "custom-metrics", {"assertions": [{"metric": "cost", "max": 2}]}, "fail"),
    Row("under", "custom-metrics", {"assertions": [{"metric": "cost", "min": 3}]}, "fail"),
    Row("a text", "custom-metrics", {"assertions": [{"metric": "mode", "equals": "fast"}]}, "pass"),
    Row("a truth value", "custom-metrics", {"assertions": [{"metric": "clean", "equals": True}]}, "pass"),
    Row("1 is not true", "custom-metrics", {"assertions": [{"metric": "clean", "equals": 1}]}, "fail"),
    Row("no number", "custom-metrics", {"assertions": [{"metric": "mode", "min": 0}]}, "fail"),
    Row("no value", "custom-metrics", {"assertions": [{"metric": "runs", "min": 0}]}, "fail"),
    Row("not there", "custom-metrics", {"assertions": [{"metric": "speed", "min": 0}]}, "fail"),
    Row(
        "all of them",
        "custom-metrics",
        {"assertions": [{"metric": "cost", "min": 1}, {"metric": "mode", "equals": "slow"}]},
        "fail",
    ),
    Row(
        "`values` of another file",
        "custom-metrics",
        {"path": "data/metrics.json", "assertions": [{"metric": "cost", "equals": 7}]},
        "pass",
    ),
    Row("no file", "custom-metrics", {"path": "no.json", "assertions": [{"metric": "a", "min": 0}]}, "fail"),
    Row("no JSON", "custom-metrics", {"path": "go.mod", "assertions": [{"metric": "a", "min": 0}]}, "fail"),
    Row(
        "a link that leads out",
        "custom-metrics",
        {"path": "escape.txt", "assertions": [{"metric": "a", "min": 0}]},
        "fail",
    ),
    Row(
        "no workspace",
        "custom-metrics",
        {"assertions": [{"metric": "cost", "min": 1}]},
        "error",
        given={"workspace": None},
    ),
]

LEFT = [
    *METRICS,
    *FILES,
    *DIFFS,
    *COMMANDS,
]
