"""`experiment run`, `experiment merge`."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmark_runner.terminal import wrapped
from valkyrie.cli import eval_options as shared
from valkyrie.cli.eval_options import named_agent, refuse_with_resume, request_of, said_shutdown
from valkyrie.cli.eval_session import (
    EvalWatch,
    check_kind,
    job_of_folder,
    only_file,
    reporting_again,
    reporting_of,
    show_eval_plan,
    tell_tracker,
    tracker_here,
    with_asked,
)
from valkyrie.cli.options import WholeNumber, own_folder, verb
from valkyrie.cli.output import Output
from valkyrie.config.permissions import Allowance
from valkyrie.errors import UsageError
from valkyrie.evals.console import Printer, ReportStream
from valkyrie.evals.experiments import (
    add_judged,
    experiment_result,
    judge_variants,
    judged_lines,
    plan_file,
    sentences,
    summary_lines,
    variants_table,
    write_experiment,
)
from valkyrie.evals.plugins import with_project_plugins
from valkyrie.evals.result_folder import open_folder
from valkyrie.evals.runner import MARKER, resume_eval, run_eval
from valkyrie.evals.shards import Shard, check_shards, complete_shard, manifests, plan_snapshot, sharded, told
from valkyrie.evals.shards import merge as merge_results
from valkyrie.specs.project import find_project

if TYPE_CHECKING:
    from valkyrie.evals.experiments import ExperimentResult, WrittenExperiment
    from valkyrie.evals.plan import EvalRequest
    from valkyrie.evals.plugins import ReporterGroup
    from valkyrie.evals.runner import FinishedEval

DEFAULT_OUTPUT = "vally-experiment-results"
INTERRUPTED = 130


@verb(
    "run",
    examples="valk experiment run skills.experiment.yaml --dry-run\n"
    "valk experiment run skills.experiment.yaml --agent mock\n"
    "valk experiment run skills.experiment.yaml --variant plain --variant skilled --trials 5 --compare\n"
    "valk experiment run --resume",
)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--variant", "variants", multiple=True, metavar="NAME", help="Only this variant. Repeatable.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    default=DEFAULT_OUTPUT,
    show_default=True,
    help="Where results go, in a folder of their own.",
)
@click.option(
    "--concurrency",
    "workers",
    type=WholeNumber(min=1),
    metavar="N",
    help="Trials at once, over all variants. Default: the file's `execution.workers`, then 5.",
)
@click.option(
    "--eval-filter",
    "eval_filters",
    multiple=True,
    metavar="PATH",
    help="Only evals at this path, in this folder, or that fit this pattern. Repeatable.",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="Run one part of N, counted from 1; `experiment merge` puts them together. Needs --run-id.",
)
@click.option(
    "--shard-strategy",
    type=click.Choice(["by-stimulus"]),
    default="by-stimulus",
    show_default=True,
    help="What stays together: all variants and trials of a stimulus.",
)
@shared.RUN_ID
@click.option("--dry-run", is_flag=True, help="Check and show the plan, run nothing.")
@shared.PARAM
@shared.AGENT
@shared.MODEL_URL
@shared.STARTS_FROM
@shared.TIMEOUT
@shared.RUNS
@shared.THRESHOLD
@shared.ENFORCE_CONSTRAINTS
@shared.JUDGE
@shared.GRADER_PLUGIN
@shared.REPORTERS
@click.option("--compare", is_flag=True, help="Let a judge compare each variant with the baseline, A/B.")
@shared.WORKSPACE
@shared.PARALLEL_TRIALS
@shared.MAX_RETRIES
@shared.SKIP_VALIDATE
@shared.SHUTDOWN_TIMEOUT
@shared.SANDBOX
@shared.GIVEN_TO_AGENT
@shared.ALLOWED
@shared.REQUIRE_PASS
@shared.RESUME
@shared.VERBOSE
def run(output: Output, **given: Any) -> int:
    """Run every variant of an experiment file, and compare.

    All variants run as one job, in one pool of workers. Variants may differ only below the pointers of
    `vary`; any other difference is refused before anything starts. The report compares each variant with
    the baseline, stimulus by stimulus, and says which differences are more than chance.

    Exit 0 when every trial passed, 1 when one failed or could not be run or graded, 2 when the command or a
    file is wrong, 130 when it was interrupted.
    """
    if given["resume"]:
        refuse_with_resume("experiment", "output_dir", "compare", "require_pass")
        return _resume(output, given)
    if given["file"] is None:
        raise click.UsageError("Missing argument 'FILE': name an experiment file.")
    allowed = Allowance((*given["pass_env"], *dict(given["secrets"])), given["allow_paths"])
    file = given["file"]
    if file.is_dir():
        file = given["file"] = only_file(file, f"FILE {file}", ".experiment", "experiment file")
    given["executor"], model = named_agent(given)
    planned = plan_file(
        file,
        variants=given["variants"],
        evals=given["eval_filters"],
        params=given["params"],
        allowed=allowed,
    )
    output.notices(str(finding) for finding in planned.experiment.findings)
    project = find_project(Path.cwd())
    request = planned.request(request_of(given, (), _output_dir(given["output_dir"])), given["workers"])
    if model is not None:
        request = replace(request, items=[replace(item, model=model) for item in request.items])
    request = _planned_part(request, given)
    if given["dry_run"]:
        return show_eval_plan(output, request, project, experiment=planned.experiment)
    request = with_project_plugins(request, project, trust=given["trust"])
    return _run(output, given, with_asked(output, request))


def _planned_part(request: EvalRequest, given: dict[str, Any]) -> EvalRequest:
    """The request of this shard, or of all, with the files its folder begins with."""
    shard = Shard.parse(given["shard"]) if given["shard"] else None
    if shard is not None and request.run_id is None:
        raise UsageError("--shard needs --run-id: the same one for all shards, so that they can be merged.")
    plan = plan_snapshot(request)
    part = request if shard is None else sharded(request, plan, shard)
    return replace(part, begins_with=manifests(part, plan, given["file"], shard))


def _run(output: Output, given: dict[str, Any], request: EvalRequest) -> int:
    reporting = reporting_of(output, request)
    with tracker_here() as tracker, _printer(output, verbose=given["verbose"]) as printer:
        watcher = EvalWatch(output, printer, verbose=given["verbose"], reporting=reporting)
        ran = run_eval(tracker, request, watcher)
    return _finish(output, given, request, ran, reporting)


def _resume(output: Output, given: dict[str, Any]) -> int:
    with tracker_here() as tracker, _printer(output, verbose=given["verbose"]) as printer:
        ref = _interrupted(given["resume"], given["output_dir"])
        check_kind(tracker, ref, experiment=True)
        reporting = reporting_again(output, tracker, ref, trust=given["trust"])
        watcher = EvalWatch(output, printer, verbose=given["verbose"], reporting=reporting)
        request, ran = resume_eval(
            tracker, ref, watcher, shutdown_timeout=said_shutdown(given), trust=given["trust"]
        )
    return _finish(output, given, request, ran, reporting)


def _output_dir(said: Path) -> Path:
    return said if said != Path(DEFAULT_OUTPUT) else own_folder(said)


def _interrupted(said: str, output_dir: Path) -> str:
    """The job that --resume means; without a word that of the newest folder."""
    if said != shared.LAST:
        return job_of_folder(Path(said)) if Path(said).is_dir() else said
    folders = sorted(path.parent for path in output_dir.glob(f"*/{MARKER}"))
    if not folders:
        raise UsageError(f"--resume: {output_dir} holds no experiment; name one, or its --output-dir.")
    return job_of_folder(folders[-1])


def _printer(output: Output, *, verbose: bool) -> Printer:
    stream = sys.stderr if output.json else sys.stdout
    return Printer(ReportStream.of(stream, no_color=not output.ink.enabled), verbose=verbose)


def _finish(
    output: Output,
    given: dict[str, Any],
    request: EvalRequest,
    ran: FinishedEval,
    reporting: ReporterGroup | None,
) -> int:
    folder = ran.invocation.folder
    if folder is None:
        output.line("Nothing was run: every eval has `runs: 0`.")
        return 0
    about = [item.experiment or {} for item in request.items]
    baseline = next((str(one["variant"]) for one in about if one.get("baseline")), None)
    result = experiment_result(ran.invocation, name=about[0].get("name"), baseline=baseline)
    written = write_experiment(result, folder, command=request.command, spans=request.otlp_endpoint is None)
    complete_shard(folder, [trial for one in ran.invocation.evals for trial in one.trials])
    _show(output, result, written, interrupted=ran.interrupted)
    if reporting:
        files = {"folder": folder, "report": written.report, "summary": written.summary}
        reporting.run_completed(ran.invocation, files, interrupted=ran.interrupted)
    tell_tracker(output, folder)
    if ran.interrupted:
        resume = f"valk experiment run --resume {(ran.invocation.id or '')[:8]}"
        output.note(f"Interrupted; what has ended is kept. `{resume}` goes on.")
        return INTERRUPTED
    judged = not given["compare"] or _judge(output, result, written, request)
    failed = result.has_errors or (given["require_pass"] and not result.every_trial_passed)
    return 1 if failed or not judged else 0


def _judge(
    output: Output, result: ExperimentResult, written: WrittenExperiment, request: EvalRequest
) -> bool:
    """Whether a judge had something to say about every variant."""
    found = judge_variants(result, written, request)
    lines = judged_lines(found)
    add_judged(result, written, lines, [one.record() for one in found])
    for one in found:
        output.emit("comparison", **one.record())
    output.lines(lines[2:])
    return not any(one.failed for one in found)


def _show(
    output: Output, result: ExperimentResult, written: WrittenExperiment, *, interrupted: bool = False
) -> None:
    comparisons = [
        {"metric": metric, **asdict(one)} for metric, found in result.comparisons.items() for one in found
    ]
    output.emit(
        "experiment",
        name=result.name,
        folder=str(written.folder),
        interrupted=interrupted,
        passed=result.every_trial_passed and not interrupted,
        evals=summary_lines(result),
        comparisons=comparisons,
        sentences=sentences(result),
    )
    if output.json:
        return
    output.line()
    output.table(variants_table(result))
    output.line()
    for one in sentences(result):
        output.lines(wrapped(one, output.width))
    output.line(f"Report: {written.report}")


@verb(
    "merge",
    examples="valk experiment merge shard-1 shard-2\nvalk experiment merge ./artifacts --prefer newest",
)
@click.argument("folders", metavar="DIR…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    default=DEFAULT_OUTPUT,
    show_default=True,
    help="Where results go, in a folder of their own.",
)
@click.option(
    "--baseline", metavar="NAME", help="The variant others are compared with [default: the file's]."
)
@click.option(
    "--prefer",
    type=click.Choice(["newest"]),
    help="Of two results of one trial take the newest; without it that is refused.",
)
@shared.NO_REQUIRE_PASS
def merge(
    output: Output,
    *,
    folders: tuple[Path, ...],
    output_dir: Path,
    baseline: str | None,
    prefer: str | None,
    require_pass: bool,
) -> int:
    """Put shards of an experiment together again.

    Each DIR holds results.jsonl files, in it or below. Trials are matched by variant, eval, model, stimulus
    and number; the same one twice counts once, two different ones are refused. The report is made anew
    from all of them. Folders of `experiment run --shard` must be all shards of one run and plan, each
    complete.

    Exit 0 when they were merged, with --require-pass only if every trial passed.
    """
    check_shards(folders)
    place = _output_dir(output_dir).resolve()
    if inside := next((one for one in folders if place.is_relative_to(one.resolve())), None):
        raise UsageError(f"--output-dir {place} lies in {inside}, which is merged; choose another folder.")
    merged = merge_results(folders, prefer_newest=prefer == "newest")
    result = experiment_result(merged.invocation, baseline=baseline)
    written = write_experiment(result, open_folder(place, datetime.now(UTC)))
    output.line(f"Merged {told(merged)}.")
    _show(output, result, written)
    return 1 if require_pass and (result.has_errors or not result.every_trial_passed) else 0
