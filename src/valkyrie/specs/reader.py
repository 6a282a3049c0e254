"""Read eval.yaml into an EvalSpec, with `${NAME}` filled in; report everything wrong with a file at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from valkyrie.config.permissions import Allowance
from valkyrie.domain import Json
from valkyrie.specs.model import (
    Defaults,
    EvalSpec,
    Finding,
    Project,
    Scoring,
    SourceLocation,
    SpecError,
    Stimulus,
)
from valkyrie.specs.project import file_root, find_project, named_environment, outside_findings
from valkyrie.specs.stimuli import (
    InheritedFields,
    read_artifacts,
    read_environment,
    read_grading,
    read_stimulus,
    read_tags,
    with_environment,
)
from valkyrie.specs.yaml_nodes import (
    Fields,
    Node,
    Notes,
    from_data,
    load_yaml,
    overlay,
    parse_yaml,
    resolve,
    with_entries,
)
from valkyrie.text import did_you_mean

_VARIABLE = re.compile(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_]*)(?:=([^{}]*))?\}")
FREE_TEXT = frozenset(
    (
        "prompt",
        "turns",
        "description",
        "rubric",
        "graders",
        "golden_patch",
        "golden_command",
        "golden_trajectory",
        "simulation",
        "commands",
        "args",
        "env",
    )
)
SHELL = frozenset(("commands", "command", "args", "env"))
"""Free text in which `${NAME}` is ordinary, and not worth a word."""


@dataclass(slots=True)
class Variables:
    """Values by name."""

    params: Mapping[str, str]
    allowed: Mapping[str, str]
    """Of the user's environment."""
    notes: Notes

    def fill(self, node: Node, *, free: bool = False, shell: bool = False) -> Node:
        """The same data with every variable replaced."""
        if (mapping := node.mapping) is not None:
            filled = {
                key: self.fill(value, free=free or key in FREE_TEXT, shell=shell or key in SHELL)
                for key, value in mapping.items()
            }
            same = all(filled[key] is value for key, value in mapping.items())
            return node if same else replace(node, value=filled)
        if (items := node.items) is not None:
            listed = [self.fill(item, free=free, shell=shell) for item in items]
            same = all(one is item for one, item in zip(listed, items, strict=True))
            return node if same else replace(node, value=listed)
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        text = _VARIABLE.sub(lambda match: self.value(match, node, free, shell), node.value)
        # `runs: ${RUNS}` is a number once it is filled in; in quotes it was meant as text.
        return replace(node, value=resolve(text) if node.plain and not free else text, raw=text)

    def value(self, match: re.Match[str], node: Node, free: bool, shell: bool) -> str:
        escaped, name, default = match[1], match[2], match[3]
        if escaped:
            return match[0][1:]
        if name in self.params:
            return self.params[name]
        if free and shell:
            return match[0]
        if default is not None and (free or name not in self.allowed):
            return default
        if free:
            self.notes.once(
                "unset-variable",
                name,
                f"`${{{name}}}` has no value and stays as it is: give it with --param {name}=VALUE, "
                f"or write `$${{{name}}}` if it is meant literally.",
                node.place,
            )
            return match[0]
        if name in self.allowed:
            return self.allowed[name]
        self.notes.error(
            "unset-variable",
            f"`${{{name}}}` has no value: give it with --param {name}=VALUE, let it have your variable with "
            f"--pass-env {name}, or write `$${{{name}}}` if it is meant literally.",
            node,
        )
        return match[0]


# eval.yaml → EvalSpec. Everything wrong with a file is told at once.

