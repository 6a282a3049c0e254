"""Export stimuli as Harbor task directories: their files, and the graders that can go along."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from valkyrie.artifact_store.disk import disk_errors
from valkyrie.benchmarks.eval_spec.layout import lay_out, lay_out_repository, leaving_links
from valkyrie.benchmarks.eval_spec.source import WORKSPACE
from valkyrie.benchmarks.named.conversion import put_file, toml_text
from valkyrie.domain import Json
from valkyrie.errors import BenchmarkError, UsageError, UserError
from valkyrie.evals.export import harbor_grader
from valkyrie.evals.export.formats import Exported, ExportRequest, check_options
from valkyrie.evals.result_folder import folder_names
from valkyrie.grade.base import Matching, Sought, Substring
from valkyrie.grade.builtin.programs import RunCommandGrader
from valkyrie.grade.builtin.transcript import ExitSuccessGrader, OutputGrader
from valkyrie.grade.builtin.workspace import FileExistsGrader, FileTextGrader
from valkyrie.grade.graders import known_types, load_plugins, make_graders
from valkyrie.grade.js_regex import JsRegex, RegexSyntaxError, compile_js
from valkyrie.grade.protocol import Need, constraint_graders
from valkyrie.specs import globs
from valkyrie.specs.model import (
    DEFAULT_TIMEOUT_S,
    EvalSpec,
    FileEntry,
    GraderSpec,
    Stimulus,
    WorkspaceRepository,
)
from valkyrie.specs.project import find_project, read_skill

if TYPE_CHECKING:
    from valkyrie.grade.graders import MadeGrader
    from valkyrie.grade.protocol import Grader


class CannotGoAlongError(Exception):
    """This grader says nothing outside of this program; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Checks:
    """What an exported task is graded by."""

    checks: Sequence[Json]
    left_out: Sequence[str]

    @property
    def need_answer(self) -> bool:
        """One of them looks at what the agent said."""
        return any(check["about"] == "output" for check in self.checks)


def checks_of(made: Sequence[MadeGrader], *, answers: bool) -> Checks:
    """The graders as checks; `answers`: the agent is told where to leave its final answer."""
    checks: list[Json] = []
    left_out: list[str] = []
    for one in made:
        try:
            if one.spec.turn is not None:
                raise CannotGoAlongError("it looks at one turn of a conversation")
            check = _check(one.grader)
            if check["about"] == "output" and not answers:
                raise CannotGoAlongError("a task directory keeps no final answer (answerFile=none)")
            checks.append({"name": one.name, "weight": one.weight, **check})
        except CannotGoAlongError as why:
            left_out.append(f"grader {one.name}: {why}")
    return Checks(checks, left_out)


def _check(grader: Grader) -> Json:
    if isinstance(grader, OutputGrader):
        return {"about": "output", "wanted": grader.wanted, **_sought(grader.sought)}
    if isinstance(grader, ExitSuccessGrader):
        return {"about": "output", "only_there": True}
    if isinstance(grader, FileExistsGrader):
        return {"about": "files", "glob": grader.glob.pattern, "only_there": True, "wanted": grader.wanted}
    if isinstance(grader, FileTextGrader):
        return {
            "about": "files",
            "glob": grader.glob.pattern,
            "wanted": grader.wanted,
            **_sought(grader.sought),
        }
    if isinstance(grader, RunCommandGrader):
        return _command(grader)
    raise CannotGoAlongError(_why(grader))


def _why(grader: Grader) -> str:
    if Need.JUDGE in grader.needs:
        return "it asks a model"
    if Need.DIFF in grader.needs:
        return "it needs the state before the agent"
    if Need.PROGRAMS in grader.needs:
        return "its program is given the transcript"
    if grader.needs:
        return "it is not part of what is exported"
    return "it looks at the transcript"


def _sought(sought: Sought) -> Json:
    if isinstance(sought, Substring):
        return {"contains": sought.text, "case_sensitive": sought.case_sensitive}
    if isinstance(sought, Matching):
        return _pattern(sought.pattern)
    raise CannotGoAlongError("it is not part of what is exported")


