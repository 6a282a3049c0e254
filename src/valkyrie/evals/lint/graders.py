"""Check graders: their types and configs, values that are slips, unknown tools, weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import PurePosixPath

from valkyrie.agents.catalog import CATALOG
from valkyrie.agents.loader import ALIASES
from valkyrie.errors import ValkyrieError
from valkyrie.evals.lint.claims import compiled, found, items, texts
from valkyrie.evals.lint.rules import LintOptions, finding
from valkyrie.grade.graders import check_grader, known_types, load_plugins, weight_of
from valkyrie.grade.protocol import constraint_graders
from valkyrie.specs.model import EvalSpec, Finding, GraderSpec, SourceLocation, SpecError, Stimulus
from valkyrie.specs.project import examine_skill, skill_folders
from valkyrie.text import did_you_mean

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")


def grader_findings(spec: EvalSpec, options: LintOptions) -> Iterator[Finding]:
    """Everything wrong with each grader by itself, and with its name among all."""
    yield from _names(spec)
    try:
        registry = load_plugins(options.grader_plugins, spec.folder)
    except ValkyrieError as error:
        yield finding("grader-plugin", str(error), SourceLocation(spec.file))
        return
    known = set(known_types(registry))
    for stimulus in spec.stimuli:
        for grader in (*stimulus.graders, *constraint_graders(stimulus.constraints)):
            if grader.type not in known and options.unloaded_graders:
                yield finding("plugin-not-loaded", _not_loaded(grader, options), grader.place)
                continue
            yield from check_grader(grader, registry, stimulus)
            if grader.type == "pairwise":
                message = (
                    f"{grader.label}: `pairwise` is skipped, since one trial alone has nothing to be "
                    "compared with. Write a `prompt` grader, and hold two result folders against each other "
                    "with `valkyrie compare`"
                )
                yield finding("pairwise-grader", message, grader.place)


def _names(spec: EvalSpec) -> Iterator[Finding]:
    """Yield names that other tools of this format refuse. A grader that several stimuli share is one."""
    first: dict[str, SourceLocation | None] = {}
    for grader in (one for stimulus in spec.stimuli for one in stimulus.graders):
        name = grader.name
        if name is None or (name in first and first[name] == grader.place):
            continue
        if not _NAME.fullmatch(name):
            message = (
                f"the grader {name[:200]!r}: a name has up to 60 of a-z, 0-9 and hyphens, and begins with a "
                "letter or digit; other tools of this format refuse it"
            )
            yield finding("grader-name", message, grader.place)
        elif name in first:
            at = first[name]
            where = f" (first at {at.line}:{at.column})" if at else ""
            message = (
                f"two graders are called {name!r}{where}: other tools of this format want names to differ in "
                "the whole file"
            )
            yield finding("grader-name", message, grader.place)
        first.setdefault(name, grader.place)


def _not_loaded(grader: GraderSpec, options: LintOptions) -> str:
    named = ", ".join(options.unloaded_graders)
    return (
        f"{grader.label}: type {grader.type!r} is not built in; the project's plugins ({named}) may add it, "
        "and lint does not load them. --grader-plugin names one that is loaded and checked"
    )


# Values in graders' configs that are surely slips: they read well, and no agent can help it.

_DOUBLY_ESCAPED = re.compile(
    r"""(?<!\\)(?:\\\\)        # a backslash that is looked for as such
    (?:[dwsDWS](?=[+*?{)\]|\\]|$)  # then what would be a class of characters, repeated or at an end
    |[bB](?=[(\[\\|)]|$)           # or a border of a word
    |(?<=^\\\\)b(?=\w)             # which may stand before the first word
    |[.()\[\]{}+*?|^$])            # or a character that would be itself""",
    re.VERBOSE,
)
_MATCHES = re.compile(r"(output|transcript|file)-(not-)?matches|diff-(not-)?contains")
_TOOL_LISTS = ("required", "disallowed", "sequence", "parallel", "tools")
_STREAMS = ("stdout_matches", "stdout_not_matches", "stderr_matches", "stderr_not_matches")
_PATHS = re.compile(r"file-(not-)?(exists|contains|matches)|json-(schema|path)|custom-metrics|expected-diff")


