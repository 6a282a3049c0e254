"""JSON Schemas of the graders' configs, for editors and for the reference page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from valkyrie.domain import Json

VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*\}"}
"""`${NAME}`, which may stand for any value."""


DURATION = (
    r"^\s*(([0-9]+(\.[0-9]+)?|\.[0-9]+)\s*(ms|s|m|h)"
    r"|([0-9]+h)?([0-9]+m)?([0-9]+(\.[0-9]+)?s)?([0-9]+ms)?)\s*$"
)
SCALARS: Json = {
    # Authors write `version: 1.0` and `ref: 1234567`; the reader takes them as they are spelled.
    "text": {"type": ["string", "number", "boolean"]},
    "texts": {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "array", "items": {"$ref": "#/$defs/text"}}]},
    "whole": {"anyOf": [{"type": "integer", "minimum": 0}, VARIABLE]},
    "number": {"anyOf": [{"type": "number"}, VARIABLE]},
    "flag": {"anyOf": [{"type": "boolean"}, VARIABLE]},
    "duration": {"anyOf": [{"type": "string", "pattern": DURATION}, VARIABLE]},
}
"""Forms of single values, by their names in `$defs`."""


def said(form: Mapping[str, Any], description: str, **more: Any) -> Json:
    """A form with words for people."""
    return {"description": description, **form, **more}


def text(description: str = "") -> Json:
    return said(ref("text"), description) if description else ref("text")


def texts(description: str) -> Json:
    return said(ref("texts"), description)


def choice(description: str, *values: str) -> Json:
    return {"description": description, "type": "string", "enum": list(values)}


def whole(description: str, least: int = 0) -> Json:
    return said(ref("whole"), description, **({"minimum": least} if least else {}))


def number(description: str, least: float = 0, most: float | None = None) -> Json:
    bounds: Json = {"minimum": least} | ({} if most is None else {"maximum": most})
    return said(ref("number"), description, **bounds)


def flag(description: str) -> Json:
    return said(ref("flag"), description)


def duration(description: str) -> Json:
    return said(ref("duration"), f"{description} With its unit: ms, s, m or h.")


def listing(description: str, items: Json, least: int = 0) -> Json:
    form: Json = {"description": description, "type": ["array", "null"], "items": items}
    return form | ({"type": "array", "minItems": least} if least else {})


def mapping(description: str, values: Json) -> Json:
    return {"description": description, "type": ["object", "null"], "additionalProperties": values}


def record(description: str, properties: Mapping[str, Json], *required: str, closed: bool = True) -> Json:
    form: Json = {"description": description, "type": "object", "properties": dict(properties)}
    if required:
        form["required"] = list(required)
    if closed:
        form["additionalProperties"] = False
    return form


def or_nothing(form: Json) -> Json:
    """The same, or the key without a value."""
    return {"description": form.get("description", ""), "anyOf": [form, {"type": "null"}]}


def ref(name: str) -> Json:
    return {"$ref": f"#/$defs/{name}"}


# The types of graders and the keys of their configs, for editors and for the reference page.


@dataclass(frozen=True, slots=True)
class GraderForm:
    """A type of grader as an author sees it."""

    about: str
    keys: Mapping[str, Json]
    required: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    """At least one of these."""

    def config(self) -> Json:
        form = record(self.about, self.keys, *self.required)
        if self.any_of:
            form["anyOf"] = [{"required": [key]} for key in self.any_of]
        return form


NEGATE = flag("Turn the verdict round.")
PATTERN = text("A JavaScript regex that is searched for; flags only as a prefix such as (?i).")
CASE = flag("Whether upper and lower case differ (default: false).")
SUBSTRING = text("What is looked for.")
PATH = text("A path or glob below the workspace: **, *, {a,b}.")
ENV = mapping("Environment variables.", text())
SUB_PATH = text("The folder below the workspace in which it runs.")
TOOLS = texts("Regexes of tool names; only these count.")
EFFORT = text("How hard it thinks: none, minimal, low, medium, high, xhigh, max, as the model knows it.")
PROVIDER = choice("Whose interface the judge speaks.", "openai", "anthropic")
MODEL = text("The judge's model.")
CALL_KEYS = {
    "name": text("A regex of the tool's name."),
    "command": text("A regex of its command."),
    "path": text("A regex of its path."),
    "args": mapping("Argument → regex; only arguments that are texts fit.", text()),
    "pattern": text("A regex of all arguments written as JSON."),
    "turn": whole("Only calls of this turn, from 0."),
    "parallel": flag("Whether it is made together with another call."),
    "read_only": flag("Only calls that read."),
    "write_only": flag("Only calls that write."),
}
RESULT = {"result": text("A regex of what it returned.")}
REQUIRED_KEYS = {
    "min_count": whole("How often it is called at least (default: 1).", 1),
    "final": flag("It is the last call of all."),
    "at_step": whole("Only in this step of the agent, from 0."),
    "before_step": whole("Only before this step.", 1),
}


def _call(*more: Mapping[str, Json]) -> Json:
    keys = dict(CALL_KEYS)
    for one in more:
        keys.update(one)
    form = record("A tool call; every part that is given must fit.", keys)
    return {"anyOf": [text("A regex of the tool's name."), form]}


JUDGE = {
    "prompt": text("What the judge is asked, besides the stimulus's rubric."),
    "scoring": choice("The judge's scale (default: scale_1_5).", "binary", "scale_1_5", "scale_1_10"),
    "threshold": number("The normalised score that passes (default: 0.5).", most=1),
    "evidence": texts("What the judge sees: trajectory, diff, repo, golden_patch."),
    "reasoning_effort": EFFORT,
    "provider": PROVIDER,
    "output_delivery": {
        **choice("Of older files: evidence is always given whole.", "workspace"),
        "deprecated": True,
    },
}
AGGREGATIONS = ("mean", "median", "majority", "min", "unanimous")
CRITERION = record(
    "One criterion, in place of the stimulus's rubric.",
    {
        "name": text("What judges call it; no two are called the same."),
        "description": text("What it asks for."),
        "weight": number("How much it counts (default: 1)."),
        "pass_threshold": number("The score that passes (default: `threshold`).", most=1),
        "required": flag("The panel fails where it does not pass (default: false)."),
    },
    "name",
)


def _contains(about: str) -> GraderForm:
    keys = {
        "substring": SUBSTRING,
        "value": text("Another name of `substring`."),
        "case_sensitive": CASE,
        "negate": NEGATE,
    }
    return GraderForm(about, keys, any_of=("substring", "value"))


def _matches(about: str) -> GraderForm:
    return GraderForm(about, {"pattern": PATTERN, "negate": NEGATE}, ("pattern",))


def _file(about: str) -> GraderForm:
    return GraderForm(about, {"path": PATH, "negate": NEGATE}, ("path",))


def _file_has(about: str) -> GraderForm:
    keys = {"path": PATH, "value": VALUE, "substring": text("Another name of `value`."), "negate": NEGATE}
    return GraderForm(about, keys, ("path",), any_of=("value", "substring"))


def _file_matches(about: str) -> GraderForm:
    return GraderForm(about, {"path": PATH, "pattern": PATTERN, "negate": NEGATE}, ("path", "pattern"))


def _most(about: str, **keys: Json) -> GraderForm:
    return GraderForm(about, {"max": number("The most that passes."), **keys}, ("max",))


JSON_FILE = text("A file of the workspace (default: the output).")
TURN = whole("The turn after which it is looked at, from 0.")
DIFF_KEYS = {
    "value": text("The text that is looked for; upper and lower case differ."),
    "substring": text("Another name of `value`."),
    "pattern": PATTERN,
    "negate": NEGATE,
    "turn": TURN,
}
VALUE = text("The text that is looked for; upper and lower case differ.")
LOOP_KEYS = {
    "max_cycle_period": whole("The longest cycle of calls that counts as a repeat, 1 to 10.", 1),
    "tools": TOOLS,
}
ASSERTION = record(
    "What one metric must be.",
    {
        "metric": text("Its name."),
        "equals": {"description": "The value: a number, a text, true or false."},
        "min": number("Its least value.", least=-1e308),
        "max": number("Its greatest value.", least=-1e308),
    },
    "metric",
)
COMMAND_KEYS = {
    "command": text("A program, or without `args` a line for the shell."),
    "args": listing("Its arguments; with them there is no shell.", text()),
    "expected_exit_code": whole("The exit code that passes (default: 0)."),
    "stdout_contains": texts("What standard output must have."),
    "stderr_contains": texts("What standard error must have."),
    "stdout_matches": texts("Regexes that standard output must match."),
    "stdout_not_matches": texts("Regexes that standard output must not match."),
    "sub_path": SUB_PATH,
    "timeout": duration("How long it may take."),
    "env": ENV,
}
PROGRAM_KEYS = {
    "program": text("The program; EVALUATE_GRADER_INPUT names a file with everything there is to grade."),
    "args": listing("Its arguments.", text()),
    "shell": flag("Run it through a shell (default: false)."),
    "sub_path": SUB_PATH,
    "timeout": duration("How long it may take (default: 60s)."),
    "env": ENV,
    "verdict": choice(
        "Where its verdict is read: `stdout` (default), or `file`, whose path it reads from standard input.",
        "stdout",
        "file",
    ),
}

GRADERS: Mapping[str, GraderForm] = {
    "output-contains": _contains("The final output has a text."),
    "output-not-contains": _contains("The final output does not have a text."),
    "output-matches": _matches("The final output matches a regex."),
    "output-not-matches": _matches("The final output does not match a regex."),
    "transcript-contains": _contains("One of the agent's messages has a text."),
    "transcript-not-contains": _contains("There are messages, and none has the text."),
    "transcript-matches": _matches("One of the agent's messages matches a regex."),
    "transcript-not-matches": _matches("There are messages, and none matches the regex."),
    "file-exists": _file("A file is there."),
    "file-not-exists": _file("No such file is there."),
    "file-contains": _file_has("One of the files has a text."),
    "file-not-contains": _file_has("None of the files has the text."),
    "file-matches": _file_matches("One of the files matches a regex."),
    "file-not-matches": _file_matches("None of the files matches the regex."),
    "diff-contains": GraderForm(
        "What changed in the workspace has a text or matches a regex.",
        DIFF_KEYS,
        any_of=("value", "substring", "pattern"),
    ),
    "diff-not-contains": GraderForm(
        "What changed in the workspace does not have it.",
        DIFF_KEYS,
        any_of=("value", "substring", "pattern"),
    ),
    "diff-empty": GraderForm("Nothing changed in the workspace.", {"negate": NEGATE, "turn": TURN}),
    "run-command": GraderForm(
        "A command on a copy of the workspace ends as expected.", COMMAND_KEYS, ("command",)
    ),
    "program": GraderForm("A program of yours says the verdict.", PROGRAM_KEYS, ("program",)),
    "completed": GraderForm("There is output, no error, and a turn that ended.", {}),
    "exit-success": GraderForm("There is output.", {}),
    "skill-invocation": GraderForm(
        "Which skills were used.",
        {"required": texts("Skills that must be used."), "disallowed": texts("Skills that must not be.")},
        any_of=("required", "disallowed"),
    ),
    "tool-calls": GraderForm(
        "Which tools were called, and with what.",
        {
            "required": listing("Calls that must be made, and return.", _call(RESULT, REQUIRED_KEYS)),
            "disallowed": listing("Calls that must not be made.", _call(RESULT)),
            "sequence": listing("Calls that must be made in this order.", _call()),
            "parallel": listing("Calls that must be made at once.", _call(RESULT)),
            "ordered": flag("The required calls are made in this order (default: false)."),
        },
        any_of=("required", "disallowed", "sequence", "parallel"),
    ),
    "token-budget": _most("At most so many tokens."),
    "tool-call-count": _most("At most so many tool calls.", tools=TOOLS),
    "turn-count": _most("At most so many turns."),
    "step-count": _most("At most so many steps of the agent.", tools=TOOLS),
    "error-count": _most("At most so many errors."),
    "wall-time": GraderForm("At most so long.", {"max": duration("The longest that passes.")}, ("max",)),
    "max-repeat": _most("The same call is not repeated too often.", **LOOP_KEYS),
    "loop-outcome": GraderForm(
        "The agent was stuck in a loop, or was not.",
        {
            "max_acceptable_retries": whole("Retries that are no loop yet; N equal calls are N-1 retries."),
            **LOOP_KEYS,
            "match": choice(
                "What makes calls equal: name and arguments (default), the name, or name and result.",
                "name-args",
                "name",
                "observation",
            ),
            "should_loop": flag("Whether it should be (default: false)."),
        },
        ("max_acceptable_retries",),
    ),
    "assistant-contains-tool-output": GraderForm(
        "The agent passed on what a tool told it.",
        {
            "tools": texts("Regexes of the names of tools whose results are looked at."),
            "pattern": text("What must be passed on: its first group, or all it matches, in a result."),
        },
        ("tools", "pattern"),
    ),
    "custom-metrics": GraderForm(
        "Metrics in a JSON file of the trial are as asked.",
        {
            "assertions": listing("What holds of each metric.", ASSERTION, least=1),
            "path": text("The file, relative to the workspace (default: custom_metrics.json)."),
        },
        ("assertions",),
    ),
    "system-event": GraderForm(
        "Which system events there were.",
        {
            "required": texts("Events that must be there, by their exact `eventType`."),
            "disallowed": texts("Events that must not be there."),
        },
        any_of=("required", "disallowed"),
    ),
    "prompt": GraderForm("A model judges the work.", {**JUDGE, "model": MODEL}),
    "panel": GraderForm(
        "Several models judge the work.",
        {
            **JUDGE,
            "models": listing("The judges: names of models, or {model, provider, reasoning_effort}.", {}),
            "judges": listing("Another name of `models`.", {}),
            "aggregation": choice("How they become one (default: mean).", *AGGREGATIONS),
            "aggregate": choice("Another name of `aggregation`.", *AGGREGATIONS),
            "overall_threshold": number("The panel's score that passes (default: `threshold`).", most=1),
            "criteria": listing("What is scored, in place of the stimulus's rubric.", CRITERION, least=1),
        },
        any_of=("models", "judges"),
    ),
    "pairwise": GraderForm(
        "Of older files: only `compare` uses it.",
        {"prompt": JUDGE["prompt"], "model": MODEL, "threshold": JUDGE["threshold"]},
    ),
    "json-schema": GraderForm(
        "JSON in the output, or in a file, fits a JSON Schema.",
        {
            "schema": {"description": "The schema, or the path of one, relative to this file."},
            "file": JSON_FILE,
        },
        ("schema",),
    ),
    "json-path": GraderForm(
        "What a query selects in JSON is there and as asked.",
        {
            "query": text("What is selected, such as $.items[*].name."),
            "path": text("Another name of `query`."),
            "file": JSON_FILE,
            "exists": flag("Whether it selects anything (default: true)."),
            "count": whole("How many values it selects."),
            "all": flag("Every selected value must be as asked, not only one of them (default: false)."),
            "equals": {"description": "The value."},
            "contains": {"description": "What the value has in it."},
            "matches": texts("Regexes that the value matches."),
            "min": number("Its least value.", least=-1e308),
            "max": number("Its greatest value.", least=-1e308),
        },
        any_of=("query", "path"),
    ),
    "expected-diff": GraderForm(
        "What changed in the workspace is what a patch says (default: the stimulus's golden patch).",
        {
            "patch": text("The patch."),
            "file": text("The file it is in, relative to this file."),
            "ignore_whitespace": flag("Whether spaces count (default: they do)."),
            "allow_other_files": flag("Whether other files may change too (default: false)."),
            "turn": TURN,
        },
    ),
}
"""Every built-in type."""