def _pattern(pattern: JsRegex) -> Json:
    """The pattern as Python's own `re` reads it."""
    try:
        compiled = compile_js(pattern.source)
        flags = re.IGNORECASE if pattern.source.startswith("(?") and compiled.flags & re.IGNORECASE else 0
        re.compile(compiled.pattern, flags)
    except (re.error, RegexSyntaxError) as error:
        raise CannotGoAlongError(f"Python's re does not take its pattern: {error}") from None
    return {"pattern": compiled.pattern, "flags": int(flags)}


def _command(grader: RunCommandGrader) -> Json:
    program = grader.program
    return {
        "about": "command",
        "argv": list(grader.argv),
        "exit_code": grader.exit_code,
        "sub_path": program.sub_path,
        "env": dict(program.env),
        "timeout": program.timeout,
        "stdout": [
            *(_contains(text) for text in grader.stdout_contains),
            *(_matches(pattern, wanted=True) for pattern in grader.stdout_matches),
            *(_matches(pattern, wanted=False) for pattern in grader.stdout_not_matches),
        ],
        "stderr": [_contains(text) for text in grader.stderr_contains],
    }


def _contains(text: str) -> Json:
    return {"contains": text, "case_sensitive": True, "wanted": True, "says": f'does not have "{text}"'}


def _matches(pattern: JsRegex, *, wanted: bool) -> Json:
    says = f"{'does not match' if wanted else 'matches'} /{pattern.source}/"
    return {**_pattern(pattern), "wanted": wanted, "says": says}


# What the agent of an exported task finds: the workspace's files, and a script for what must be run.

SKILLS_AT = ".agents/skills"
RESERVED = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", "setup.sh")
"""Names that mean something at the top of `environment/`; a workspace's own are moved back by its setup."""
ASIDE = ".workspace"
_REPOSITORY = (
    "if command -v git >/dev/null; then\n"
    "  git init --quiet && git add -A\n"
    "  git -c user.name=export -c user.email=export@localhost commit --quiet -m start || true\n"
    "fi"
)


def write_environment(stimulus: Stimulus, environment: Path, image: str | None) -> list[str]:
    """Write the task's `environment/`; what could not be taken along."""
    declared = stimulus.environment
    left_out = [f"MCP server {name}: it runs on the machine of the spec" for name in declared.mcp_servers]
    if stimulus.attachments:
        left_out.append("attachments: a task directory has none")
    workspace = environment / "workspace" if image else environment
    workspace.mkdir(parents=True, exist_ok=True)
    steps = ["#!/bin/bash", "set -e"]
    if declared.git:
        _export_repository(declared.git, workspace)
        left_out.append(f"history of {declared.git.source}: only its files are there, as one commit")
    for entry in declared.files:
        put(entry, workspace)
    for skill in declared.skills or ():
        found = read_skill(skill.folder)
        _copy(found.folder, workspace, PurePosixPath(SKILLS_AT, found.folder.resolve().name))
    if not image:
        steps += _set_aside(workspace)
    if declared.git:
        steps.append(_REPOSITORY)
    seconds = max(1, round(declared.command_timeout))
    steps += [f"timeout {seconds} sh -c {shlex.quote(command)}" for command in declared.commands]
    runs = len(steps) > 2
    if runs:
        script = environment / "setup.sh"
        script.write_text("\n".join(steps) + "\n", encoding="utf-8")
        script.chmod(0o755)
    if image:
        (environment / "Dockerfile").write_text(_dockerfile(image, runs=runs), encoding="utf-8")
        if not os.path.lexists(workspace / ".keep"):
            (workspace / ".keep").touch()
    return left_out


def _dockerfile(image: str, *, runs: bool) -> str:
    lines = [f"FROM {image}", f"WORKDIR {WORKSPACE}", f"COPY workspace/ {WORKSPACE}/", "RUN rm -f .keep"]
    if runs:
        lines += ["COPY setup.sh /tmp/setup.sh", "RUN bash /tmp/setup.sh && rm /tmp/setup.sh"]
    return "\n".join(lines) + "\n"


