"""Every code a finding can have, options of linting, and findings as SARIF or GitHub annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from benchmark_runner.terminal import safe
from valkyrie.config.permissions import Allowance
from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.specs.model import Finding, Severity, SourceLocation


@dataclass(frozen=True, slots=True)
class LintOptions:
    """Everything besides the files themselves that decides what is found."""

    grader_plugins: tuple[str, ...] = ()
    executor_plugins: tuple[str, ...] = ()
    unloaded_graders: tuple[str, ...] = ()
    unloaded_executors: tuple[str, ...] = ()
    """Plugins of the project, which lint does not load: what they add is not known."""
    params: Mapping[str, str] = field(default_factory=dict)
    allowed: Allowance = field(default_factory=Allowance)
    known_domains: tuple[str, ...] | None = None
    """Addresses skills may point to; None: not looked at."""
    allowed_deps: frozenset[str] | None = None
    """What skills may lean on outside themselves, as `type:name:detail`; None: not looked at."""


def read_entries(file: Path) -> tuple[str, ...]:
    """The lines of an allow list; blank lines and lines that begin with `#` say nothing."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text (byte {error.start})") from error
    stripped = (line.strip() for line in lines)
    return tuple(line for line in stripped if line and not line.startswith("#"))


# Every code a finding can have, how grave it is, and what it means in one line.


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is looked for."""

    severity: Severity
    summary: str
    heuristic: bool = False
    """A guess that a spec may well prove wrong: under `--strict` it is a note and fails nothing."""


_READING = {
    "yaml": Rule("error", "The file is not YAML, or not UTF-8."),
    "too-large": Rule("error", "The file is larger than is read."),
    "missing-file": Rule("error", "The file is not there, or cannot be read."),
    "duplicate-key": Rule("error", "A key is given twice."),
    "given-twice": Rule("warning", "Two names of the same key are given; an error where both are meant."),
    "unknown-key": Rule("warning", "A key is not known and is ignored."),
    "ignored-key": Rule("warning", "A key belongs to another tool and is ignored."),
    "unsupported-key": Rule("error", "A key asks for what cannot be done here and must not be left out."),
    "older-key": Rule("warning", "A key stands where an older form of the file had it."),
    "renamed-key": Rule("warning", "A key has another name now."),
    "stray-grader-key": Rule("warning", "A key beside a grader's `type` belongs below `config`."),
    "missing-key": Rule("error", "A required key is missing."),
    "wrong-type": Rule("error", "A value is of the wrong kind."),
    "bad-value": Rule(
        "error", "A value is not one of those that are taken; a warning where it can be ignored."
    ),
    "bad-duration": Rule("error", "A duration cannot be read."),
    "duration-without-unit": Rule("error", "A duration has no unit."),
    "unset-variable": Rule("error", "`${VAR}` has no value; a warning where the text is kept as it is."),
    "foreign-format": Rule("error", "The file is an eval of another tool."),
    "no-stimuli": Rule("error", "A spec has no stimuli."),
    "duplicate-stimulus": Rule("error", "Two stimuli have the same name."),
    "prompt-and-turns": Rule("error", "A stimulus has both `prompt` and `turns`."),
    "empty-prompt": Rule("error", "A prompt is empty."),
    "no-graders": Rule("error", "A stimulus has no graders; a warning where it has constraints."),
    "turn-out-of-range": Rule("error", "A grader looks at a turn the conversation does not have."),
    "unknown-environment": Rule("error", "No `.vally.yaml` defines an environment of this name."),
    "environment-file-missing-field": Rule("error", "An entry of `files` lacks `src` or `dest`."),
}
_EXPERIMENTS = {
    "no-evals": Rule("error", "An experiment's `evals` match no file."),
    "no-variants": Rule("error", "An experiment has no variants, or far too many."),
    "vary-with-matrix": Rule("error", "`vary` stands beside `matrix`, which implies it."),
    "bad-pointer": Rule("error", "A JSON Pointer points to nothing that can be varied."),
    "unknown-baseline": Rule("error", "`baseline` is no variant."),
    "drift": Rule("error", "Variants differ where `vary` does not allow it."),
}
_GRADERS = {
    "unknown-grader-type": Rule("error", "No grader is of this type."),
    "grader-config": Rule("error", "A grader's config is not what its type takes, or has a key it does not."),
    "grader-weight": Rule("error", "A grader's weight is below 0 or no number."),
    "grader-name": Rule(
        "warning", "A grader's name is no word of a-z, 0-9 and hyphens, or is that of another grader."
    ),
    "judge-without-criteria": Rule(
        "warning", "A judge has neither prompt nor rubric, only built-in criteria."
    ),
    "grader-plugin": Rule("error", "A grader plugin cannot be loaded."),
    "plugin-not-loaded": Rule("info", "A grader's type may come from a plugin of the project."),
    "invalid-regex": Rule("error", "A pattern is no regular expression of JavaScript."),
    "pairwise-grader": Rule("warning", "A `pairwise` grader is skipped; only a comparison has two results."),
    "program-prints-agent-output": Rule(
        "warning", "A `program` grader runs the agent's code and takes its verdict from what is printed."
    ),
    "vacuous-grader": Rule("warning", "A grader passes whatever the agent does."),
    "impossible-grader": Rule("warning", "A grader can never pass."),
    "passes-without-work": Rule(
        "warning", "All graders of a stimulus pass for an agent that does nothing.", heuristic=True
    ),
    "prompt-holds-answer": Rule(
        "warning", "All graders of a stimulus pass for an agent that repeats the prompt.", heuristic=True
    ),
    "doubly-escaped-pattern": Rule("warning", "A pattern is escaped twice and looks for a backslash."),
    "path-outside-workspace": Rule("warning", "A grader's path is absolute or leads above the workspace."),
    "command-with-space": Rule("warning", "A command with a space stands beside `args`: no shell reads it."),
    "skill-not-offered": Rule(
        "warning", "A grader requires a skill its stimulus does not offer; a remark where it forbids one."
    ),
    "tool-matches-nothing": Rule("warning", "A forbidden or counted tool is one that no known agent has."),
    "contradictory-graders": Rule(
        "error", "Two demands of a stimulus exclude each other; a warning where a threshold is set."
    ),
    "budget-above-timeout": Rule(
        "info", "A time budget is longer than the time limit, which ends the trial first."
    ),
    "no-judge-model": Rule("info", "A judge's model is named nowhere in the spec."),
    "unused-weight": Rule("warning", "A weight names no grader of the spec."),
    "weights-sum": Rule("warning", "Weights do not sum to 1; they are divided by their sum."),
    "weights-all-zero": Rule("error", "All graders of a stimulus weigh nothing."),
}
_SPECS = {
    "unsupported-executor": Rule("warning", "A stimulus is for other agents and is left out."),
    "constraint-unscored": Rule("info", "A constraint is only reported; a grader would make it count."),
    "unknown-executor": Rule("warning", "No agent of this name is known here."),
    "duplicate-prompt": Rule(
        "warning",
        "Two stimuli say the same in the same environment; a remark where their graders differ by skill.",
    ),
    "regression-without-baseline": Rule(
        "warning",
        "A spec guards against regressions, and says nothing of what it is compared with.",
        heuristic=True,
    ),
    "runs-zero": Rule("info", "Nothing is run: `runs` is 0."),
    "environment-file-missing": Rule("error", "A file the workspace or grading needs is not there."),
    "outside-project": Rule("error", "A spec or project names a file outside the project."),
    "environment-file-outside": Rule("error", "A file would be put outside the workspace."),
    "grading-file-in-history": Rule(
        "warning", "A file only graders should see is committed where the agent may start from."
    ),
    "environment-git": Rule(
        "error",
        "The repository a workspace starts from cannot be used; a warning where https is not spoken.",
    ),
    "work-dir-missing": Rule("error", "The folder a workspace starts from is not there."),
    "missing-skill": Rule("error", "A skill's folder or its SKILL.md is not there."),
    "duplicate-skill": Rule("error", "Two skills have the same name."),
    "duplicate-eval-name": Rule("warning", "Two specs of a project have the same name."),
}
_PROJECTS = {
    "empty-suite": Rule("error", "A suite has neither `filter` nor `evals`."),
    "unused-environment": Rule("info", "No spec names this environment."),
    "suite-chooses-nothing": Rule("warning", "A suite chooses no stimulus."),
    "unused-tag": Rule("info", "No suite asks for this tag."),
    "project-path-missing": Rule("warning", "A folder that `paths` names is not there."),
}
_SKILLS = {
    "bad-skill": Rule("error", "SKILL.md has no usable front matter: `name` and `description`."),
    "skill-name": Rule("error", "A skill's name cannot be the name of a folder."),
    "skill-name-differs": Rule("warning", "A skill and its folder have different names."),
    "skill-empty": Rule("warning", "SKILL.md says nothing below its frontmatter."),
    "skill-too-long": Rule("warning", "SKILL.md is longer than an agent should read at once."),
    "skill-broken-link": Rule("error", "A skill links to a file that is not there."),
    "skill-reference-outside": Rule("warning", "A skill refers to a file outside its folder."),
    "skill-link-outside": Rule("error", "A skill holds a symbolic link that leads out of it."),
    "skill-orphan-file": Rule("warning", "Nothing in a skill mentions this file."),
    "skill-unknown-domain": Rule("error", "An address is not covered by --known-domains."),
    "skill-external-dependency": Rule("warning", "A dependency is not listed by --allowed-external-deps."),
}
_OTHERS = {
    "task": Rule("error", "A task directory cannot be run."),
    "benchmark": Rule("error", "A benchmark's manifest cannot be used."),
    "agent-contract": Rule("error", "An agent's contract cannot be used."),
    "agent-notice": Rule("warning", "Something in an agent's contract looks like a slip."),
}
RULES: Mapping[str, Rule] = {
    **_READING,
    **_EXPERIMENTS,
    **_GRADERS,
    **_SPECS,
    **_PROJECTS,
    **_SKILLS,
    **_OTHERS,
}


def strictly(found: Finding) -> Finding:
    """As `--strict` takes it: a guess is a note."""
    rule = RULES.get(found.code)
    return replace(found, severity="info") if rule and rule.heuristic else found


def finding(code: str, message: str, place: SourceLocation | None, *, quiet: bool = False) -> Finding:
    """A finding as grave as its code says; `quiet` where it is only worth knowing."""
    whole = message if message.endswith((".", "?", "!")) else f"{message}."
    return Finding(code, "info" if quiet else RULES[code].severity, whole, place)


# Findings for machines: SARIF 2.1.0, and annotations of a GitHub workflow.

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def to_sarif(findings: Sequence[Finding], *, root: Path, version: str) -> Json:
    """One run of the linter; files below `root` are named relative to it."""
    codes = sorted({finding.code for finding in findings})
    index = {code: at for at, code in enumerate(codes)}
    driver = {"name": "valkyrie", "version": version, "rules": [_rule(code) for code in codes]}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, index[finding.code], root) for finding in findings],
            }
        ],
    }


def _rule(code: str) -> Json:
    rule = RULES.get(code)
    if rule is None:
        return {"id": code}
    said = {"text": rule.summary}
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in code.split("-")),
        "shortDescription": said,
        "fullDescription": said,
        "help": {"text": f"{rule.summary} docs/reference/lint.md says how to mend it."},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, at: int, root: Path) -> Json:
    result: Json = {
        "ruleId": finding.code,
        "ruleIndex": at,
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.message},
    }
    if finding.place:
        place = finding.place
        location = {
            "artifactLocation": _artifact(place.file, root),
            "region": {"startLine": max(1, place.line), "startColumn": max(1, place.column)},
        }
        result["locations"] = [{"physicalLocation": location}]
    return result


def _artifact(file: Path, root: Path) -> Json:
    whole = file.absolute()
    if whole.is_relative_to(root):
        return {"uri": quote(whole.relative_to(root).as_posix()), "uriBaseId": "%SRCROOT%"}
    return {"uri": whole.as_uri()}


def annotation(finding: Finding, root: Path) -> str:
    """One line that GitHub shows beside the code."""
    fields = {"title": finding.code}
    if finding.place:
        file = finding.place.file.absolute()
        shown = file.relative_to(root) if file.is_relative_to(root) else file
        fields = {
            "file": shown.as_posix(),
            "line": str(finding.place.line),
            "col": str(finding.place.column),
            **fields,
        }
    said = ",".join(f"{name}={_escape(safe(value), ':,')}" for name, value in fields.items())
    return f"::{_COMMANDS[finding.severity]} {said}::{_escape(safe(finding.message, keep_lines=True))}"


def _escape(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