BASE = "$base"
"""In a patch: the folder its relative paths are relative to."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Words for how hard a model thinks; a model may know others."""
EFFORT_FORM = re.compile(r"[a-z][a-z0-9_-]{0,31}")
OLDER_ROOT_KEYS = ("runs", "timeout", "model", "judge_model", "executor", "reasoning_effort")
"""Once allowed at the top of the file, now below `defaults`."""
ELSEWHERE = "is not part of the format and is ignored; use `tags`."
OTHERS = {
    "area": ELSEWHERE,
    "executionShard": ELSEWHERE,
    "metadata": ELSEWHERE,
    "moderation": "is another tool's own key and is ignored.",
    "expect_activation": "is another tool's own key and is ignored.",
    "$schema": "is for editors: write it as a comment, `# yaml-language-server: $schema=…`.",
}
FOREIGN = {
    "tasks": "a waza file, another tool's eval.yaml. An eval spec has `stimuli`.",
    "variants": "an experiment file: run it with `valkyrie experiment run`.",
    "matrix": "an experiment file: run it with `valkyrie experiment run`.",
    "suites": "a project file (.vally.yaml): choose one of its suites with `--suite`.",
}
"""Keys by which a file of another kind is known."""


@dataclass(frozen=True, slots=True)
class Read:
    """A spec, and what is doubtful about it."""

    spec: EvalSpec
    findings: tuple[Finding, ...] = ()
    """Warnings and hints; errors are raised."""


def read_spec(
    path: Path,
    *,
    params: Mapping[str, str] | None = None,
    patch: Json | None = None,
    project: Project | None = None,
    allowed: Allowance | None = None,
) -> Read:
    """Read a spec file. Raises SpecError with everything that is wrong."""
    return _settled(*examine(path, params=params, patch=patch, project=project, allowed=allowed))


def read_text(
    text: str,
    path: Path,
    *,
    params: Mapping[str, str] | None = None,
    patch: Json | None = None,
    project: Project | None = None,
    allowed: Allowance | None = None,
) -> Read:
    """The same of a text that stands for this file."""
    reader = _Reader(path, params or {}, patch, project, allowed)
    spec = reader.read(parse_yaml(text, path))
    return _settled(spec, in_order(reader.notes.findings))


def examine(
    path: Path,
    *,
    params: Mapping[str, str] | None = None,
    patch: Json | None = None,
    project: Project | None = None,
    allowed: Allowance | None = None,
) -> tuple[EvalSpec | None, list[Finding]]:
    """As much of the spec as can be understood, and every finding, errors too."""
    reader = _Reader(path, params or {}, patch, project, allowed)
    try:
        document = load_yaml(path)
    except SpecError as error:
        return None, list(error.findings)
    return reader.read(document), in_order(reader.notes.findings)


def patched_document(
    path: Path,
    *,
    params: Mapping[str, str] | None = None,
    patch: Json | None = None,
    project: Project | None = None,
    allowed: Allowance | None = None,
) -> Node:
    """The data of a spec under a patch, before it is understood; what is wrong with it is not told here."""
    return _Reader(path, params or {}, patch, project, allowed).document(load_yaml(path))


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: (one.place.line, one.place.column) if one.place else (0, 0))


def _settled(spec: EvalSpec | None, findings: list[Finding]) -> Read:
    if errors := [finding for finding in findings if finding.severity == "error"]:
        raise SpecError(errors)
    if spec is None:
        raise AssertionError("a spec that cannot be read without an error")
    return Read(spec, tuple(findings))