def _set_aside(workspace: Path) -> list[str]:
    """Commands that give files their names back which `environment/` cannot hold under them."""
    steps = []
    for name in RESERVED:
        if os.path.lexists(workspace / name):
            (workspace / name).rename(workspace / f"{name}{ASIDE}")
            steps.append(f"mv -- {name}{ASIDE} {name}")
    return steps


def put(entry: FileEntry, workspace: Path) -> None:
    """A file, or a folder with all that is in it, to where the workspace has it."""
    target = PurePosixPath(entry.dest)
    if target.is_absolute() and target.is_relative_to(WORKSPACE):
        target = target.relative_to(WORKSPACE)
    if target.is_absolute() or ".." in target.parts:
        raise UserError(f"{entry.place or entry.base}: dest {entry.dest!r} is outside the workspace.")
    if not entry.source.exists():
        raise UserError(f"{entry.place or entry.base}: {entry.source} does not exist.")
    into = entry.source.is_file() and (entry.dest.endswith("/") or (workspace / target).is_dir())
    _copy(entry.source, workspace, target / entry.source.name if into else target)


def _copy(source: Path, workspace: Path, target: PurePosixPath) -> None:
    """Copy below a workspace; no link in it is written through."""
    try:
        lay_out(workspace, [(Path(os.path.realpath(source)), str(target))])
    except BenchmarkError as error:
        raise UserError(str(error)) from error


def _export_repository(git: WorkspaceRepository, workspace: Path) -> None:
    """The files of one commit, without its history."""
    with tempfile.TemporaryDirectory(prefix="valkyrie-export-") as scratch:
        try:
            files = lay_out_repository(git, Path(scratch))
        except UserError as error:
            raise UserError(f"{git.place}: {error}", cause=error.cause) from error
        shutil.rmtree(files / ".git")
        if link := next(leaving_links(files), None):
            raise UserError(f"{git.place}: the link {link} of {git.source} leads out of the repository.")
        _copy(files, workspace, PurePosixPath("."))


# Stimuli as Harbor task directories: any tool that reads those can run them, this one too.

OPTIONS = ("answerFile", "image", "joinTurnsWith", "network", "reward", "strict")
ANSWER_FILE = "/logs/agent/answer.txt"
GRADING_S = 60.0
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_IMPORTS = {
    "from valkyrie.specs.globs import": "from globs import",
    "from valkyrie.errors import UsageError": "UsageError = ValueError",
}
_TEST = "#!/bin/bash\nexec python3 -sE /tests/grade.py /logs/verifier\n"
_SOLVE = """#!/bin/bash
set -e
cd {workspace}
patch="$(dirname "$0")/golden.patch"
if command -v git >/dev/null; then
  exec git apply --whitespace=nowarn "$patch"
fi
exec patch -p1 --batch < "$patch"
"""