def grader_value_findings(stimulus: Stimulus) -> Iterator[Finding]:
    """Patterns, paths, commands and skills that cannot be meant as they are written."""
    for grader in stimulus.graders:
        yield from _patterns(grader)
        yield from _paths(grader)
        yield from _command(grader)
    yield from _skills(stimulus)


def _patterns(grader: GraderSpec) -> Iterator[Finding]:
    for pattern in dict.fromkeys(_patterns_of(grader)):
        if match := _DOUBLY_ESCAPED.search(pattern):
            once = pattern[match.start() + 1 : match.end()]
            message = (
                f"{grader.label}: {pattern!r} is escaped twice: {match[0]} matches a backslash and what "
                f"follows it. Write {once} (in double quotes YAML takes one backslash off, in single quotes "
                "and without quotes none)"
            )
            yield finding("doubly-escaped-pattern", message, grader.place)


def _patterns_of(grader: GraderSpec) -> Iterator[str]:
    config = grader.config
    if _MATCHES.fullmatch(grader.type):
        yield from texts(config.get("pattern"))
    if grader.type == "run-command":
        for key in _STREAMS:
            yield from texts(config.get(key))
    for entry in (one for key in _TOOL_LISTS for one in items(config.get(key))):
        if grader.type != "skill-invocation":
            yield from _texts_below(entry)