class _Reader:
    def __init__(
        self,
        path: Path,
        params: Mapping[str, str],
        patch: Json | None,
        project: Project | None,
        allowed: Allowance | None,
    ) -> None:
        self.path = path
        self.allowed = allowed or Allowance()
        self.patch = patch or {}
        self.project = project
        self.notes = Notes()
        self.variables = Variables(params, self.allowed.variables(), self.notes)

    def read(self, document: Node) -> EvalSpec | None:
        notes = self.notes
        if document.mapping is None:
            notes.error("wrong-type", f"An eval spec is a map, not {document.kind}.", document)
            return None
        for key, what in FOREIGN.items():
            if document.get("stimuli") is None and document.get(key) is not None:
                message = f"`{key}` without `stimuli`: this looks like {what}"
                notes.error("foreign-format", message, document.keys[key])
                return None
        return self.spec(Fields(self.document(document), notes, "eval spec"))

    def document(self, written: Node) -> Node:
        """The file's data with variables filled in, older forms made new and the patch laid over it."""
        return self.patched(normalised(self.variables.fill(written), self.notes))

    def patched(self, document: Node) -> Node:
        """The document with the root's named environment in place and the patch laid over it."""
        said = document.get("environment")
        if said is not None and isinstance(said.value, str):
            found = self.named(said) or Node({}, said.place, said.base)
            document = with_entries(document, {**(document.mapping or {}), "environment": found})
        if not self.patch:
            return document
        base = Path(self.patch[BASE]) if BASE in self.patch else self.path.parent
        rest = {key: value for key, value in self.patch.items() if key != BASE}
        over = normalised(from_data(rest, SourceLocation(self.path), base), self.notes)
        said = over.get("environment")
        if said is not None and isinstance(said.value, str):
            found = self.named(said) or Node({}, said.place, said.base)
            over = with_entries(over, {**(over.mapping or {}), "environment": found})
        return overlay(document, over)

    def spec(self, fields: Fields) -> EvalSpec:
        kind = fields.text("type")
        if kind not in (None, "capability", "regression"):
            self.notes.warning(
                "bad-value", f"`type` is capability or regression, not {kind!r}.", fields.take("type")
            )
        name = fields.text("name") or self.path.parent.absolute().name or self.path.stem
        tags = read_tags(fields)
        stimuli = self.stimuli(fields, tags)
        spec = EvalSpec(
            name=name,
            file=self.path,
            stimuli=stimuli,
            defaults=_defaults(fields.take("defaults"), self.notes),
            scoring=_scoring(fields.take("scoring"), self.notes),
            description=fields.text("description") or "",
            version=fields.text("version"),
            type=kind,
            tags=tags,
        )
        fields.finish(others=OTHERS, near=("config",))
        for finding in outside_findings(spec, self.roots()):
            self.notes.error(finding.code, finding.message, finding.place)
        return spec

    def roots(self) -> list[Path]:
        """Return where files of the spec may be: in its project, the experiment's, and what is allowed."""
        bases = [self.path.absolute().parent, *([Path(self.patch[BASE])] if BASE in self.patch else [])]
        return [*(file_root(base) for base in bases), *map(Path, self.allowed.paths)]

    def stimuli(self, fields: Fields, tags: Mapping[str, tuple[str, ...]]) -> tuple[Stimulus, ...]:
        environment = read_environment(fields.take("environment"), self.notes)
        patched_skills = "skills" in (self.patch.get("environment") or {})
        inherited = InheritedFields(
            tags=tags,
            environment=environment,
            artifacts=read_artifacts(fields),
            graders=tuple(fields.items("graders") or ()),
            grading_files=read_grading(fields, self.named),
            constraints=fields.take("constraints"),
            named=self.named,
            skills=environment.skills or () if patched_skills else None,
        )
        node, entries = fields.take("stimuli"), fields.items("stimuli")
        if not entries and (node is None or node.items is not None):
            message = "An eval spec needs `stimuli` with at least one entry."
            self.notes.error("no-stimuli", message, node or fields.node)
        found: dict[str, Stimulus] = {}
        for at, entry in enumerate(entries or (), 1):
            stimulus = read_stimulus(entry, at, inherited, self.notes)
            if stimulus is None:
                continue
            if (first := found.get(stimulus.name)) is not None:
                where = f" (first at {first.place.line}:{first.place.column})" if first.place else ""
                message = f"Two stimuli are called {stimulus.name!r}{where}: names must differ."
                self.notes.error("duplicate-stimulus", message, entry)
            found[stimulus.name] = stimulus
        return tuple(found.values())

    @cached_property
    def near(self) -> Project:
        """The project around the file."""
        return find_project(self.path.absolute().parent)

    def named(self, node: Node) -> Node | None:
        """The environment a name stands for, of the project given or of the one around the file."""
        name = str(node.value)
        near = self.near
        projects = [near] if self.project is None else [self.project, near]
        for project in projects:
            if name in project.environments:
                data = named_environment(project, name)
                place = SourceLocation(project.file) if project.file else node.place
                return self.variables.fill(from_data(data, place, self.path.parent))
        known = sorted({known for project in projects for known in project.environments})
        listed = f" Known: {', '.join(known)}." if known else " No .vally.yaml around it defines any."
        message = f"There is no environment {name!r} in .vally.yaml.{did_you_mean(name, known)}{listed}"
        self.notes.error("unknown-environment", message, node)
        return None