@dataclass(frozen=True, slots=True)
class HarborOptions:
    """What was said after `--`."""

    answer_file: str | None = ANSWER_FILE
    """Where an agent is told to leave its final answer, if a grader looks at it; None: those are left out."""
    image: str | None = None
    """The image tasks begin from; without one they have no Dockerfile."""
    join_turns_with: str | None = None
    """What stands between turns; without it conversations are left out."""
    network: str = "public"
    reward: str = "verdict"
    strict: bool = False
    """Refuse what cannot be exported whole."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> HarborOptions:
        check_options(given, OPTIONS, "harbor")
        answer = given.get("answerFile", ANSWER_FILE)
        if answer != "none" and not answer.startswith("/"):
            raise UsageError(f"answerFile={answer} is a path in the sandbox, such as {ANSWER_FILE}, or none.")
        join = given.get("joinTurnsWith")
        return cls(
            answer_file=None if answer == "none" else answer,
            image=given.get("image"),
            join_turns_with=None if join is None else join.replace("\\n", "\n"),
            network=_one_of(given, "network", ("public", "no-network")),
            reward=_one_of(given, "reward", ("verdict", "score")),
            strict=_one_of(given, "strict", ("false", "true")) == "true",
        )


def _one_of(given: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    value = given.get(name, allowed[0])
    if value not in allowed:
        raise UsageError(f"{name}={value}: one of {', '.join(allowed)} is expected.")
    return value


class _LeftOutError(Exception):
    """This stimulus cannot be a task; the message is the reason."""


def export_harbor(request: ExportRequest) -> Exported:
    """One folder per stimulus below the output folder, and a benchmark.toml beside them."""
    if request.results is not None:
        raise UsageError("harbor exports eval specs, not results; name them with --eval-spec.")
    options = HarborOptions.read(request.options)
    wanted = [(spec, stimulus) for spec in request.specs for stimulus in spec.stimuli]
    names = _names(wanted)
    written: list[Path] = []
    warnings: list[str] = []
    with disk_errors(f"write to {request.output}", "output"):
        for (spec, stimulus), name in zip(wanted, names, strict=True):
            folder = request.output / name
            try:
                with _whole(folder) as draft:
                    left_out = _write_task(spec, stimulus, draft, options, request)
            except _LeftOutError as why:
                warnings.append(f"{spec.name} / {stimulus.name} was not exported: {why}")
                continue
            written.append(folder)
            warnings += [f"{name}: left out: {what}" for what in left_out]
        if options.strict and warnings:
            for folder in written:
                shutil.rmtree(folder)
            raise UserError("strict=true, and not everything can be exported:\n" + "\n".join(warnings))
        if written:
            _write_manifest(request)
    place = str(request.output) if request.output.is_absolute() else f"./{request.output}"
    return Exported(written, warnings, f"valk run start --benchmark {place} --agent nop" if written else "")


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder to write a task in; it takes the place of an older one when it is whole."""
    if folder.exists() and not (folder / "task.toml").is_file():
        raise UsageError(f"{folder} is there and is no task; --output-dir names another folder.")
    draft = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _names(wanted: Sequence[tuple[EvalSpec, Stimulus]]) -> list[str]:
    """Folder names: the stimulus', and that of its eval where there are several."""
    several = len({spec.file for spec, _ in wanted}) > 1
    plain: dict[tuple[str, ...], str] = {
        (str(at),): _UNFIT.sub("-", f"{spec.name}__{one.name}" if several else one.name).strip("-._")
        for at, (spec, one) in enumerate(wanted)
    }
    return list(folder_names(plain, nameless="task").values())


def _write_task(
    spec: EvalSpec, stimulus: Stimulus, folder: Path, options: HarborOptions, request: ExportRequest
) -> list[str]:
    """Write one task anew; what of it was left out."""
    if len(stimulus.turns) > 1 and options.join_turns_with is None:
        raise _LeftOutError(f"it has {len(stimulus.turns)} turns; `-- joinTurnsWith='\\n\\n'` makes them one")
    unloaded = _unloaded_graders(spec, stimulus, request)
    known = replace(stimulus, graders=tuple(one for one in stimulus.graders if one not in unloaded))
    made = make_graders(known, scoring=spec.scoring, plugins=tuple(request.grader_plugins), base=spec.folder)
    checks = checks_of(made, answers=options.answer_file is not None)
    skipped = [f"grader {one.label}: the project's plugins are not loaded here" for one in unloaded]
    named = ", ".join(one.label for one in constraint_graders(stimulus.constraints))
    bounds = [f"constraints ({named}): they look at the transcript"] if named else []
    checks = replace(checks, left_out=[*checks.left_out, *bounds, *skipped])
    if not checks.checks:
        why = "; ".join(checks.left_out) or "it has no graders"
        raise _LeftOutError(f"nothing would grade it ({why})")
    left_out = [*checks.left_out, *write_environment(stimulus, folder / "environment", options.image)]
    put_file(folder / "instruction.md", _instruction(stimulus, checks, options))
    _write_tests(stimulus, spec, checks, folder / "tests", options)
    _write_solution(stimulus, folder / "solution")
    put_file(folder / "task.toml", _task_toml(spec, stimulus, checks, left_out, options))
    return left_out


