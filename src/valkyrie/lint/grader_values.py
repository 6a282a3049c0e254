"""Values in graders' configs that are surely slips: they read well, and no agent can help it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from valkyrie.lint.claims import items, texts
from valkyrie.lint.codes import finding
from valkyrie.specs.model import Finding, GraderSpec, SpecError, Stimulus
from valkyrie.specs.skills import examine_skill, skill_folders
from valkyrie.suggest import did_you_mean

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
