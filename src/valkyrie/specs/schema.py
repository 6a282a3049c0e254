"""The JSON Schema of eval specs, project files and experiments: what editors complete and check with."""

from __future__ import annotations

from valkyrie.domain import Json
from valkyrie.specs.grader_schema import (
    EFFORT,
    GRADERS,
    SCALARS,
    choice,
    duration,
    flag,
    listing,
    mapping,
    number,
    or_nothing,
    record,
    ref,
    said,
    text,
    texts,
    whole,
)

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TAGS = mapping("Names and values to choose stimuli by.", texts("A value, or several."))
ELSEWHERE: Json = {"deprecated": True, "description": "Not part of the format: ignored."}


def json_schema() -> Json:
    """The schema of eval.yaml; `$defs/project` and `$defs/experiment` are those of the other two files."""
    return {
        "$schema": DRAFT,
        "title": "Eval spec",
        **_spec(),
        "$defs": {
            **SCALARS,
            "defaults": _defaults(),
            "scoring": _scoring(),
            "environment": _environment(),
            "named_environment": {
                "description": "What the agent finds: written out, or the name of one in .vally.yaml.",
                "anyOf": [ref("environment"), {"type": ["string", "null"]}],
            },
            "files": listing("Files and folders put into the workspace.", _file()),
            "grading_environment": _grading_environment(),
            "constraints": _constraints(),
            "tags": TAGS,
            "stimulus": _stimulus(),
            "grader": _grader(),
            "project": _project(),
            "experiment": _experiment(),
        },
    }


def _spec() -> Json:
    config = said(ref("defaults"), "The older name of `defaults`.")
    some = {"required": ["graders"], "properties": {"graders": {"minItems": 1}}}
    graded = {"items": {"anyOf": [some, {"required": ["constraints"]}]}}
    form = record(
        "What to ask an agent, and how to grade what it does.",
        {
            "name": text("What the eval is called (default: its folder's name)."),
            "description": text("What it is for."),
            "version": text("The author's version."),
            "type": choice("What it guards.", "capability", "regression"),
            "agent_environment": ref("named_environment"),
            "environment": said(ref("named_environment"), "Another name of `agent_environment`."),
            "grading_environment": ref("grading_environment"),
            "artifacts": or_nothing(_artifacts()),
            "graders": listing("Checks of every stimulus, besides its own.", ref("grader")),
            "defaults": ref("defaults"),
            "config": config,
            "scoring": ref("scoring"),
            "tags": ref("tags"),
            "constraints": ref("constraints"),
            "stimuli": listing("The tasks.", ref("stimulus"), least=1),
            **dict.fromkeys(("area", "executionShard", "metadata", "moderation"), ELSEWHERE),
        },
        "stimuli",
    )
    return {**form, "anyOf": [some, {"properties": {"stimuli": graded}}]}


def _defaults() -> Json:
    executor = record(
        "An agent and its settings.",
        {"name": text("The agent."), "config": {"type": ["object", "null"]}},
        "name",
    )
    return record(
        "How every stimulus is run.",
        {
            "runs": whole("Trials of each stimulus (default: 1); 0 only checks the spec."),
            "timeout": duration("How long one trial may take (default: 2m)."),
            "model": text("The agent's model."),
            "judge_model": text("The model that judges."),
            "executor": {"description": "The agent that is tested.", "anyOf": [text(), executor]},
            "reasoning_effort": EFFORT,
            "judge_reasoning_effort": EFFORT,
            "judge_provider": text("Whose interface the judge speaks."),
        },
    )


def _scoring() -> Json:
    return record(
        "How graders make a verdict.",
        {
            "threshold": number("The weighted score that passes; without it every grader must pass.", most=1),
            "weights": mapping("Grader name or type → weight (default: 1 each).", number("A weight.")),
            "timeout": duration("How long grading may take."),
        },
    )


def _file() -> Json:
    return record(
        "A file or folder, and where it goes.",
        {
            "src": text("A file or folder, relative to this file."),
            "dest": text("Where it goes, relative to the workspace."),
            "dest_root": choice("What `dest` is relative to.", "workspace"),
        },
        "src",
        "dest",
    )