def _texts_below(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts_below(inner)


def _paths(grader: GraderSpec) -> Iterator[Finding]:
    keys = ("path", "sub_path") if _PATHS.fullmatch(grader.type) else ("sub_path",)
    for key in keys:
        path = grader.config.get(key)
        if isinstance(path, str) and (path.startswith(("/", "~")) or ".." in PurePosixPath(path).parts):
            message = (
                f"{grader.label}: {key} {path!r} leads out of the workspace, where nothing is looked for; "
                "write it as it is seen from the workspace's top folder"
            )
            yield finding("path-outside-workspace", message, grader.place)


def _command(grader: GraderSpec) -> Iterator[Finding]:
    key = {"run-command": "command", "program": "program"}.get(grader.type)
    word = grader.config.get(key) if key else None
    if not isinstance(word, str) or grader.config.get("shell") is True:
        return
    first, space, rest = word.strip().partition(" ")
    if space and grader.config.get("args") is not None:
        message = (
            f"{grader.label}: with `args` no shell reads {key}, so {word!r} is the name of one program. "
            f"Write `{key}: {first}` and put {rest.strip()!r} at the beginning of `args`"
        )
        yield finding("command-with-space", message, grader.place)


def _skills(stimulus: Stimulus) -> Iterator[Finding]:
    """Skills that graders name and a stimulus that has skills does not offer."""
    offered = _offered(stimulus)
    if not offered:
        return
    for grader in stimulus.graders:
        if grader.type != "skill-invocation":
            continue
        for key, quiet in (("required", False), ("disallowed", True)):
            for name in texts(grader.config.get(key)):
                if name != "*" and name not in offered:
                    always = "this always passes" if quiet else "no agent can take it up"
                    hint = did_you_mean(name, offered) or f" It offers {', '.join(sorted(offered)[:5])}."
                    said = f"the spec offers {stimulus.name!r} no skill {name!r}, so {always}.{hint}"
                    yield finding("skill-not-offered", f"{grader.label}: {said}", grader.place, quiet=quiet)


def _offered(stimulus: Stimulus) -> set[str]:
    """The names of its skills; nothing where one cannot be read, which is said of the skill."""
    names: set[str] = set()
    for ref in stimulus.environment.skills or ():
        try:
            for folder in skill_folders(ref.folder):
                skill, found = examine_skill(folder)
                if skill is None or any(one.severity == "error" for one in found):
                    return set()
                names |= {skill.name, folder.name}
        except (OSError, SpecError):
            return set()
    return names


# The tools of known agents by name, and patterns of tool names that match none of them.


@cache
def known_tools() -> frozenset[str]:
    """Return the names of all tools of the catalogue's agents."""
    return frozenset(name for entry in CATALOG.values() for name in entry.tools.split())


def tool_findings(spec: EvalSpec, stimulus: Stimulus, *, known_agent: bool) -> Iterator[Finding]:
    """Forbidden or counted tools that no known agent has: a typo there passes every trial.

    Tools of MCP servers and of agents of one's own are not known, so where they may be, nothing is said.
    """
    if not known_agent or spec.defaults.executor == "mock" or stimulus.environment.mcp_servers:
        return
    for pattern, what, grader in _forbidden(stimulus):
        near = _nobody_has(pattern, spec.defaults.executor or "")
        if near is not None:
            message = f"{what} {pattern!r}, but no known agent has such a tool, so this always passes.{near}"
            place = grader.place if grader else stimulus.constraints.place
            yield finding("tool-matches-nothing", message, place)


@lru_cache(maxsize=4096)
def _nobody_has(pattern: str, executor: str) -> str | None:
    """None where some known tool fits; else the nearest name, in words. Specs repeat their patterns a lot."""
    regex = compiled(pattern)
    if regex is None or any(found(regex, name) for name in known_tools()):
        return None
    # Of names that differ in case alone the last counts: the agent's own.
    entry = CATALOG.get(ALIASES.get(executor, executor))
    own = entry.tools.split() if entry else []
    return did_you_mean(pattern.strip("^$()"), [*sorted(known_tools()), *own])


def _forbidden(stimulus: Stimulus) -> Iterator[tuple[str, str, GraderSpec | None]]:
    for tool in stimulus.constraints.reject_tools:
        yield tool, "reject_tools names", None
    for grader in stimulus.graders:
        if grader.type == "tool-calls":
            for entry in items(grader.config.get("disallowed")):
                name = entry.get("name") if isinstance(entry, dict) else entry
                if isinstance(name, str):
                    yield name, "tool-calls disallows", grader
        elif grader.type in ("tool-call-count", "max-repeat"):
            for name in texts(grader.config.get("tools")):
                yield name, f"{grader.type} counts", grader


# Weights that weigh nothing, or not what their author thinks.


def weight_findings(spec: EvalSpec) -> Iterator[Finding]:
    """`scoring.weights` against the graders there are."""
    for stimulus in spec.stimuli:
        graders = stimulus.graders
        if graders and all(_weight(grader, spec) == 0 for grader in graders):
            message = f"every grader of {stimulus.name!r} has the weight 0; give one of them a weight"
            yield finding("weights-all-zero", message, stimulus.place)
    weights = spec.scoring.weights
    if not weights:
        return
    place = _weights_place(spec)
    names = {
        word
        for stimulus in spec.stimuli
        for grader in stimulus.graders
        for word in (grader.label, grader.type)
    }
    for word in weights:
        if word not in names:
            hint = did_you_mean(word, names)
            message = f"the weight of {word!r} applies to nothing: no grader has that name or type.{hint}"
            yield finding("unused-weight", message, place)
    total = sum(weights.values())
    if abs(total - 1) > 1e-6:
        message = (
            f"the weights sum to {total:g}, not 1. Scores are divided by the weight of all graders of a "
            "stimulus, so only their proportion counts"
        )
        yield finding("weights-sum", message, place)


def _weight(grader: GraderSpec, spec: EvalSpec) -> float:
    try:
        return weight_of(grader, spec.scoring)
    except SpecError:
        return 1.0  # what is wrong with it is said elsewhere


def _weights_place(spec: EvalSpec) -> SourceLocation:
    """The line of `weights:`; the spec as types no longer knows it."""
    try:
        lines = spec.file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return SourceLocation(spec.file)
    for number, line in enumerate(lines, start=1):
        if found := re.match(r"[^#]*?\b(weights)\s*:", line):
            return SourceLocation(spec.file, number, found.start(1) + 1)
    return SourceLocation(spec.file)
