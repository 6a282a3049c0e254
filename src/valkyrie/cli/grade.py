"""`grade`: grade what was run before; `oracle`: grade what an eval's author says is right."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from valkyrie.benchmarks.eval_spec.transcript import ORACLE, has_golden
from valkyrie.cli import eval_options as shared
from valkyrie.cli.eval import finish_eval
from valkyrie.cli.eval_options import placed_plugins
from valkyrie.cli.eval_session import EvalWatch, spec_file, tracker_here
from valkyrie.cli.options import own_folder, verb
from valkyrie.cli.output import Output
from valkyrie.config.permissions import Allowance
from valkyrie.errors import UsageError, UserError
from valkyrie.evals.console import Printer, ReportStream
from valkyrie.evals.plan import EvalItem, EvalRequest
from valkyrie.evals.plugins import trusted_graders, with_project_plugins
from valkyrie.evals.records import to_line
from valkyrie.evals.regrade import RegradeOptions, RegradeSources, grade_again, offered_skills, trials_of
from valkyrie.evals.results import invocation_of
from valkyrie.evals.runner import run_eval
from valkyrie.grade.protocol import JudgeDefaults
from valkyrie.specs.project import find_project
from valkyrie.specs.reader import read_spec
from valkyrie.text import did_you_mean
from valkyrie.trajectory.agent_logs import FORMS, read_foreign
from valkyrie.trajectory.json_fields import TrajectoryError

if TYPE_CHECKING:
    from valkyrie.evals.results import Invocation, TrialResult
    from valkyrie.specs.model import Project


EXAMPLES = """
valk grade -e eval.yaml < outcomes.jsonl
valk grade -e eval.yaml --artifact-dir vally-results/2025-01-15T10-30-00-005Z < results.jsonl
valk grade -e eval.yaml --stimulus fix-bug --workspace . < trajectory.json
valk grade -e eval.yaml --output jsonl --no-require-pass < outcomes.jsonl > graded.jsonl
"""


@verb("grade", examples=EXAMPLES)
@click.option(
    "--eval-spec", "-e", "spec", required=True, metavar="PATH", help="The eval spec whose graders are asked."
)
@click.option(
    "--stimulus", metavar="NAME", help="Grade only this one; whose trial it is where the input does not say."
)
@click.option(
    "--workspace",
    metavar="DIR",
    help="The workspace as the agent left it, or the folder of `eval --workspace`; it is never changed.",
)
@click.option("--diff-file", metavar="FILE", help="What the agent changed, as a patch.")
@click.option(
    "--artifact-dir",
    metavar="DIR",
    help="A folder of results: patches and kept files of its trials are found there.",
)
@shared.THRESHOLD
@shared.ENFORCE_CONSTRAINTS
@shared.JUDGE
@shared.GRADER_PLUGIN
@shared.PARAM
@shared.ALLOWED
@shared.OUTPUT
@shared.RUN_ID
@shared.REQUIRE_PASS
@shared.VERBOSE
def grade(output: Output, **given: Any) -> int:
    """Grade results from stdin with the graders of an eval spec; no agent runs.

    Stdin holds trial results as `valk eval` writes them (results.jsonl, --output jsonl), older outcomes with
    a trajectory, ATIF trajectories, or the JSON output of Copilot CLI or Claude Code; which one is told by
    its looks.

    Exit 0 when all verdicts pass, 1 when one fails or could not be made, 2 when the command or the spec is
    wrong.
    """
    how = _how(given)
    trials = _trials(how)
    graded = _graded(trials, how)
    if given["run_id"]:
        graded = [replace(trial, run_id=given["run_id"]) for trial in graded]
    invocation = invocation_of(graded, name=how.spec.name, threshold=how.threshold)
    _tell(output, invocation, graded, given)
    return invocation.exit_code if given["require_pass"] else invocation.exit_code_of_errors


def _how(given: dict[str, Any]) -> RegradeOptions:
    file = spec_file(given["spec"])
    project = find_project(file.absolute().parent)
    allowed = Allowance(given["pass_env"], given["allow_paths"])
    spec = read_spec(file.resolve(), params=given["params"], project=project, allowed=allowed).spec
    places = RegradeSources(*(_path(given[key]) for key in ("workspace", "diff_file", "artifact_dir")))
    places.check()
    threshold = spec.scoring.threshold if given["threshold"] is None else given["threshold"]
    return RegradeOptions(
        spec=spec,
        stimulus=given["stimulus"],
        threshold=threshold,
        plugins=trusted_graders(project, spec, placed_plugins(given["grader_plugins"]), trust=given["trust"]),
        places=places,
        enforce_constraints=given["enforce_constraints"],
        asking=JudgeDefaults(
            model=given["judge_model"] or spec.defaults.judge_model,
            provider=spec.defaults.judge_provider,
            reasoning_effort=given["judge_effort"] or spec.defaults.judge_reasoning_effort,
            url=given["judge_url"],
        ),
    )


def _path(said: str | None) -> Path | None:
    return None if said is None else Path(said).resolve()


def _trials(how: RegradeOptions) -> list[TrialResult]:
    if sys.stdin.isatty():
        raise UsageError(f"grade reads stdin: pipe {FORMS} into it.")
    try:
        return trials_of(read_foreign(_stdin(), skills=offered_skills(how.spec)), how)
    except TrajectoryError as error:
        raise UserError(f"stdin: {error}") from error


def _stdin() -> str:
    """All of it; a byte that is no UTF-8 costs its character, not the results around it."""
    binary = getattr(sys.stdin, "buffer", None)
    return binary.read().decode("utf-8-sig", "replace") if binary else sys.stdin.read()


def _graded(trials: list[TrialResult], how: RegradeOptions) -> list[TrialResult]:
    with tempfile.TemporaryDirectory(prefix="valkyrie-grade-") as scratch:
        return asyncio.run(grade_again(trials, how, Path(scratch)))


def _tell(output: Output, invocation: Invocation, graded: list[TrialResult], given: dict[str, Any]) -> None:
    records = sys.stdout if given["output_format"] == "jsonl" else None
    aside = records is not None or output.json
    paper = ReportStream.of(sys.stderr if aside else sys.stdout, no_color=not output.ink.enabled)
    printer = Printer(paper, verbose=given["verbose"], records=records)
    for one in invocation.evals:
        for stimulus in one.stimuli:
            printer.stimulus_done(stimulus, one)
    printer.finish(invocation)
    output.emit("grade", trials=[to_line(trial) for trial in graded])


# `oracle`: grade what an eval's author says is right, with no agent at work.

ORACLE_EXAMPLES = """
valk oracle -e eval.yaml
valk oracle -e eval.yaml --stimulus fix-bug --output jsonl
valk oracle -e eval.yaml --no-golden-input
"""


@verb("oracle", examples=ORACLE_EXAMPLES)
@click.option(
    "--eval-spec", "-e", "specs", multiple=True, required=True, metavar="PATH", help="A spec. Repeatable."
)
@click.option("--stimulus", "stimuli", multiple=True, metavar="NAME", help="Only this one. Repeatable.")
@click.option(
    "--no-golden-input",
    is_flag=True,
    help="Grade the workspace as it is set up, with nothing said and nothing done: what passes then?",
)
@click.option("--skip-grade", is_flag=True, help="Apply the golden inputs only.")
@shared.WORKSPACE
@shared.PARAM
@shared.THRESHOLD
@shared.ENFORCE_CONSTRAINTS
@shared.JUDGE
@shared.GRADER_PLUGIN
@click.option(
    "--output-dir", metavar="PATH", help="Where results go. Default: ./vally-results, in a folder of its own."
)
@shared.OUTPUT
@shared.REQUIRE_PASS
@shared.RUN_ID
@click.option("--provider", metavar="NAME", help="Where it runs. Default: local.")
@shared.ALLOWED
@shared.VERBOSE
def oracle(output: Output, **given: Any) -> int:
    """Prepare each stimulus, apply its golden inputs, and grade the result; no agent runs.

    `golden_patch` is applied by git, `golden_command` is run in the workspace, and `golden_trajectory` is
    what graders see of the agent. Stimuli without any of them are left out. A spec whose own right answers
    do not pass is wrong, and so is one that passes with --no-golden-input. Without a `golden_trajectory`
    graders that only say what an agent must not say or do are n/a: they do not count.

    Exit 0 when all verdicts passed, 1 when one failed or could not be made, 2 when the command or a spec is
    wrong.
    """
    project = find_project(Path.cwd())
    request = with_project_plugins(_request(given, project), project, trust=given["trust"])
    records = sys.stdout if given["output_format"] == "jsonl" else None
    aside = records is not None or output.json
    paper = ReportStream.of(sys.stderr if aside else sys.stdout, no_color=not output.ink.enabled)
    with Printer(paper, verbose=given["verbose"], records=records) as printer, tracker_here() as tracker:
        ran = run_eval(tracker, request, EvalWatch(output, printer, verbose=given["verbose"]))
        return finish_eval(output, given, request, ran, printer)


def _request(given: dict[str, Any], project: Project) -> EvalRequest:
    output_dir = Path(given["output_dir"]) if given["output_dir"] else own_folder("vally-results")
    return EvalRequest(
        items=_items(given, project),
        name="oracle",
        executor="nop" if given["no_golden_input"] else ORACLE,
        grader_plugins=placed_plugins(given["grader_plugins"]),
        params=given["params"],
        work_dir=Path.cwd(),
        threshold=given["threshold"],
        enforce_constraints=given["enforce_constraints"],
        judge_model=given["judge_model"],
        judge_url=given["judge_url"],
        runs=1,
        max_retries=0,
        run_id=given["run_id"],
        skip_grade=given["skip_grade"],
        workspace=Path(given["workspace"]).resolve() if given["workspace"] else None,
        provider=given["provider"] or "local",
        network="none",
        pass_env=given["pass_env"],
        allow_paths=given["allow_paths"],
        output_dir=output_dir.resolve(),
    )


def _items(given: dict[str, Any], project: Project) -> list[EvalItem]:
    """The stimuli that have golden inputs; all of them without."""
    allowed = Allowance(given["pass_env"], given["allow_paths"])
    files = [Path(one) for one in given["specs"]]
    if missing := next((file for file in files if not file.is_file()), None):
        raise UsageError(f"--eval-spec {missing} is not a file.")
    read = {
        file: read_spec(file.resolve(), params=given["params"], project=project, allowed=allowed).spec
        for file in files
    }
    names = [one.name for spec in read.values() for one in spec.stimuli]
    for name in given["stimuli"]:
        if name not in names:
            raise UsageError(f"--stimulus: nothing is called {name!r}.{did_you_mean(name, names)}")
    items = []
    for file, spec in read.items():
        chosen = [one for one in spec.stimuli if not given["stimuli"] or one.name in given["stimuli"]]
        kept = tuple(one.name for one in chosen if given["no_golden_input"] or has_golden(one))
        items += [EvalItem(file.resolve(), stimuli=kept)] if kept else []
    if not items:
        raise UsageError(
            "no stimulus has a golden input: write `golden_patch`, `golden_command` or `golden_trajectory`."
        )
    return items
