"""Rules of graders that look at what the agent did."""

from __future__ import annotations

from tests.unit.grade.sample_transcripts import ENDED, Row, asked, called, returned, said, skill, story
from valkyrie.trajectory.transcript import Event, Measures, Transcript

SKILLED = story(skill("azure-ai"), skill("azure-cost"), said("done"))
SKILLS = [
    Row("required", "skill-invocation", {"required": ["azure-ai"]}, "pass", SKILLED),
    Row("exact names", "skill-invocation", {"required": ["azure"]}, "fail", SKILLED),
    Row("all of them", "skill-invocation", {"required": ["azure-ai", "other"]}, "fail", SKILLED),
    Row("disallowed", "skill-invocation", {"disallowed": ["azure-cost"]}, "fail", SKILLED),
    Row("disallowed, unused", "skill-invocation", {"disallowed": ["other"]}, "pass", SKILLED),
    Row(
        "both lists", "skill-invocation", {"required": ["azure-ai"], "disallowed": ["other"]}, "pass", SKILLED
    ),
    Row("* forbids all", "skill-invocation", {"disallowed": ["*"]}, "fail", SKILLED),
    Row("* and none used", "skill-invocation", {"disallowed": ["*"]}, "pass"),
]
WORKED = story(
    called("view", path="src/app.py"),
    returned("view", "import os"),
    called("bash", command="kubectl get pods", args_count=1),
    called("mcp-azsdk_release", plan={"id": 7}),
    returned("bash", "pod-1 Running"),
    returned("mcp-azsdk_release", "planned"),
    said("There is pod-1 Running."),
)
TALKED = story(
    asked("a"),
    called("view", path="x"),
    said("one"),
    asked("b"),
    called("edit", path="x"),
    said("two"),
    ENDED,
)
HANGING = story(called("view", path="x"), returned("view", "y"), called("edit", path="x"))
NUMBERED = story(
    asked("go"),
    *[
        event
        for turn, name in (("0", "a"), ("0", "b"), ("1", "c"))
        for event in (
            *([] if name == "b" else [Event("turn_start", {"turnId": turn})]),
            Event("tool_call", {"toolName": name, "toolCallId": name, "arguments": {}, "turnId": turn}),
            Event("tool_result", {"toolName": name, "toolCallId": name, "result": "ok", "turnId": turn}),
        )
    ],
)
LISTED = story(Event("tool_call", {"toolName": "sum", "toolCallId": "1", "arguments": [1, 2]}))
TOOLS = [
    Row("a name", "tool-calls", {"required": ["bash"]}, "pass", WORKED),
    Row("a name is an unanchored regex", "tool-calls", {"required": ["azsdk_rel"]}, "pass", WORKED),
    Row("anchored", "tool-calls", {"required": [{"name": "^azsdk_release$"}]}, "fail", WORKED),
    Row("case matters", "tool-calls", {"required": ["Bash"]}, "fail", WORKED),
    Row("all of them", "tool-calls", {"required": ["bash", "edit"]}, "fail", WORKED),
    Row(
        "command",
        "tool-calls",
        {"required": [{"name": "bash", "command": "get (pods|nodes)"}]},
        "pass",
        WORKED,
    ),
    Row(
        "command of another",
        "tool-calls",
        {"required": [{"name": "view", "command": "pods"}]},
        "fail",
        WORKED,
    ),
    Row("path", "tool-calls", {"required": [{"path": r"\.py$"}]}, "pass", WORKED),
    Row("args", "tool-calls", {"required": [{"name": "bash", "args": {"command": "^kube"}}]}, "pass", WORKED),
    Row("args of texts alone", "tool-calls", {"required": [{"args": {"args_count": "1"}}]}, "fail", WORKED),
    Row("args absent", "tool-calls", {"required": [{"args": {"nope": ".*"}}]}, "fail", WORKED),
    Row("pattern on JSON", "tool-calls", {"required": [{"pattern": '"plan":{"id":7}'}]}, "pass", WORKED),
    Row("disallowed", "tool-calls", {"disallowed": ["bash"]}, "fail", WORKED),
    Row(
        "disallowed elsewhere",
        "tool-calls",
        {"disallowed": [{"name": "^bash$", "command": "delete"}]},
        "pass",
        WORKED,
    ),
    Row("in order", "tool-calls", {"required": ["view", "bash"], "ordered": True}, "pass", WORKED),
    Row("out of order", "tool-calls", {"required": ["bash", "view"], "ordered": True}, "fail", WORKED),
    Row("order does not matter", "tool-calls", {"required": ["bash", "view"]}, "pass", WORKED),
    Row(
        "ordered twice needs two",
        "tool-calls",
        {"required": ["bash", "bash"], "ordered": True},
        "fail",
        WORKED,
    ),
    Row("read_only", "tool-calls", {"required": [{"path": "app", "read_only": True}]}, "pass", WORKED),
    Row("write_only", "tool-calls", {"disallowed": [{"path": "app", "write_only": True}]}, "pass", WORKED),
    Row("write_only found", "tool-calls", {"disallowed": [{"write_only": True}]}, "fail", TALKED),
    Row("parallel", "tool-calls", {"required": [{"name": "bash", "parallel": True}]}, "pass", WORKED),
    Row("alone", "tool-calls", {"required": [{"name": "view", "parallel": True}]}, "fail", WORKED),
    Row("turn of an entry", "tool-calls", {"required": [{"name": "edit", "turn": 1}]}, "pass", TALKED),
    Row("another turn", "tool-calls", {"required": [{"name": "edit", "turn": 0}]}, "fail", TALKED),
    Row("result", "tool-calls", {"required": [{"name": "bash", "result": "pod-\\d"}]}, "pass", WORKED),
    Row("another result", "tool-calls", {"required": [{"name": "bash", "result": "none"}]}, "fail", WORKED),
    Row("disallowed result", "tool-calls", {"disallowed": [{"name": ".", "result": "os$"}]}, "fail", WORKED),
    Row("often enough", "tool-calls", {"required": [{"name": ".", "min_count": 3}]}, "pass", WORKED),
    Row("too seldom", "tool-calls", {"required": [{"name": ".", "min_count": 4}]}, "fail", WORKED),
    Row("the last call", "tool-calls", {"required": [{"name": "release", "final": True}]}, "pass", WORKED),
    Row("not the last", "tool-calls", {"required": [{"name": "bash", "final": True}]}, "fail", WORKED),
    Row("at a step", "tool-calls", {"required": [{"name": "bash", "at_step": 1}]}, "pass", WORKED),
    Row("at another step", "tool-calls", {"required": [{"name": "bash", "at_step": 0}]}, "fail", WORKED),
    Row("before a step", "tool-calls", {"required": [{"name": "view", "before_step": 1}]}, "pass", WORKED),
    Row("too late", "tool-calls", {"required": [{"name": "bash", "before_step": 1}]}, "fail", WORKED),
    Row("never returned", "tool-calls", {"required": ["edit"]}, "fail", HANGING),
    Row("never returned, and was called", "tool-calls", {"disallowed": ["edit"]}, "fail", HANGING),
    Row("no results are told at all", "tool-calls", {"required": ["edit"]}, "pass", TALKED),
    Row("a sequence", "tool-calls", {"sequence": ["view", "bash", "release"]}, "pass", WORKED),
    Row("another sequence", "tool-calls", {"sequence": ["bash", "view"]}, "fail", WORKED),
    Row("at once", "tool-calls", {"parallel": ["release", "bash"]}, "pass", WORKED),
    Row("one after the other", "tool-calls", {"parallel": ["view", "bash"]}, "fail", WORKED),
    Row("each a call of its own", "tool-calls", {"parallel": ["bash", "bash"]}, "fail", WORKED),
    Row("at once, by turnId", "tool-calls", {"parallel": ["a", "b"]}, "pass", NUMBERED),
    Row("other turnId", "tool-calls", {"parallel": ["b", "c"]}, "fail", NUMBERED),
    Row("arguments of any kind", "tool-calls", {"required": [{"pattern": r"^\[1,2\]$"}]}, "pass", LISTED),
    Row("invalid regex", "tool-calls", {"disallowed": ["("]}, "fail", WORKED),
    Row("no calls", "tool-calls", {"required": ["bash"]}, "fail"),
    Row("no calls", "tool-calls", {"disallowed": ["bash"]}, "pass"),
]
USED = Transcript(
    "x",
    WORKED.events,
    Measures(70, 30, 100, turn_count=4, tool_call_count=3, error_count=1, wall_time_ms=90_000),
)
BUDGETS = [
    Row("at the bound", "token-budget", {"max": 100}, "pass", USED),
    Row("over", "token-budget", {"max": 99}, "fail", USED),
    Row("no total", "token-budget", {"max": 99}, "fail", Transcript("x", (), Measures(70, 30))),
    Row("at the bound", "turn-count", {"max": 4}, "pass", USED),
    Row("over", "turn-count", {"max": 3}, "fail", USED),
    Row("none allowed", "error-count", {"max": 0}, "fail", USED),
    Row("at the bound", "error-count", {"max": 1}, "pass", USED),
    Row("all tools", "tool-call-count", {"max": 2}, "fail", USED),
    Row("some tools", "tool-call-count", {"max": 1, "tools": ["bash"]}, "pass", USED),
    Row("some tools, over", "tool-call-count", {"max": 1, "tools": ["bash", "^view$"]}, "fail", USED),
    Row("answers of the model", "step-count", {"max": 3}, "pass", USED),
    Row("over", "step-count", {"max": 2}, "fail", USED),
    Row("with some tools", "step-count", {"max": 1, "tools": ["bash", "release"]}, "pass", USED),
    Row("none reported", "token-budget", {"max": 100}, "error"),
    Row("none used", "token-budget", {"max": 0}, "pass", story(Event("token_usage", {"inputTokens": 0}))),
    Row("in time", "wall-time", {"max": "90s"}, "pass", USED),
    Row("late", "wall-time", {"max": "1.4m"}, "fail", USED),
]
STUCK = story(*[called("bash", command="ls")] * 4, said("hm"))
CIRCLE = story(*[called("bash", command="ls"), called("view", path="x")] * 4, said("hm"))
VARIED = story(*[called("bash", command=f"ls {n}") for n in range(9)], said("hm"))
SAME = story(
    *[
        event
        for n in range(3)
        for event in (called("bash", command=f"try {n}"), returned("bash", "no such file"))
    ]
)
PODS = r"pod-\d+ \w+"
LOOPS = [
    Row("too often", "max-repeat", {"max": 3}, "fail", STUCK),
    Row("at the bound", "max-repeat", {"max": 4}, "pass", STUCK),
    Row("other arguments", "max-repeat", {"max": 1}, "pass", VARIED),
    Row("a circle is no repeat", "max-repeat", {"max": 1}, "pass", CIRCLE),
    Row("a longer circle", "max-repeat", {"max": 3, "max_cycle_period": 2}, "fail", CIRCLE),
    Row("only some tools", "max-repeat", {"max": 3, "tools": ["view"]}, "pass", STUCK),
    Row("only some tools, in a row", "max-repeat", {"max": 3, "tools": ["view"]}, "fail", CIRCLE),
    Row("at the bound", "loop-outcome", {"max_acceptable_retries": 3}, "pass", STUCK),
    Row("over", "loop-outcome", {"max_acceptable_retries": 2}, "fail", STUCK),
    Row("no retries", "loop-outcome", {"max_acceptable_retries": 0}, "pass", VARIED),
    Row(
        "a longer circle",
        "loop-outcome",
        {"max_acceptable_retries": 2, "max_cycle_period": 2},
        "fail",
        CIRCLE,
    ),
    Row("by name", "loop-outcome", {"max_acceptable_retries": 7, "match": "name"}, "fail", VARIED),
    Row("by result", "loop-outcome", {"max_acceptable_retries": 1, "match": "observation"}, "fail", SAME),
    Row("by arguments", "loop-outcome", {"max_acceptable_retries": 1}, "pass", SAME),
    Row("only some tools", "loop-outcome", {"max_acceptable_retries": 0, "tools": ["view"]}, "pass", STUCK),
    Row("a loop wanted", "loop-outcome", {"max_acceptable_retries": 1, "should_loop": True}, "pass", STUCK),
    Row("wanted, none", "loop-outcome", {"max_acceptable_retries": 1, "should_loop": True}, "fail", VARIED),
]
SYSTEM = story(
    Event("system", {"eventType": "compaction", "tokens": 9}), Event("system", {"content": "x"}), said("hi")
)
EVENTS = [
    Row("passed on", "assistant-contains-tool-output", {"tools": ["bash"], "pattern": PODS}, "pass", WORKED),
    Row(
        "of another tool",
        "assistant-contains-tool-output",
        {"tools": "view", "pattern": PODS},
        "fail",
        WORKED,
    ),
    Row(
        "the group counts",
        "assistant-contains-tool-output",
        {"tools": ["bash"], "pattern": r"(\S+) Running$"},
        "pass",
        story(called("bash"), returned("bash", "pod-1 Running"), said("It is pod-1.")),
    ),
    Row(
        "said before",
        "assistant-contains-tool-output",
        {"tools": ["bash"], "pattern": PODS},
        "fail",
        story(said("pod-1 Running"), called("bash"), returned("bash", "pod-1 Running")),
    ),
    Row(
        "nothing is no value",
        "assistant-contains-tool-output",
        {"tools": ["bash"], "pattern": "x*"},
        "fail",
        WORKED,
    ),
    Row("required", "system-event", {"required": ["compaction"]}, "pass", SYSTEM),
    Row("exact names", "system-event", {"required": ["Compaction"]}, "fail", SYSTEM),
    Row("none", "system-event", {"required": ["compaction"]}, "fail"),
    Row("disallowed", "system-event", {"disallowed": ["compaction"]}, "fail", SYSTEM),
    Row("disallowed, not there", "system-event", {"disallowed": ["truncation"]}, "pass", SYSTEM),
    Row("does not speak here", "pairwise", {"prompt": "which?", "threshold": 0.5}, "skipped"),
]

DONE = [*SKILLS, *TOOLS, *BUDGETS, *LOOPS, *EVENTS]
