"""Check an eval spec as a whole: graders, programs, weights, files, agent."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path, PurePosixPath

from valkyrie.agents.catalog import CATALOG
from valkyrie.agents.loader import ALIASES, agent_for
from valkyrie.benchmarks.eval_spec.layout import is_committed
from valkyrie.benchmarks.eval_spec.source import EvalOptions
from valkyrie.benchmarks.eval_spec.workspace import problems
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.evals.lint.claims import contradictions, vacuous, weak
from valkyrie.evals.lint.graders import grader_findings, grader_value_findings, tool_findings, weight_findings
from valkyrie.evals.lint.rules import LintOptions, finding
from valkyrie.plugins import is_target
from valkyrie.specs.model import (
    DEFAULT_TIMEOUT_S,
    EvalSpec,
    Finding,
    GraderSpec,
    Project,
    SourceLocation,
    SpecError,
    Stimulus,
    parse_duration,
)
from valkyrie.specs.project import find_project
from valkyrie.specs.reader import Read, examine


def has_known_tools(executor: str | None) -> bool:
    """Return whether it is an agent of the catalogue; a spec that names none means one of those."""
    return executor is None or ALIASES.get(executor, executor) in CATALOG


def unsupported(stimulus: Stimulus, executor: str) -> Finding | None:
    """That a stimulus is left out with this agent, if it is for others only."""
    names = {ALIASES.get(name, name) for name in stimulus.supported_executors}
    if not names or ALIASES.get(executor, executor) in names:
        return None
    named = ", ".join(stimulus.supported_executors)
    message = f"stimulus {stimulus.name!r} is left out: it is for {named}, not for {executor}"
    return finding("unsupported-executor", message, stimulus.place)


def executor_findings(spec: EvalSpec, options: LintOptions) -> Iterator[Finding]:
    """`executor:` names nothing that is known here; elsewhere, or with a plugin, it may well be."""
    name = spec.defaults.executor
    if name is not None:
        yield from filter(None, (unsupported(one, name) for one in spec.stimuli))
    if name is None or has_known_tools(name) or is_target(name) or options.unloaded_executors:
        return
    try:
        agent_for(name, plugins=options.executor_plugins, base=spec.folder)
    except ValkyrieError as error:
        yield finding("unknown-executor", str(error), spec.defaults.executor_place)


# `program` graders whose printed verdict may be the words of the agent's code.

_INTERPRETERS = re.compile(r"(python|pypy|sh|bash|dash|zsh|node|deno|bun|ruby|perl|php)[\d.]*")
_RUNNERS = frozenset(
    ("pytest", "py.test", "tox", "nox", "npm", "npx", "pnpm", "yarn", "jest", "vitest", "make", "cargo", "go")
) | frozenset(("ctest", "gradle", "mvn", "rspec", "unittest", "dotnet", "swift"))
_BEFORE = frozenset(
    ("if", "then", "else", "elif", "while", "until", "do", "!", "time", "exec", "env", "{", "(")
)
_MOST_SCRIPT = 1 << 20
_STARTING = frozenset(("run", "call", "check_call", "Popen"))
_SAME_OUTPUT = frozenset(("system", "spawn", "execv", "execve", "execvp", "execl", "run_path", "run_module"))


def program_findings(stimulus: Stimulus) -> Iterator[Finding]:
    """Graders that run the agent's code and let it print where their own verdict is read."""
    hidden = {_plain(entry.dest): entry.source for entry in stimulus.grading_files}
    for grader in stimulus.graders:
        if grader.type != "program" or grader.config.get("verdict") == "file":
            continue
        if ran := _agent_code(grader, hidden):
            message = (
                f"{grader.label} runs {ran}, which the agent may have written, and takes its verdict from "
                "what is printed. Set `verdict: file` and write the verdict to the path on standard input, "
                "or keep the output of that code away from stdout"
            )
            yield finding("program-prints-agent-output", message, grader.place)


def _agent_code(grader: GraderSpec, hidden: dict[str, Path]) -> str | None:
    program, args = grader.config.get("program"), grader.config.get("args") or ()
    if not isinstance(program, str) or not isinstance(args, list | tuple):
        return None
    words = [program, *(str(one) for one in args)]
    if grader.config.get("shell") is True:
        return _in_shell(" ".join(words), hidden, look_inside=True)
    return _in_words(words, hidden, look_inside=True)


