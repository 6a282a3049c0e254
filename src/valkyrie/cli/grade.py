"""`grade`: grade what was run before."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from valkyrie.cli import eval_options as shared
from valkyrie.cli.eval_asked import placed_plugins
from valkyrie.cli.eval_items import spec_file
from valkyrie.cli.options import verb
from valkyrie.cli.output import Output
from valkyrie.errors import UsageError

if TYPE_CHECKING:
    from valkyrie.evals.regrading import Regrading
    from valkyrie.evals.results import Invocation, TrialResult

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
    from valkyrie.evals.gathering import invocation_of

    how = _how(given)
    trials = _trials(how)
    graded = _graded(trials, how)
    if given["run_id"]:
        graded = [replace(trial, run_id=given["run_id"]) for trial in graded]
    invocation = invocation_of(graded, name=how.spec.name, threshold=how.threshold)
    _tell(output, invocation, graded, given)
    return invocation.exit_code if given["require_pass"] else invocation.exit_code_of_errors


def _how(given: dict[str, Any]) -> Regrading:
    from valkyrie.evals.grading_places import Places
    from valkyrie.evals.project_plugins import trusted_graders
    from valkyrie.evals.regrading import Regrading
    from valkyrie.grade.protocol import Asking
    from valkyrie.permissions import Allowance
    from valkyrie.specs.project import find_project
    from valkyrie.specs.reading import read_spec

    file = spec_file(given["spec"])
    project = find_project(file.absolute().parent)
    allowed = Allowance(given["pass_env"], given["allow_paths"])
    spec = read_spec(file.resolve(), params=given["params"], project=project, allowed=allowed).spec
    places = Places(*(_path(given[key]) for key in ("workspace", "diff_file", "artifact_dir")))
    places.check()
    threshold = spec.scoring.threshold if given["threshold"] is None else given["threshold"]
    return Regrading(
        spec=spec,
        stimulus=given["stimulus"],
        threshold=threshold,
        plugins=trusted_graders(project, spec, placed_plugins(given["grader_plugins"]), trust=given["trust"]),
        places=places,
        enforce_constraints=given["enforce_constraints"],
        asking=Asking(
            model=given["judge_model"] or spec.defaults.judge_model,
            provider=spec.defaults.judge_provider,
            reasoning_effort=given["judge_effort"] or spec.defaults.judge_reasoning_effort,
            url=given["judge_url"],
        ),
    )


def _path(said: str | None) -> Path | None:
    return None if said is None else Path(said).resolve()


def _trials(how: Regrading) -> list[TrialResult]:
    from valkyrie.errors import UserError
    from valkyrie.evals.regrading import offered_skills, trials_of
    from valkyrie.trajectory.reading import TrajectoryError
    from valkyrie.trajectory.sniffing import FORMS, read_foreign

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


def _graded(trials: list[TrialResult], how: Regrading) -> list[TrialResult]:
    import tempfile

    from valkyrie.evals.regrading import grade_again

    with tempfile.TemporaryDirectory(prefix="valkyrie-grade-") as scratch:
        return asyncio.run(grade_again(trials, how, Path(scratch)))


def _tell(output: Output, invocation: Invocation, graded: list[TrialResult], given: dict[str, Any]) -> None:
    from valkyrie.evals.console import Printer
    from valkyrie.evals.paper import Paper
    from valkyrie.evals.records import to_line

    records = sys.stdout if given["output_format"] == "jsonl" else None
    aside = records is not None or output.json
    paper = Paper.of(sys.stderr if aside else sys.stdout, no_color=not output.ink.enabled)
    printer = Printer(paper, verbose=given["verbose"], records=records)
    for one in invocation.evals:
        for stimulus in one.stimuli:
            printer.stimulus_done(stimulus, one)
    printer.finish(invocation)
    output.emit("grade", trials=[to_line(trial) for trial in graded])
