"""Rules of graders that look at what the agent did."""

from __future__ import annotations

from tests.unit.grade.grading_world import ENDED, Row, asked, called, returned, said, skill, story

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
    Row(
        "args", "tool-calls", {"required": [{"name": "bash", "args": {"args_count": "^1$"}}]}, "pass", WORKED
    ),
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
    Row("calls and messages", "step-count", {"max": 4}, "pass", USED),
    Row("over", "step-count", {"max": 3}, "fail", USED),
    Row("in time", "wall-time", {"max": "90s"}, "pass", USED),
    Row("late", "wall-time", {"max": "1.4m"}, "fail", USED),
]
STUCK = story(*[called("bash", command="ls")] * 4, said("hm"))
CIRCLE = story(*[called("bash", command="ls"), called("view", path="x")] * 4, said("hm"))
VARIED = story(*[called("bash", command=f"ls {n}") for n in range(9)], said("hm"))
LOOPS = [
    Row("too often", "max-repeat", {"max": 3}, "fail", STUCK),
    Row("at the bound", "max-repeat", {"max": 4}, "pass", STUCK),
    Row("other arguments", "max-repeat", {"max": 1}, "pass", VARIED),
    Row("a circle is no repeat", "max-repeat", {"max": 1}, "pass", CIRCLE),
    Row("a longer circle", "max-repeat", {"max": 3, "max_cycle_period": 2}, "fail", CIRCLE),
    Row("only some tools", "max-repeat", {"max": 3, "tools": ["view"]}, "pass", STUCK),
    Row("only some tools, in a row", "max-repeat", {"max": 3, "tools": ["view"]}, "fail", CIRCLE),
    Row("no loop wanted", "loop-outcome", {"max_cycle_period": 2}, "fail", CIRCLE),
    Row("no loop found", "loop-outcome", {}, "pass", VARIED),
    Row("a loop wanted", "loop-outcome", {"should_loop": True}, "pass", STUCK),
    Row("a loop wanted, none", "loop-outcome", {"should_loop": True}, "fail", VARIED),
]
SYSTEM = story(Event("system", {"subtype": "compaction", "tokens": 9}), said("hi"))
REPORTED = story(
    Event("custom", {"name": "cost", "value": 5}), Event("custom", {"name": "cost", "value": 2}), said("hi")
)
EVENTS = [
    Row("a tool's line is passed on", "assistant-contains-tool-output", {}, "pass", WORKED),
    Row("of another tool", "assistant-contains-tool-output", {"tools": "view"}, "fail", WORKED),
    Row("too short to tell", "assistant-contains-tool-output", {"min_length": 50}, "fail", WORKED),
    Row(
        "said before",
        "assistant-contains-tool-output",
        {},
        "fail",
        story(said("pod-1 Running"), returned("bash", "pod-1 Running")),
    ),
    Row("negated", "assistant-contains-tool-output", {"negate": True}, "fail", WORKED),
    Row("the last report counts", "custom-metrics", {"metrics": {"cost": {"max": 3}}}, "pass", REPORTED),
    Row("under", "custom-metrics", {"metric": "cost", "min": 3}, "fail", REPORTED),
    Row("never reported", "custom-metrics", {"metrics": {"speed": {"min": 0}}}, "fail", REPORTED),
    Row("any", "system-event", {}, "pass", SYSTEM),
    Row("none", "system-event", {}, "fail"),
    Row("pattern", "system-event", {"pattern": '"subtype":"comp'}, "pass", SYSTEM),
    Row("at most", "system-event", {"min": 0, "max": 0}, "fail", SYSTEM),
    Row("negated", "system-event", {"negate": True}, "pass"),
    Row("does not speak here", "pairwise", {"prompt": "which?", "threshold": 0.5}, "skipped"),
]

DONE = [*SKILLS, *TOOLS, *BUDGETS, *LOOPS, *EVENTS]