def _in_words(words: Sequence[str], hidden: dict[str, Path], *, look_inside: bool) -> str | None:
    """Return the agent's code that a command runs, None if there is none to be seen."""
    if not words:
        return None
    name = PurePosixPath(words[0]).name
    if name in _RUNNERS:
        return f"`{name}`"
    if not _INTERPRETERS.fullmatch(name):
        return _in_file(words[0], hidden, look_inside) if _is_relative(words[0]) else None
    rest = list(words[1:])
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-m" and rest:
            return f"`{rest[0]}`" if rest[0] in _RUNNERS else None
        if option in ("-c", "-e") and rest:
            if not look_inside:
                return None
            return _in_python(rest[0]) if name.startswith("py") else _in_shell(rest[0], hidden)
    return _in_file(rest[0], hidden, look_inside) if rest and not rest[0].startswith("/") else None


def _in_file(path: str, hidden: dict[str, Path], look_inside: bool) -> str | None:
    source = _hidden_source(path, hidden)
    if source is None:
        return f"{path!r}"
    if not look_inside:
        return None
    try:
        if not source.is_file() or source.stat().st_size > _MOST_SCRIPT:
            return None
        text = source.read_text("utf-8", "replace")
    except OSError:
        return None  # said where files are looked at
    first = text.partition("\n")[0]
    if source.suffix == ".py" or (first.startswith("#!") and "python" in first):
        return _in_python(text)
    if source.suffix in (".sh", ".bash", "") and (first.startswith("#!") or source.suffix):
        return _in_shell(text, hidden)
    return None


def _in_shell(text: str, hidden: dict[str, Path], *, look_inside: bool = False) -> str | None:
    for line in text.splitlines():
        if line.lstrip().startswith("#") or "$(" in line or "`" in line:
            continue
        for command in re.split(r"&&|\|\||;", line):
            last = command.rpartition("|")[2]
            if re.search(r"(^|[^2])>", last):
                continue
            try:
                words = shlex.split(last, comments=True)
            except ValueError:
                continue
            while words and (words[0] in _BEFORE or re.fullmatch(r"\w+=.*", words[0])):
                words.pop(0)
            if words and words[0] == "timeout":
                words = [word for word in words[1:] if not re.fullmatch(r"-.*|[\d.]+[smh]?", word)]
            if found := _in_words(words, hidden, look_inside=look_inside):
                return found
    return None


def _in_python(text: str) -> str | None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        kept = any(one.arg in ("stdout", "capture_output") for one in node.keywords)
        if called in _SAME_OUTPUT or (called in _STARTING and not kept and _starts_code(node)):
            return f"a program in line {node.lineno} of its script (`{called}`)"
    return None


def _starts_code(call: ast.Call) -> bool:
    """Return whether a call of subprocess may start code from the workspace."""
    given = call.args[0] if call.args else None
    if isinstance(given, ast.List | ast.Tuple) and given.elts:
        given = given.elts[0]
    if isinstance(given, ast.Constant) and isinstance(given.value, str):
        words = given.value.split()[:1]
        return bool(words) and (_is_relative(words[0]) or _is_interpreter(words[0]))
    return isinstance(given, ast.Attribute) and given.attr == "executable"


def _is_interpreter(word: str) -> bool:
    name = PurePosixPath(word).name
    return name in _RUNNERS or bool(_INTERPRETERS.fullmatch(name))


def _is_relative(word: str) -> bool:
    return "/" in word and not word.startswith(("/", "~", "$"))


def _hidden_source(path: str, hidden: dict[str, Path]) -> Path | None:
    """Return the file on this machine that grading puts at a path, None if it is the agent's."""
    plain = _plain(path)
    for dest, source in hidden.items():
        if plain == dest:
            return source
        if dest in ("", ".") or plain.startswith(f"{dest}/"):
            below = source / plain.removeprefix(dest).lstrip("/")
            if below.exists():
                return below
    return None


def _plain(path: str) -> str:
    return str(PurePosixPath(path.removeprefix("$EVALUATE_WORKSPACE/")))


# An eval spec that can be read, looked at as a whole: graders, weights, files, agent.

_JUDGES = ("prompt", "panel")