def normalised(document: Node, notes: Notes) -> Node:
    """`config` and keys that once stood at the top, as `defaults`; `agent_environment` as `environment`."""
    document = with_environment(document, notes, "eval spec")
    entries = dict(document.mapping or {})
    config, defaults = document.get("config"), document.get("defaults")
    entries.pop("config", None)
    if config is not None and defaults is not None:
        notes.warning(
            "given-twice",
            "`config` and `defaults` mean the same: they are merged, and `defaults` wins.",
            document.keys["config"],
        )
        defaults = overlay(config, defaults)
    else:
        defaults = defaults or config
    older = {key: entries.pop(key) for key in OLDER_ROOT_KEYS if key in entries}
    for key in older:
        message = f"`{key}` belongs below `defaults`; it counts here unless `defaults` says otherwise."
        notes.warning("older-key", message, document.keys.get(key))
    if older:
        under = Node(older, document.place, document.base, keys=document.keys)
        defaults = under if defaults is None else overlay(under, defaults)
    if defaults is not None:
        entries["defaults"] = defaults
    return with_entries(document, entries)


def _defaults(node: Node | None, notes: Notes) -> Defaults:
    if node is None:
        return Defaults()
    fields = Fields(node, notes, "defaults")
    executor, config = fields.take("executor"), {}
    name = None
    if executor is not None and executor.mapping is not None:
        inner = Fields(executor, notes, "executor")
        name, config = inner.text("name", required=True), inner.data("config")
        inner.finish()
    elif executor is not None:
        name = fields.text("executor")
    if "executor" in (node.mapping or {}) and not (name or "").strip():
        message = "`executor` is empty: name an agent, or leave the key out."
        notes.error("bad-value", message, fields.key_place("executor"))
    runs = fields.integer("runs")
    defaults = Defaults(
        runs=1 if runs is None else runs,
        timeout=fields.duration("timeout"),
        model=fields.text("model"),
        judge_model=fields.text("judge_model"),
        executor=name,
        executor_config=config,
        reasoning_effort=_effort(fields, "reasoning_effort"),
        judge_reasoning_effort=_effort(fields, "judge_reasoning_effort"),
        judge_provider=_judge_provider(fields),
        executor_place=executor.place if executor is not None else None,
    )
    fields.finish()
    return defaults


def _judge_provider(fields: Fields) -> str | None:
    """Return whose interface the judge speaks. Where it is and with which key is never a spec's to say."""
    node = fields.take("judge_provider")
    if node is None or node.mapping is None:
        return fields.text("judge_provider")
    message = (
        "`judge_provider` as a map is not supported: a spec does not say where keys are sent. Write `openai` "
        "or `anthropic` here, and the address on the command line: --judge-url (or VALKYRIE_JUDGE_URL), "
        "with its key in VALKYRIE_JUDGE_API_KEY."
    )
    fields.notes.error("wrong-type", message, node)
    return None


def _effort(fields: Fields, key: str) -> str | None:
    effort = fields.text(key)
    if effort is None or effort in EFFORTS:
        return effort
    if not EFFORT_FORM.fullmatch(effort):
        message = f"`{key}` is a word such as {', '.join(EFFORTS)}, not {effort!r}."
        fields.notes.error("bad-value", message, fields.take(key))
    elif hint := did_you_mean(effort, EFFORTS):
        message = f"`{key}` is {effort!r}, which only some models know.{hint}"
        fields.notes.warning("bad-value", message, fields.take(key))
    return effort


def _scoring(node: Node | None, notes: Notes) -> Scoring:
    if node is None:
        return Scoring()
    fields = Fields(node, notes, "scoring")
    weights = fields.take("weights")
    if weights is not None and weights.mapping is None:
        fields.wrong("weights", "a map from grader to number", weights)
    entries = (weights.mapping if weights else None) or {}
    read = {key: fields.number_of(f"weights.{key}", value) for key, value in entries.items()}
    scoring = Scoring(
        threshold=fields.number("threshold", most=1.0),
        weights={key: weight for key, weight in read.items() if weight is not None},
        timeout=fields.duration("timeout"),
    )
    fields.finish()
    return scoring
