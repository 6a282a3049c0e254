"""`eval`: run eval specs here, in the foreground, on the engine; `init`: the first eval of a project."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from valkyrie.cli import eval_options as shared
from valkyrie.cli.eval_options import named_agent, placed, refuse_with_resume, request_of, said_shutdown
from valkyrie.cli.eval_session import (
    EvalWatch,
    check_kind,
    items_of,
    job_of_folder,
    reporting_again,
    reporting_of,
    show_eval_plan,
    tell_tracker,
    tracker_here,
    with_asked,
)
from valkyrie.cli.options import WholeNumber, own_folder, verb
from valkyrie.cli.output import Output
from valkyrie.config.permissions import outside
from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.evals.console import Printer, ReportStream
from valkyrie.evals.figures import figures
from valkyrie.evals.plugins import with_project_plugins
from valkyrie.evals.result_folder import write_all
from valkyrie.evals.runner import resume_eval, run_eval
from valkyrie.evals.starter.project import start_project
from valkyrie.specs.project import file_root, find_project
from valkyrie.views.jobs import JobFilter

if TYPE_CHECKING:
    from valkyrie.evals.plan import EvalRequest
    from valkyrie.evals.plugins import ReporterGroup
    from valkyrie.evals.result_folder import WrittenResults
    from valkyrie.evals.results import Invocation, SpecResult, StimulusResult
    from valkyrie.evals.runner import FinishedEval
    from valkyrie.specs.model import Project
    from valkyrie.tracker.local import LocalTracker


def document(invocation: Invocation, written: WrittenResults | None, *, interrupted: bool) -> Json:
    """What --json prints at the end."""
    return {
        "id": invocation.id,
        "name": invocation.name,
        "folder": str(written.folder) if written else None,
        "interrupted": interrupted,
        "passed": invocation.exit_code == 0 and not interrupted,
        "evals": [_eval(one) for one in invocation.evals],
    }


def _eval(one: SpecResult) -> Json:
    found = figures([one])
    interval, method = found.score_interval
    low, high = found.score_range or ((found.score, found.score) if found.fraction else (None, None))
    return {
        "name": one.name,
        "file": one.file,
        "variant": one.variant,
        "model": one.model,
        "executor": one.executor,
        "run_id": one.run_id,
        "threshold": one.threshold,
        "skipped": one.skipped,
        "passed": one.passed,
        "missing": one.missing,
        "errors": len(one.faults),
        "score": found.score,
        "interval": interval,
        "interval_method": method if interval else None,
        "pass_rate": found.pass_rate,
        "ungraded": found.ungraded,
        "score_low": low,
        "score_high": high,
        "counted_as_zero": found.by_agent,
        "stimuli": [_stimulus(stimulus) for stimulus in one.stimuli],
    }


def _stimulus(one: StimulusResult) -> Json:
    return {
        "name": one.name,
        "planned": one.planned,
        "graded": len(one.graded),
        "passes": one.passes,
        "score": one.score,
        "passed": one.passed,
        "errors": [
            {
                "trial": trial.index,
                "kind": trial.fault.kind,
                "cause": trial.fault.cause,
                "message": trial.fault.message,
            }
            for trial in one.faults
            if trial.fault
        ],
    }


# `eval`: run eval specs here, in the foreground, on the engine.

INTERRUPTED = 130
DEFAULT_OUTPUT = "vally-results"

EXAMPLES = """
valk eval eval.yaml --agent mock
valk eval -e eval.yaml --model gpt-5.5,claude-opus-4.8 --trials 5
valk eval ./evals/dates --agent ./my-agent --task-ids leap-year
valk eval --suite regression --junit --threshold 0.8
valk eval --tag cost=free,low --skip-grade --output jsonl > outcomes.jsonl
valk eval --resume
"""


@verb("eval", examples=EXAMPLES)
@click.argument("paths", metavar="[SPEC|FOLDER]…", nargs=-1)
@click.option("--eval-spec", "-e", "specs", multiple=True, metavar="PATH", help="The same. Repeatable.")
@shared.STIMULI
@click.option("--suite", metavar="NAME", help="Run a suite of .vally.yaml. Not with --eval-spec.")
@shared.TAG
@shared.PARAM
@shared.AGENT
@click.option("--model", metavar="M[,M]", help="Models to run each spec with; over the specs' own.")
@shared.MODEL_URL
@shared.STARTS_FROM
@shared.TIMEOUT
@shared.RUNS
@shared.THRESHOLD
@shared.ENFORCE_CONSTRAINTS
@shared.JUDGE
@shared.GRADER_PLUGIN
@shared.REPORTERS
@click.option(
    "--eval-plugin",
    "eval_plugin",
    metavar="SPEC",
    help="A plugin that turns a foreign file into a spec. Needs --eval-spec.",
)
@click.option(
    "--output-dir",
    metavar="PATH",
    help="Where results go, in a folder of the run's own. Default: `paths.results` of .vally.yaml, then "
    "./vally-results.",
)
@shared.OUTPUT
@click.option("--junit", is_flag=True, help="Write eval-results.junit.xml as well.")
@shared.WORKSPACE
@click.option(
    "--concurrency",
    "workers",
    type=WholeNumber(min=1),
    metavar="N",
    default=5,
    show_default=True,
    help="Trials at once.",
)
@shared.PARALLEL_TRIALS
@shared.MAX_RETRIES
@click.option("--skip-grade", is_flag=True, help="Run agents only; `valk grade` grades later.")
@shared.SKIP_VALIDATE
@shared.SHUTDOWN_TIMEOUT
@shared.SANDBOX
@shared.GIVEN_TO_AGENT
@shared.ALLOWED
@click.option("--dry-run", is_flag=True, help="Check and show the plan, run nothing.")
@click.option("--name", metavar="TEXT", help="What this eval is called in lists.")
@shared.RUN_ID
@shared.REQUIRE_PASS
@shared.RESUME
@shared.VERBOSE
def eval_command(output: Output, **given: Any) -> int:
    """Run stimuli against an agent and grade what it did.

    Stimuli come from specs (files, or folders that hold one), from a --suite of .vally.yaml, or from all
    specs of the project that match --tag. Every trial runs in a sandbox of its own; everything is kept as it
    happens, so an eval that was interrupted goes on with --resume.

    Exit 0 when all verdicts passed (or --threshold 0 or --no-require-pass lets them), 1 when one failed or
    anything could not be run or graded, 2 when the command or a spec is wrong, 130 when it was interrupted.
    """
    records = sys.stdout if given["output_format"] == "jsonl" else None
    aside = records is not None or output.json
    paper = ReportStream.of(sys.stderr if aside else sys.stdout, no_color=not output.ink.enabled)
    printer = Printer(paper, verbose=given["verbose"], records=records)
    if given["resume"]:
        refuse_with_resume("eval", "require_pass")
    given["specs"] = (*_without_agent_word(given["paths"]), *given["specs"])
    with printer:
        return (_resume if given["resume"] else _start)(output, given, printer)


def _without_agent_word(paths: tuple[str, ...]) -> tuple[str, ...]:
    """`vally eval agent` is another name of `vally eval`."""
    return paths[1:] if paths[:1] == ("agent",) and not Path("agent").exists() else paths


def _start(output: Output, given: dict[str, Any], printer: Printer) -> int:
    given["executor"], given["model"] = named_agent(given)
    project = find_project(Path.cwd())
    items = items_of(given, project)
    request = replace(
        request_of(given, items, _output_dir(given["output_dir"], project)),
        name=given["name"],
        eval_plugin=given["eval_plugin"] and placed(given["eval_plugin"], Path.cwd()),
        skip_grade=given["skip_grade"],
        workers=given["workers"],
        junit=given["junit"],
    )
    if given["dry_run"]:
        return show_eval_plan(output, request, project)
    request = with_asked(output, with_project_plugins(request, project, trust=given["trust"]))
    reporting = reporting_of(output, request)
    with tracker_here() as tracker:
        watcher = EvalWatch(output, printer, verbose=given["verbose"], reporting=reporting)
        ran = run_eval(tracker, request, watcher)
        return finish_eval(output, given, request, ran, printer, reporting)


def _output_dir(said: str | None, project: Project) -> Path:
    if said is None and project.results is not None:
        folder = project.folder / project.results
        if (real := outside(folder, file_root(project.folder))) is not None:
            raise UsageError(
                f"`paths.results` of {project.file} leads to {real}, outside the project; name it yourself "
                f"if you want results there: --output-dir {shlex.quote(str(real))}."
            )
        return folder
    return Path(said) if said else own_folder(DEFAULT_OUTPUT)


def _resume(output: Output, given: dict[str, Any], printer: Printer) -> int:
    with tracker_here() as tracker:
        ref = _interrupted(tracker, given["resume"])
        check_kind(tracker, ref, experiment=False)
        reporting = reporting_again(output, tracker, ref, trust=given["trust"])
        watcher = EvalWatch(output, printer, verbose=given["verbose"], reporting=reporting)
        request, ran = resume_eval(
            tracker, ref, watcher, shutdown_timeout=said_shutdown(given), trust=given["trust"]
        )
        return finish_eval(output, given, request, ran, printer, reporting)


def _interrupted(tracker: LocalTracker, said: str) -> str:
    """The job that `--resume` means."""
    if said != shared.LAST:
        return job_of_folder(Path(said)) if Path(said).is_dir() else said
    recent = tracker.list_jobs(JobFilter(limit=100)).jobs
    evals = [job for job in recent if job.source.get("type") == "eval"]
    if not evals:
        raise UsageError("--resume: no eval was started here yet.")
    return next((job for job in evals if job.state != "completed"), evals[0]).id


def finish_eval(
    output: Output,
    given: dict[str, Any],
    request: EvalRequest,
    ran: FinishedEval,
    printer: Printer,
    reporting: ReporterGroup | None = None,
) -> int:
    """Write what an eval came to, say it, and return the exit code."""
    invocation, interrupted = ran.invocation, ran.interrupted
    traces = request.otlp_endpoint is None
    written = write_all(invocation, junit=request.junit, spans=traces) if invocation.folder else None
    printer.finish(invocation, written)
    tell_tracker(output, invocation.folder)
    output.emit("eval", **document(invocation, written, interrupted=interrupted))
    if reporting:
        reporting.run_completed(invocation, written.places() if written else {}, interrupted=interrupted)
    if interrupted:
        return INTERRUPTED
    return invocation.exit_code if given["require_pass"] else invocation.exit_code_of_errors


# `init`: the first eval of a project.


@verb("init", examples="valk init\nvalk init my-evals --ci github\nvalk eval --suite smoke")
@click.argument("folder", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path), default=Path())
@click.option("--ci", type=click.Choice(["github"]), help="Also write a workflow that runs the evals.")
@click.option("--force", is_flag=True, help="Overwrite the files that are there already.")
def init(output: Output, *, folder: Path, ci: str | None, force: bool) -> None:
    """Write a first eval, a skill and a suite.

    What is written runs at once, without a model or a key: its eval is answered by `mock`, from fixtures.
    Change the prompts and graders to yours, then name a real agent. Asks nothing; existing files are left
    alone and the command exits 2, unless --force is given.
    """
    started = start_project(folder, ci=ci, force=force)
    files = [str(path) for path in started.files]
    output.emit("eval_project_created", folder=str(folder.absolute()), files=files)
    for path in started.files:
        output.line(f"Wrote {folder / path}")
    there = "" if folder == Path() else f"cd {folder} && "
    commands = [
        ("Check it", f"{there}valk lint --strict"),
        ("Run it", f"{there}valk eval --suite smoke"),
        ("With an agent", f"{there}valk eval --suite smoke --agent claude-code"),
    ]
    output.panel("Next", commands)