def lint_spec_file(
    file: Path, options: LintOptions | None = None, project: Project | None = None
) -> tuple[EvalSpec | None, list[Finding]]:
    """The spec as far as it can be understood, and everything wrong with it; nothing is raised."""
    try:
        project = project or find_project(file.absolute().parent)
    except SpecError:
        project = Project(file=None, folder=file.parent)  # said where the project itself is checked
    options = _with_unloaded(options or LintOptions(), project)
    try:
        spec, found = examine(file, params=options.params, project=project, allowed=options.allowed)
    except SpecError as error:
        return None, list(error.findings)  # of a project file around it
    if spec is None or any(one.code == "outside-project" for one in found):
        return spec, found  # what lies elsewhere is not looked at
    more = lint_spec(Read(spec), options=options)
    if any(one.code == "unknown-environment" for one in found):
        more = [one for one in more if one.code != "tool-matches-nothing"]  # its servers may have that tool
    return spec, _sorted([*found, *more])


def _with_unloaded(options: LintOptions, project: Project) -> LintOptions:
    """Return the options with the project's own plugins, which are known by name and not loaded."""
    return replace(
        options,
        unloaded_graders=project.plugins_of("graders"),
        unloaded_executors=project.plugins_of("executors"),
    )


def lint_spec(
    read: Read, *, plugins: Sequence[str] = (), options: LintOptions | None = None
) -> list[Finding]:
    """Return what is wrong or doubtful about a spec beyond what reading it said already."""
    options = options or LintOptions()
    if plugins:
        options = replace(options, grader_plugins=(*options.grader_plugins, *plugins))
    spec = read.spec
    found = [*executor_findings(spec, options), *grader_findings(spec, options), *weight_findings(spec)]
    found += [*_runs(spec), *_regression(spec), *_judges(spec), *_same_prompts(spec)]
    known_tools = has_known_tools(spec.defaults.executor)
    committed = cache(is_committed)  # stimuli share such files, and each look starts git
    for stimulus in spec.stimuli:
        found += vacuous(stimulus)
        found += weak(spec, stimulus)
        found += program_findings(stimulus)
        found += grader_value_findings(stimulus)
        found += _weighed(spec, contradictions(stimulus))
        found += tool_findings(spec, stimulus, known_agent=known_tools)
        found += _budgets(spec, stimulus)
        found += _unscored(stimulus)
        found += _missing(spec, stimulus)
        found += _in_history(stimulus, committed)
    return _sorted(list(dict.fromkeys(found)))


def _sorted(found: list[Finding]) -> list[Finding]:
    return sorted(found, key=lambda one: (one.place.line, one.place.column) if one.place else (0, 0))


def _weighed(spec: EvalSpec, found: Iterator[Finding]) -> Iterator[Finding]:
    """With a threshold, other graders can make up for one that must fail."""
    mild = spec.scoring.threshold is not None
    return (replace(one, severity="warning") if mild else one for one in found)


def _missing(spec: EvalSpec, stimulus: Stimulus) -> list[Finding]:
    """Files, skills and repositories that are not there."""
    try:
        return problems(stimulus, EvalOptions(work_dir=str(spec.folder.absolute())))
    except OSError as error:
        message = f"{str(error.filename)[:200]!r} cannot be looked at: {error.strerror}"
        return [finding("environment-file-missing", message, stimulus.environment.place or stimulus.place)]


def missing_skills(spec: EvalSpec) -> Iterator[Finding]:
    """Skills of a spec that are not there, of an experiment's variant too."""
    for stimulus in spec.stimuli:
        yield from (one for one in _missing(spec, stimulus) if one.code == "missing-skill")


def _in_history(stimulus: Stimulus, committed: Callable[[Path], bool]) -> Iterator[Finding]:
    """Files for grading that an agent in a view of `--work-dir` finds in its history."""
    if not stimulus.environment.empty:
        return
    for entry in stimulus.grading_files:
        if committed(entry.source):
            message = (
                f"{entry.src} is for graders alone, and committed: an agent that starts from this repository "
                "(--work-dir) can read it with git. Give the stimulus an `environment`, or keep the file "
                "outside of the repository"
            )
            yield finding("grading-file-in-history", message, entry.place)


