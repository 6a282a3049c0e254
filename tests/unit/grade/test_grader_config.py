"""What is wrong or doubtful in a grader's config, told before anything runs."""

from __future__ import annotations

import pytest

from valkyrie.grade.graders import GraderRegistry, check_grader, make_grader
from valkyrie.specs.model import GraderSpec


@pytest.mark.parametrize(
    ("spec", "code", "told"),
    [
        (GraderSpec("output-contians"), "unknown-grader-type", "Did you mean 'output-contains'?"),
        (GraderSpec("qqqq"), "unknown-grader-type", "--grader-plugin"),
        (GraderSpec("output-matches"), "grader-config", "`pattern` is missing"),
        (GraderSpec("output-matches", {"pattern": "("}), "invalid-regex", "invalid regex /(/"),
        (GraderSpec("output-matches", {"pattern": ["a"]}), "grader-config", "it must be a text"),
        (
            GraderSpec("output-contains", {"value": "x", "negat": True}),
            "grader-config",
            "Did you mean 'negate'?",
        ),
        (GraderSpec("output-contains", {"value": "x", "negate": "yes"}), "grader-config", "true or false"),
        (GraderSpec("output-contains", {"value": ""}), "grader-config", "not empty"),
        (GraderSpec("completed", turn=-1), "grader-config", "`turn`"),
        (GraderSpec("turn-count", {"max": -1}), "grader-config", "at least 0"),
        (GraderSpec("turn-count", {"max": float("inf")}), "grader-config", "at least 0"),
        (GraderSpec("turn-count", {"max": True}), "grader-config", "at least 0"),
        (GraderSpec("turn-count"), "grader-config", "`max` is missing"),
        (GraderSpec("wall-time", {"max": 90}), "grader-config", "a duration with its unit"),
        (GraderSpec("max-repeat", {"max": 1, "max_cycle_period": 11}), "grader-config", "from 1 to 10"),
        (GraderSpec("max-repeat", {"max": 1, "max_cycle_period": "x"}), "grader-config", "from 1 to 10"),
        (GraderSpec("max-repeat"), "grader-config", "`max` is missing"),
        (GraderSpec("loop-outcome"), "grader-config", "`max_acceptable_retries` is missing"),
        (
            GraderSpec("loop-outcome", {"max_acceptable_retries": 1, "match": "args"}),
            "grader-config",
            "no `match` is called 'args'",
        ),
        (GraderSpec("tool-call-count", {"max": 1, "tools": []}), "grader-config", "`tools` is empty"),
        (GraderSpec("assistant-contains-tool-output", {"tools": ["x"]}), "grader-config", "`pattern`"),
        (GraderSpec("assistant-contains-tool-output", {"pattern": "x"}), "grader-config", "`tools`"),
        (GraderSpec("system-event"), "grader-config", "at least one event"),
        (GraderSpec("system-event", {"pattern": "x", "required": ["y"]}), "grader-config", "has no"),
        (
            GraderSpec("system-event", {"required": ["a"], "disallowed": ["a"]}),
            "grader-config",
            "a is both",
        ),
        (
            GraderSpec("tool-calls", {"sequence": [{"name": "x", "result": "y"}]}),
            "grader-config",
            "an entry of `sequence` has no `result`",
        ),
        (
            GraderSpec("tool-calls", {"disallowed": [{"name": "x", "min_count": 2}]}),
            "grader-config",
            "has no `min_count`",
        ),
        (
            GraderSpec("tool-calls", {"required": [{"name": "x", "before_step": 0}]}),
            "grader-config",
            "from 1",
        ),
        (GraderSpec("panel", {"models": ["m"], "aggregation": "sum"}), "grader-config", "no `aggregation`"),
        (GraderSpec("panel", {"models": ["m"], "criteria": []}), "grader-config", "at least one"),
        (
            GraderSpec("panel", {"models": ["m"], "criteria": [{"name": "a"}, {"name": "a"}]}),
            "grader-config",
            "two of `criteria`",
        ),
        (
            GraderSpec("panel", {"models": ["m"], "criteria": [{"name": "a", "wieght": 1}]}),
            "grader-config",
            "Did you mean 'weight'?",
        ),
        (GraderSpec("panel", {"models": [{"model": "m", "key": "x"}]}), "grader-config", "has no `key`"),
        (GraderSpec("prompt", {"output_delivery": "inline"}), "grader-config", "no longer taken"),
        (GraderSpec("prompt", {"reasoning_effort": "a b"}), "grader-config", "is a word"),
        (GraderSpec("skill-invocation"), "grader-config", "at least one skill"),
        (
            GraderSpec("skill-invocation", {"required": ["a"], "disallowed": ["a"]}),
            "grader-config",
            "a is both",
        ),
        (GraderSpec("tool-calls"), "grader-config", "at least one entry"),
        (GraderSpec("tool-calls", {"required": [{"nmae": "x"}]}), "grader-config", "Did you mean 'name'?"),
        (GraderSpec("tool-calls", {"required": [7]}), "grader-config", "a tool's name or a map"),
        (GraderSpec("tool-calls", {"disallowed": [{"name": "("}]}), "invalid-regex", "unterminated"),
        (
            GraderSpec("run-command", {"command": "x", "sub_path": "../up"}),
            "grader-config",
            "inside the workspace",
        ),
        (
            GraderSpec("run-command", {"command": "x", "sub_path": "/etc"}),
            "grader-config",
            "inside the workspace",
        ),
        (GraderSpec("run-command", {"command": "x", "args": "y"}), "grader-config", "a list of texts"),
        (
            GraderSpec("program", {"program": "x", "env": {"EVALUATE_WORKSPACE": "/"}}),
            "grader-config",
            "already",
        ),
        (GraderSpec("program", {"program": "x", "env": {"A=B": "/"}}), "grader-config", "no name"),
        (GraderSpec("program", {"program": "x", "timeout": 60}), "grader-config", "a duration"),
        (GraderSpec("json-schema"), "grader-config", "`schema` is missing"),
        (GraderSpec("json-schema", {"schema": {"type": "nope"}}), "grader-config", "no JSON Schema"),
        (GraderSpec("json-schema", {"schema": {"$ref": "http://x.invalid/s"}}), "grader-config", "elsewhere"),
        (GraderSpec("json-schema", {"schema": "nope.json"}), "grader-config", "cannot be read"),
        (GraderSpec("json-path", {"query": "name"}), "grader-config", "does not begin with $"),
        (GraderSpec("json-path", {"query": "$[?(@.a)]"}), "grader-config", "a filter"),
        (GraderSpec("expected-diff", {"patch": "x", "file": "y"}), "grader-config", "not both"),
        (GraderSpec("file-exists", {"path": "{a,b}" * 12}), "grader-config", "patterns"),
        (GraderSpec("custom-metrics"), "grader-config", "at least one"),
        (
            GraderSpec("custom-metrics", {"assertions": [{"metric": "a"}]}),
            "grader-config",
            "`min` and/or `max`",
        ),
        (
            GraderSpec("custom-metrics", {"path": "../x", "assertions": [{"metric": "a", "min": 0}]}),
            "grader-config",
            "without `..`",
        ),
        (
            GraderSpec("program", {"program": "x", "env": {"evaluate_workspace": "/"}}),
            "grader-config",
            "already",
        ),
    ],
)
def test_findings(spec: GraderSpec, code: str, told: str) -> None:
    found = check_grader(spec, GraderRegistry())
    assert [one.code for one in found] == [code]
    assert told in found[0].message
    assert found[0].severity == "error"


def test_every_key_of_the_schema_is_read_and_the_other_way_round() -> None:
    from valkyrie.grade.protocol import WHERE
    from valkyrie.specs.grader_schema import GRADERS

    assert set(GRADERS) == set(WHERE)
    enough = {
        "path": "x",
        "value": "x",
        "pattern": "x",
        "command": "x",
        "program": "x",
        "required": ["x"],
        "assertions": [{"metric": "m", "max": 1}],
        "tools": ["x"],
        "max_acceptable_retries": 1,
        "schema": {},
        "query": "$",
        "models": ["m", "n"],
    }
    for name, form in GRADERS.items():
        config = {key: value for key, value in enough.items() if key in form.keys}
        if name.startswith("diff-"):
            config.pop("value", None)
        config |= {"max": "5m" if name == "wall-time" else 1} if "max" in form.keys else {}
        read = getattr(getattr(make_grader(GraderSpec(name, config)), "config", None), "known", None)
        if read is not None:
            assert set(form.keys) == read, name