def _environment() -> Json:
    git = record(
        "The repository the workspace starts from.",
        {
            "type": choice("How it is taken.", "worktree", "clone"),
            "source": text("A repository on this machine, relative to this file."),
            "url": text("The address of a repository."),
            "ref": text("A branch, tag or commit."),
            "shallow": flag("Without its history (default: false)."),
            "sparse": texts("Only these folders of it."),
        },
    )
    timeout = duration("How long each command may take (default: 60s).")
    return record(
        "What the agent finds.",
        {
            "skills": texts(
                "Skills: folders with a SKILL.md, relative to this file. Exactly these are there."
            ),
            "files": ref("files"),
            "commands": texts("Shell lines run in the workspace before the agent."),
            "commandTimeout": timeout,
            "command_timeout": timeout,
            "git": or_nothing(git),
            "env": mapping("Variables of the agent's process.", text()),
            "mcpServers": mapping("MCP servers by name.", _mcp_server()),
            "mcp_servers": mapping("Another name of `mcpServers`.", _mcp_server()),
        },
    )


def _mcp_server() -> Json:
    milliseconds = {
        "type": "number",
        "exclusiveMinimum": 0,
        "description": "Milliseconds.",
        "deprecated": True,
    }
    return record(
        "An MCP server.",
        {
            "type": choice("How it is reached.", "stdio", "local", "http", "sse", "streamable-http"),
            "command": text("The program."),
            "args": listing("Its arguments.", text()),
            "env": mapping("Its environment.", text()),
            "cwd": text("Where it runs, relative to this file."),
            "url": text("Its address."),
            "headers": mapping("Headers of every request.", text()),
            "tools": texts("Only these tools of it."),
            "timeout": {"anyOf": [duration("How long it may take to answer."), milliseconds]},
        },
    )


def _grading_environment() -> Json:
    written = record("Files that are there only while the work is graded.", {"files": ref("files")})
    return {
        "description": "Files that are there only while the work is graded.",
        "anyOf": [written, ref("files"), {"type": ["string", "null"]}],
    }


def _constraints() -> Json:
    return or_nothing(
        record(
            "Bounds: limits of the agent, reported beside the graders; none counts in the score.",
            {
                "max_turns": whole("At most so many turns."),
                "max_tokens": whole("At most so many tokens."),
                "max_duration": duration("At most so long; the agent is stopped then, and graded."),
                "max_agent_duration": duration("The same, of the agent alone."),
                "max_wall_time": duration("Another name of `max_duration`."),
                "max_tool_calls": whole("At most so many tool calls."),
                "max_duration_ms": {**number("The older name of `max_duration`."), "deprecated": True},
                "expect_tools": texts("Tools that must be called."),
                "reject_tools": texts("Tools that must not be called."),
                "expect_skills": texts("Skills that must be used."),
                "reject_skills": texts('Skills that must not be used; ["*"] is any.'),
            },
        )
    )


def _artifacts() -> Json:
    return record(
        "Which files of the workspace are kept.",
        {"include": texts("Globs of what is kept."), "exclude": texts("Globs of what is not; these win.")},
    )


def _stimulus() -> Json:
    own = record("Its own settings.", {"runs": whole("Its trials."), "timeout": duration("How long.")})
    patch = record("A patch.", {"path": text("Its file."), "content": text("Or the patch itself.")})
    attached = record(
        "A file.", {"path": text("Its path."), "src": text("Its path."), "dest": text("Its name.")}
    )
    form = record(
        "One task.",
        {
            "name": text("What it is called; no two in a file are called the same."),
            "prompt": text("What the agent is told."),
            "turns": listing("What it is told, one after the other, in one conversation.", text(), least=1),
            "graders": listing("What is checked.", ref("grader")),
            "tags": ref("tags"),
            "rubric": texts("What a judge looks for."),
            "agent_environment": ref("named_environment"),
            "environment": said(ref("named_environment"), "Another name of `agent_environment`."),
            "supported_executors": texts("Only these agents are asked."),
            "grading_environment": ref("grading_environment"),
            "constraints": ref("constraints"),
            "artifacts": or_nothing(_artifacts()),
            "attachments": listing("Files given with the prompt.", {"anyOf": [text(), attached]}),
            "golden_patch": {"description": "A known good answer.", "anyOf": [text(), patch]},
            "runs": whole("Its own number of trials."),
            "timeout": duration("How long its trials may take."),
            "config": or_nothing(own),
            **dict.fromkeys(("simulation", "expect_activation", "area", "metadata"), ELSEWHERE),
            "golden_trajectory": {
                "description": "A known good trajectory (ATIF): its file, or written out.",
                "anyOf": [text(), {"type": "object"}],
            },
            "golden_command": {
                "description": "A line for the shell that does what is asked.",
                "anyOf": [text(), record("A command.", {"command": text("The line.")}, "command")],
            },
        },
        "name",
    )
    return {**form, "oneOf": [{"required": ["prompt"]}, {"required": ["turns"]}]}