def _runs(spec: EvalSpec) -> Iterator[Finding]:
    if spec.defaults.runs == 0 and not any(stimulus.runs for stimulus in spec.stimuli):
        message = "`runs` is 0: the spec is checked and nothing of it is run"
        yield finding("runs-zero", message, SourceLocation(spec.file))


def _regression(spec: EvalSpec) -> Iterator[Finding]:
    if spec.type == "regression":
        message = (
            "`type` is regression, and the spec has no baseline to be worse than: compare with an earlier "
            "result (`valk compare --baseline DIR --treatment DIR --fail-on-regression`), or run it in an "
            "experiment that has a `baseline`"
        )
        yield finding("regression-without-baseline", message, SourceLocation(spec.file))


def _judges(spec: EvalSpec) -> Iterator[Finding]:
    """One remark is enough: a model is named once for all."""
    if spec.defaults.judge_model:
        return
    for stimulus in spec.stimuli:
        for grader in stimulus.graders:
            if grader.type in _JUDGES and not (grader.config.get("model") or grader.config.get("models")):
                message = (
                    f"{grader.label} asks a judge, and no model is named: set `judge_model` below "
                    "`defaults`, or give --judge-model"
                )
                yield finding("no-judge-model", message, grader.place)
                return


_COUNTED_BY = {
    "expect_skills": "skill-invocation",
    "reject_skills": "skill-invocation",
    "expect_tools": "tool-calls",
    "reject_tools": "tool-calls",
}


def _unscored(stimulus: Stimulus) -> Iterator[Finding]:
    """Constraints of which an author may think that they count."""
    for key, grader in _COUNTED_BY.items():
        if getattr(stimulus.constraints, key):
            message = f"`{key}` of {stimulus.name!r} is reported and not scored; a `{grader}` grader counts"
            yield finding("constraint-unscored", message, stimulus.constraints.place)


def _budgets(spec: EvalSpec, stimulus: Stimulus) -> Iterator[Finding]:
    """Time budgets that the time limit makes pointless."""
    limit = stimulus.timeout or spec.defaults.timeout or DEFAULT_TIMEOUT_S
    budgets: list[tuple[str, float, SourceLocation | None]] = []
    if (longest := stimulus.constraints.time_limit) is not None:
        budgets.append(("max_duration", longest, stimulus.constraints.place))
    for grader in stimulus.graders:
        if grader.type == "wall-time" and isinstance(grader.config.get("max"), str):
            try:
                budgets.append((grader.label, parse_duration(grader.config["max"]), grader.place))
            except UsageError:
                continue  # said by whoever makes the grader
    for name, seconds, place in budgets:
        if seconds > limit:
            message = f"{name} allows {seconds:g} s, but the time limit ends a trial after {limit:g} s"
            yield finding("budget-above-timeout", message, place)


def _same_prompts(spec: EvalSpec) -> Iterator[Finding]:
    seen: dict[tuple[str, ...], list[Stimulus]] = {}
    for stimulus in spec.stimuli:
        said = seen.setdefault(tuple(stimulus.turns), [])
        twin = next((other for other in said if _alike(other, stimulus)), None)
        if twin is not None:
            message = (
                f"{stimulus.name!r} says the same as {twin.name!r} in the same environment; put their "
                "graders together, or raise `runs` to try it more often"
            )
            by_skill = _skill_demands(stimulus) != _skill_demands(twin)
            yield finding("duplicate-prompt", message, stimulus.place, quiet=by_skill)
        said.append(stimulus)


def _skill_demands(stimulus: Stimulus) -> str:
    """Return what its graders and constraints say of skills."""
    limits = stimulus.constraints
    graders = [one.config for one in stimulus.graders if one.type == "skill-invocation"]
    return repr((graders, limits.expect_skills, limits.reject_skills))


def _alike(one: Stimulus, other: Stimulus) -> bool:
    return _content(one) == _content(other)


def _content(stimulus: Stimulus) -> str:
    """Return what the agent finds, without where it was written."""
    environment = stimulus.environment
    skills = environment.skills and [ref.folder for ref in environment.skills]
    files = [(entry.source, entry.dest) for entry in (*environment.files, *stimulus.attachments)]
    git = {**asdict(environment.git), "place": None} if environment.git else None
    return repr((skills, files, environment.commands, git, environment.mcp_servers))
