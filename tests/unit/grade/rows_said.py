"""Rules of graders that look at what the agent said."""

from __future__ import annotations

from tests.unit.grade.sample_transcripts import ENDED, Row, asked, called, said, story
from valkyrie.trajectory.transcript import Event

NEWLINE = story(said("all done\n"))
SILENT = story(output="Hello from the log")
TALK = story(said("I read the file."), said("The answer is 42."))
OUTPUT = [
    Row("case does not matter", "output-contains", {"substring": "hello"}, "pass"),
    Row("case matters if asked", "output-contains", {"substring": "hello", "case_sensitive": True}, "fail"),
    Row("value is an alias", "output-contains", {"value": "WORLD"}, "pass"),
    Row("absent", "output-contains", {"substring": "bye"}, "fail"),
    Row("negated", "output-contains", {"substring": "hello", "negate": True}, "fail"),
    Row("negated, absent", "output-contains", {"substring": "bye", "negate": True}, "pass"),
    Row("no pattern is read in it", "output-contains", {"substring": "h.llo"}, "fail"),
    Row("only the last message", "output-contains", {"substring": "read"}, "fail", TALK),
    Row("a number in YAML is its text", "output-contains", {"substring": 42}, "pass", TALK),
    Row("absent", "output-not-contains", {"substring": "bye"}, "pass"),
    Row("present", "output-not-contains", {"substring": "hello"}, "fail"),
    Row("twice negated", "output-not-contains", {"substring": "hello", "negate": True}, "pass"),
    Row("empty output", "output-not-contains", {"substring": "x"}, "pass", story()),
    Row("searches, does not match whole", "output-matches", {"pattern": "World$"}, "pass"),
    Row("case matters", "output-matches", {"pattern": "hello"}, "fail"),
    Row("(?i)", "output-matches", {"pattern": "(?i)hello"}, "pass"),
    Row("(?i) not at the start is invalid", "output-matches", {"pattern": "h(?i)ello"}, "fail"),
    Row("$ is not before a last newline", "output-matches", {"pattern": "done$"}, "fail", NEWLINE),
    Row("(?m)$ is", "output-matches", {"pattern": "(?m)done$"}, "pass", NEWLINE),
    Row("\\d is ASCII", "output-matches", {"pattern": r"\d"}, "fail", story(said("٣"))),
    Row("\\w is ASCII", "output-matches", {"pattern": r"^\w+$"}, "fail", story(said("é"))),
    Row("\\b is ASCII", "output-matches", {"pattern": r"caf\b"}, "pass", story(said("café"))),
    Row(". ends at a newline", "output-matches", {"pattern": "a.b"}, "fail", story(said("a\nb"))),
    Row("(?s). does not", "output-matches", {"pattern": "(?s)a.b"}, "pass", story(said("a\nb"))),
    Row("(?im) together", "output-matches", {"pattern": "(?im)^B$"}, "pass", story(said("a\nb"))),
    Row("(?i)(?m) together", "output-matches", {"pattern": "(?i)(?m)^B$"}, "pass", story(said("a\nb"))),
    Row("invalid", "output-matches", {"pattern": "("}, "fail"),
    Row("negated", "output-matches", {"pattern": "Hello", "negate": True}, "fail"),
    Row("absent", "output-not-matches", {"pattern": "bye"}, "pass"),
    Row("present", "output-not-matches", {"pattern": "H.llo"}, "fail"),
    Row("invalid fails too", "output-not-matches", {"pattern": "("}, "fail"),
    Row("a real one", "output-not-matches", {"pattern": "(?i)fatal error|stack trace"}, "pass"),
]
TRANSCRIPT = [
    Row("any message", "transcript-contains", {"substring": "READ"}, "pass", TALK),
    Row("case", "transcript-contains", {"substring": "READ", "case_sensitive": True}, "fail", TALK),
    Row("absent", "transcript-contains", {"substring": "nowhere"}, "fail", TALK),
    Row("no messages", "transcript-contains", {"substring": "Hello"}, "fail", SILENT),
    Row(
        "others' words do not count",
        "transcript-contains",
        {"substring": "do it"},
        "fail",
        story(asked("do it"), said("no")),
    ),
    Row("absent", "transcript-not-contains", {"substring": "nowhere"}, "pass", TALK),
    Row("present", "transcript-not-contains", {"substring": "answer"}, "fail", TALK),
    Row("no messages", "transcript-not-contains", {"substring": "x"}, "fail", SILENT),
    Row("any message", "transcript-matches", {"pattern": "^I read"}, "pass", TALK),
    Row("no messages", "transcript-matches", {"pattern": "."}, "fail", SILENT),
    Row("absent", "transcript-not-matches", {"pattern": "^The file"}, "pass", TALK),
    Row("no messages", "transcript-not-matches", {"pattern": "x"}, "fail", SILENT),
    Row("invalid", "transcript-not-matches", {"pattern": "["}, "fail", TALK),
    Row("negated", "transcript-matches", {"pattern": "nowhere", "negate": True}, "pass", TALK),
]
FAILED = Event("error", {"message": "rate limit"})
ENDING = [
    Row("all is well", "completed", {}, "pass"),
    Row("empty output", "completed", {}, "fail", story(ENDED)),
    Row("blank output", "completed", {}, "fail", story(said(" \n"), ENDED)),
    Row("an error", "completed", {}, "fail", story(said("hi"), FAILED, ENDED)),
    Row("no turn ended", "completed", {}, "fail", story(said("hi"))),
    Row("an output", "exit-success", {}, "pass", story(said("hi"), FAILED)),
    Row("none", "exit-success", {}, "fail", story(ENDED)),
]
TALKED = story(
    asked("a"),
    called("view", path="x"),
    said("one"),
    asked("b"),
    called("edit", path="x"),
    said("two"),
    ENDED,
)
TURNS = [
    Row("what was said in it", "output-contains", {"substring": "one"}, "pass", TALKED, turn=0),
    Row("not what came later", "output-contains", {"substring": "two"}, "fail", TALKED, turn=0),
    Row("the last", "output-contains", {"substring": "two"}, "pass", TALKED, turn=1),
    Row("calls of it", "tool-calls", {"required": ["edit"]}, "pass", TALKED, turn=1),
    Row("calls of another", "tool-calls", {"required": ["edit"]}, "fail", TALKED, turn=0),
    Row("disallowed in another", "tool-calls", {"disallowed": ["edit"]}, "pass", TALKED, turn=0),
    Row("counts of it", "tool-call-count", {"max": 1}, "pass", TALKED, turn=1),
    Row("never came to it", "output-not-contains", {"substring": "x"}, "fail", TALKED, turn=2),
    Row("ended in it", "completed", {}, "pass", TALKED, turn=1),
    Row("did not end in it", "completed", {}, "fail", TALKED, turn=0),
]
SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
GOOD = story(said('{"n": 3, "tags": ["a", "b"], "at": {"x y": true}}'))
FENCED = story(said('Here it is:\n```json\n{"n": 3}\n```\nDone.'))
JSON = [
    Row("fits", "json-schema", {"schema": SCHEMA}, "pass", GOOD),
    Row("in a code block", "json-schema", {"schema": SCHEMA}, "pass", FENCED),
    Row("wrong type", "json-schema", {"schema": SCHEMA}, "fail", story(said('{"n": "3"}'))),
    Row("no JSON", "json-schema", {"schema": SCHEMA}, "fail"),
    Row("NaN is no JSON", "json-schema", {"schema": {}}, "fail", story(said("NaN"))),
    Row("too deep", "json-schema", {"schema": {}}, "fail", story(said("[" * 100_000))),
    Row("a file", "json-schema", {"schema": SCHEMA, "file": "data/out.json"}, "pass"),
    Row("no such file", "json-schema", {"schema": SCHEMA, "file": "nope.json"}, "fail"),
    Row("no workspace", "json-schema", {"schema": {}, "file": "x"}, "error", given={"workspace": None}),
    Row("is there", "json-path", {"query": "$.n"}, "pass", GOOD),
    Row("is not", "json-path", {"query": "$.m"}, "fail", GOOD),
    Row("must not be", "json-path", {"query": "$.m", "exists": False}, "pass", GOOD),
    Row("equals", "json-path", {"query": "$.n", "equals": 3}, "pass", GOOD),
    Row("true is not 1", "json-path", {"query": "$.at['x y']", "equals": 1}, "fail", GOOD),
    Row("equals null", "json-path", {"query": "$.n", "equals": None}, "fail", GOOD),
    Row("any of several", "json-path", {"query": "$.tags[*]", "equals": "b"}, "pass", GOOD),
    Row("every one", "json-path", {"query": "$.tags[*]", "matches": "^[ab]$", "all": True}, "pass", GOOD),
    Row("not every one", "json-path", {"query": "$.tags[*]", "equals": "b", "all": True}, "fail", GOOD),
    Row("contains", "json-path", {"query": "$.tags", "contains": "a"}, "pass", GOOD),
    Row("bounds", "json-path", {"query": "$.n", "min": 1, "max": 2}, "fail", GOOD),
    Row("count", "json-path", {"query": "$.tags[*]", "count": 2}, "pass", GOOD),
    Row("from the end", "json-path", {"query": "$.tags[-1]", "equals": "b"}, "pass", GOOD),
    Row("a file", "json-path", {"query": "$..n", "file": "data/o*.json", "equals": 3}, "pass"),
    Row("no JSON", "json-path", {"query": "$"}, "fail"),
]

SAID = [*OUTPUT, *TRANSCRIPT, *ENDING, *TURNS, *JSON]