def _grader() -> Json:
    known = [{"const": name, "description": form.about} for name, form in GRADERS.items()]
    form = record(
        "One check.",
        {
            "type": {
                "description": "What is checked; a plugin may add types.",
                "anyOf": [*known, {"type": "string"}],
            },
            "name": text("What it is called in reports."),
            "config": {"type": ["object", "null"], "description": "What the type needs."},
            "turn": whole("Only this turn of the conversation, from 0."),
            "weight": number("How much it counts (default: 1)."),
        },
        "type",
        closed=False,
    )
    return {**form, "allOf": [_when(name) for name in GRADERS]}


def _when(name: str) -> Json:
    """Return what holds for entries of one type."""
    form = GRADERS[name]
    config = form.config()
    needed: Json = {"required": ["config"]} if form.required or form.any_of else {}
    if not needed:
        config = or_nothing(config)
    then: Json = {"properties": {"config": config}, **needed}
    return {"if": {"properties": {"type": {"const": name}}, "required": ["type"]}, "then": then}


def _project() -> Json:
    paths = record(
        "Where things are, relative to this file.",
        {
            "skills": texts('Folders of skills (default: "skills/").'),
            "evals": texts('Folders of evals (default: "evals/").'),
            "results": text('Where results go (default: "results/").'),
            "evalFilenames": texts("What eval files are called (default: eval.yaml, eval.yml)."),
        },
    )
    suite = record(
        "A choice of evals.",
        {
            "description": text("What it is for."),
            "filter": {
                "type": "object",
                "description": "Tags: all of them, one of the values of each; !x leaves out.",
            },
            "evals": texts("Files, folders or globs."),
            "metadata": {"type": "object"},
        },
    )
    plugins = {
        key: texts("Entry points, module:Class, or files.")
        for key in ("graders", "executors", "evals", "reporters")
    }
    return record(
        ".vally.yaml: where things are, and what they are called.",
        {
            "paths": or_nothing(paths),
            "suites": mapping(
                "Suites by name.", {**suite, "anyOf": [{"required": ["filter"]}, {"required": ["evals"]}]}
            ),
            "environments": mapping("Environments by name.", or_nothing(ref("environment"))),
            "plugins": or_nothing(record("Plugins that are loaded.", plugins)),
            "metadata": {"type": "object"},
            "backend": {},
        },
    )


def _experiment() -> Json:
    parts: dict[str, Json] = {
        "description": text("What it is for."),
        "defaults": ref("defaults"),
        "config": ref("defaults"),
        "overrides": ref("defaults"),
        "agent_environment": ref("named_environment"),
        "environment": ref("named_environment"),
        "grading_environment": ref("grading_environment"),
        "scoring": ref("scoring"),
        "constraints": ref("constraints"),
        "tags": ref("tags"),
    }
    axis = record(
        "What is varied, and over what.",
        {
            "path": text("A JSON Pointer such as /defaults/model."),
            "values": listing("The values.", {}, least=1),
        },
        "path",
        "values",
    )
    form = record(
        "The same evals under several variants.",
        {
            "name": text("What it is called."),
            "description": text("What it is for."),
            "evals": texts("Files or globs, relative to this file."),
            "variants": mapping(
                "Variants by name.", or_nothing(record("What it lays over each eval.", parts))
            ),
            "vary": texts("JSON Pointers below which variants may differ."),
            "matrix": mapping("Axes by name; every combination is a variant.", axis),
            "baseline": {
                "description": "The variant others are compared with.",
                "type": ["string", "object"],
            },
            "overrides": ref("defaults"),
            "execution": or_nothing(record("How it runs.", {"workers": whole("How many at once.", 1)})),
        },
        "name",
        "evals",
    )
    return {**form, "oneOf": [{"required": ["variants"]}, {"required": ["matrix"]}]}