def _unloaded_graders(spec: EvalSpec, stimulus: Stimulus, request: ExportRequest) -> list[GraderSpec]:
    """Return the graders that only plugins of the project can have: exporting runs nothing of a project."""
    if not find_project(spec.folder.absolute()).plugins_of("graders"):
        return []
    known = set(known_types(load_plugins(request.grader_plugins, spec.folder)))
    return [one for one in stimulus.graders if one.type not in known]


def _instruction(stimulus: Stimulus, checks: Checks, options: HarborOptions) -> str:
    text = (options.join_turns_with or "\n\n").join(stimulus.turns).strip()
    if checks.need_answer:
        text += (
            f"\n\nWhen you are done, write your final answer, as you would say it, to {options.answer_file}."
        )
    return text + "\n"


def _write_tests(
    stimulus: Stimulus, spec: EvalSpec, checks: Checks, tests: Path, options: HarborOptions
) -> None:
    plan: Json = {
        "workspace": WORKSPACE,
        "answer": options.answer_file if checks.need_answer else None,
        "threshold": spec.scoring.threshold,
        "reward": options.reward,
        "checks": list(checks.checks),
    }
    put_file(tests / "test.sh", _TEST)
    for name, text in standalone().items():
        put_file(tests / name, text)
    put_file(tests / "checks.json", json.dumps(plan, indent=2, ensure_ascii=False) + "\n")
    for entry in stimulus.grading_files:
        put(entry, tests / "files")


def standalone() -> dict[str, str]:
    """The grader's files by name: those of this program, importing nothing but each other."""
    found = {}
    for name, module in (("grade.py", harbor_grader), ("globs.py", globs)):
        text = Path(module.__file__ or "").read_text("utf-8")
        for there, here in _IMPORTS.items():
            text = text.replace(there, here)
        found[name] = text
    return found


def _write_solution(stimulus: Stimulus, folder: Path) -> None:
    patch = stimulus.golden_patch
    if patch is None and stimulus.golden_patch_file is not None:
        file = stimulus.golden_patch_file.source
        try:
            patch = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{stimulus.golden_patch_file.place}: {file} cannot be read: {error}.") from None
    if patch is not None:
        put_file(folder / "golden.patch", patch if patch.endswith("\n") else patch + "\n")
        put_file(folder / "solve.sh", _SOLVE.format(workspace=WORKSPACE))


def _task_toml(
    spec: EvalSpec, stimulus: Stimulus, checks: Checks, left_out: Sequence[str], options: HarborOptions
) -> str:
    commands = sum(check.get("timeout", 0.0) for check in checks.checks)
    tables: dict[str, Json] = {
        "task": {
            "name": f"{spec.name}/{stimulus.name}",
            "description": spec.description,
            "keywords": [f"{key}={value}" for key, values in stimulus.tags.items() for value in values],
        },
        "metadata": {
            "eval": spec.name,
            "stimulus": stimulus.name,
            "exported_from": spec.file.name,
            "graders": [check["name"] for check in checks.checks],
            "left_out": list(left_out),
        },
        "agent": {"timeout_sec": stimulus.timeout or spec.defaults.timeout or DEFAULT_TIMEOUT_S},
        "verifier": {"timeout_sec": spec.scoring.timeout or GRADING_S + commands},
        "environment": {"workdir": WORKSPACE, "network_mode": options.network},
    }
    return 'schema_version = "1.4"\n' + "".join(
        f"\n[{name}]\n{toml_text(table)}" for name, table in tables.items()
    )


def _write_manifest(request: ExportRequest) -> None:
    names = list(dict.fromkeys(spec.name for spec in request.specs))
    about = {
        "name": names[0] if len(names) == 1 else request.output.absolute().name,
        "description": f"Exported from {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}.",
    }
    put_file(request.output / "benchmark.toml", toml_text(about))
