"""Stimuli as Harbor task directories: any tool that reads those can run them, this one too."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from valkyrie.benchmarks.eval_spec.options import WORKSPACE
from valkyrie.benchmarks.named.writing import put_file, toml_text
from valkyrie.errors import UsageError, UserError
from valkyrie.evals.exporting.harbor_checks import Checks, checks_of
from valkyrie.evals.exporting.harbor_environment import put, write_environment
from valkyrie.evals.exporting.protocol import Exported, ExportRequest
from valkyrie.evals.exporting.registry import check_options
from valkyrie.evals.names import folder_names
from valkyrie.grade.constraints import constraint_graders
from valkyrie.keeping.folders import disk_errors
from valkyrie.nouns import Json
from valkyrie.specs.model import DEFAULT_TIMEOUT_S, EvalSpec, GraderSpec, Stimulus

OPTIONS = ("answerFile", "image", "joinTurnsWith", "network", "reward", "strict")
ANSWER_FILE = "/logs/agent/answer.txt"
GRADING_S = 60.0
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_IMPORTS = {
    "from valkyrie.grade.globs import": "from workspace_globs import",
    "from valkyrie.specs.globs import": "from glob_syntax import",
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
class Options:
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
    def read(cls, given: Mapping[str, str]) -> Options:
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
    options = Options.read(request.options)
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
    spec: EvalSpec, stimulus: Stimulus, folder: Path, options: Options, request: ExportRequest
) -> list[str]:
    """Write one task anew; what of it was left out."""
    from dataclasses import replace

    from valkyrie.grade.registry import make_graders

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
    from valkyrie.grade.plugins import load_plugins
    from valkyrie.grade.registry import known_types
    from valkyrie.specs.project import find_project

    if not find_project(spec.folder.absolute()).plugins_of("graders"):
        return []
    known = set(known_types(load_plugins(request.grader_plugins, spec.folder)))
    return [one for one in stimulus.graders if one.type not in known]


def _instruction(stimulus: Stimulus, checks: Checks, options: Options) -> str:
    text = (options.join_turns_with or "\n\n").join(stimulus.turns).strip()
    if checks.need_answer:
        text += (
            f"\n\nWhen you are done, write your final answer, as you would say it, to {options.answer_file}."
        )
    return text + "\n"


def _write_tests(stimulus: Stimulus, spec: EvalSpec, checks: Checks, tests: Path, options: Options) -> None:
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
    from valkyrie.evals.exporting import harbor_grader
    from valkyrie.grade import globs as workspace_globs
    from valkyrie.specs import globs as glob_syntax

    found = {}
    for name, module in (
        ("grade.py", harbor_grader),
        ("workspace_globs.py", workspace_globs),
        ("glob_syntax.py", glob_syntax),
    ):
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
    spec: EvalSpec, stimulus: Stimulus, checks: Checks, left_out: Sequence[str], options: Options
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
