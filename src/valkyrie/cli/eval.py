"""`eval`: run eval specs here, in the foreground, on the engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from valkyrie.cli.eval_options import Duration
from valkyrie.cli.eval_watching import Watching, job_of_folder, tracker_here
from valkyrie.cli.options import Number, WholeNumber, verb
from valkyrie.cli.output import Output
from valkyrie.cli.words import assignments
from valkyrie.errors import UsageError

if TYPE_CHECKING:
    from valkyrie.evals.console import Printer
    from valkyrie.evals.request import EvalRequest
    from valkyrie.evals.results import Invocation
    from valkyrie.tracker.local import LocalTracker

INTERRUPTED = 130
LAST = "last"
DEFAULT_OUTPUT = "vally-results"
_WITH_RESUME = ("resume", "verbose", "output_format", "as_json", "no_color", "shutdown_timeout")

EXAMPLES = """
valk eval -e eval.yaml --executor mock
valk eval -e eval.yaml --model gpt-5.5,claude-opus-4.8 --runs 5
valk eval --suite regression --junit --threshold 0.8
valk eval --tag cost=free,low --skip-grade --output jsonl > outcomes.jsonl
valk eval --resume
"""


@verb("eval", examples=EXAMPLES)
@click.option("--eval-spec", "-e", "specs", multiple=True, metavar="PATH", help="An eval spec. Repeatable.")
@click.option("--suite", metavar="NAME", help="Run a suite of .vally.yaml. Not with --eval-spec.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="KEY=VALUES",
    help="Only stimuli with one of these values (cost=free,low); KEY=!VALUE leaves out. Repeatable.",
)
@click.option(
    "--param",
    "-p",
    "params",
    multiple=True,
    callback=assignments,
    metavar="KEY=VALUE",
    help="Fill ${KEY} in specs; over the environment. Repeatable.",
)
@click.option("--executor", metavar="NAME", help="The agent to run, over the specs' own; mock needs nothing.")
@click.option(
    "--executor-plugin",
    "executor_plugins",
    multiple=True,
    metavar="SPEC",
    help="A plugin with agents: entry point, module:Class or a .py file. Repeatable.",
)
@click.option("--model", metavar="M[,M]", help="Models to run each spec with; over the specs' own.")
@click.option("--model-url", metavar="URL", help="Where the agent's model is served, if not at its vendor's.")
@click.option(
    "--skill-dir", metavar="PATH", help="Load the skills of this folder where a spec declares none."
)
@click.option(
    "--work-dir", metavar="PATH", help="What stimuli without an environment start from, never written."
)
@click.option(
    "--timeout", type=Duration(), help="How long an agent may take (5m, 300s). Default: the spec's, then 2m."
)
@click.option(
    "--runs", type=WholeNumber(min=0), help="Trials of each stimulus; 0 only checks. Default: the spec's."
)
@click.option(
    "--threshold",
    type=Number(min=0, max=1),
    help="The score a stimulus must reach; 0 lets all verdicts pass.",
)
@click.option("--judge-model", metavar="MODEL", help="The model of judges, over the specs' own.")
@click.option("--judge-url", metavar="URL", help="Where judges' models are served.")
@click.option(
    "--grader-plugin",
    "grader_plugins",
    multiple=True,
    metavar="SPEC",
    help="A plugin with graders: entry point, module:Class or a .py file. Repeatable.",
)
@click.option(
    "--eval-plugin",
    "eval_plugin",
    metavar="SPEC",
    help="A plugin that turns a foreign file into a spec. Needs --eval-spec.",
)
@click.option(
    "--output-dir",
    metavar="PATH",
    help="Where results go, in a folder of the run's own. Default: ./vally-results.",
)
@click.option(
    "--output",
    "output_format",
    type=click.Choice(["jsonl"]),
    help="jsonl: one JSON object per trial on stdout.",
)
@click.option("--junit", is_flag=True, help="Write eval-results.junit.xml as well.")
@click.option("--workspace", metavar="PATH", help="Keep agents' final workspaces below this folder.")
@click.option("--workers", type=WholeNumber(min=1), default=5, show_default=True, help="Trials at once.")
@click.option("--parallel-trials", is_flag=True, help="Trials of one stimulus may run at the same time.")
@click.option(
    "--max-retries",
    type=WholeNumber(min=0),
    default=2,
    show_default=True,
    help="Further attempts after time-outs, rate limits and lost connections.",
)
@click.option("--skip-grade", is_flag=True, help="Run agents only; `valk grade` grades later.")
@click.option("--skip-validate", is_flag=True, help="Do not lint specs first.")
@click.option(
    "--shutdown-timeout",
    type=Duration(),
    default="5s",
    show_default=True,
    help="How long what is under way may take to end after Ctrl+C.",
)
@click.option(
    "--provider", metavar="NAME", help="Where trials run. Default: local; null where nothing has to run."
)
@click.option("--network", type=click.Choice(["none", "public"]), help="Default: public; none with mock.")
@click.option(
    "--secret",
    "-s",
    "secrets",
    nargs=2,
    multiple=True,
    metavar="ENV NAME",
    help="A secret for the agent, by environment variable and name. Repeatable.",
)
@click.option(
    "--kwarg",
    "-k",
    "kwargs",
    multiple=True,
    callback=assignments,
    metavar="KEY=VALUE",
    help="A parameter of the agent. Repeatable.",
)
@click.option("--name", metavar="TEXT", help="What this eval is called in lists.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value=LAST,
    metavar="[REF]",
    help="Go on with an interrupted eval: its id, name or output folder; the last one without.",
)
@click.option("--verbose", is_flag=True, help="Show whole answers, every grader, and what is doubtful.")
def eval_command(output: Output, **given: Any) -> int:
    """Run stimuli against an agent and grade what it did.

    Stimuli come from --eval-spec, from a --suite of .vally.yaml, or from all specs of the project that match
    --tag. Every trial runs in a sandbox of its own; everything is kept as it happens, so an eval that was
    interrupted goes on with --resume.

    Exit 0 when all verdicts passed (or --threshold 0 lets them), 1 when one failed or anything could not be
    run or graded, 2 when the command or a spec is wrong, 130 when it was interrupted.
    """
    from valkyrie.evals.console import Printer
    from valkyrie.evals.paper import Paper

    records = sys.stdout if given["output_format"] == "jsonl" else None
    aside = records is not None or output.json
    paper = Paper.of(sys.stderr if aside else sys.stdout, no_color=not output.ink.enabled)
    printer = Printer(paper, verbose=given["verbose"], records=records)
    if stray := click.get_current_context().args:
        raise UsageError(f"{stray[0]!r} stands alone; a spec is named with -e: `valk eval -e {stray[0]}`.")
    if given["resume"]:
        _refuse_with_resume()
    with printer:
        return (_resume if given["resume"] else _start)(output, given, printer)


# A path without -e is what people try first: it gets an answer of its own.
eval_command.allow_extra_args = True


def _start(output: Output, given: dict[str, Any], printer: Printer) -> int:
    from valkyrie.cli.eval_items import items_of
    from valkyrie.evals.request import EvalRequest
    from valkyrie.evals.running import run_eval

    items, plugins = items_of(given)
    with tracker_here() as tracker:
        request = EvalRequest(
            items=items,
            name=given["name"],
            executor=given["executor"],
            executor_plugins=plugins["executors"],
            grader_plugins=plugins["graders"],
            eval_plugin=_absolute(given["eval_plugin"]),
            params=given["params"],
            work_dir=Path(given["work_dir"] or ".").resolve(),
            skill_dir=Path(given["skill_dir"]).resolve() if given["skill_dir"] else None,
            timeout=given["timeout"],
            threshold=given["threshold"],
            judge_model=given["judge_model"],
            judge_url=given["judge_url"],
            runs=given["runs"],
            max_retries=given["max_retries"],
            skip_grade=given["skip_grade"],
            skip_validate=given["skip_validate"],
            workers=given["workers"],
            parallel_trials=given["parallel_trials"],
            workspace=Path(given["workspace"]).resolve() if given["workspace"] else None,
            shutdown_timeout=given["shutdown_timeout"],
            provider=given["provider"],
            network=given["network"],
            model_url=given["model_url"],
            secrets=dict(given["secrets"]),
            kwargs=given["kwargs"],
            junit=given["junit"],
            output_dir=Path(given["output_dir"] or DEFAULT_OUTPUT).resolve(),
        )
        watcher = Watching(output, printer, verbose=given["verbose"])
        ran = run_eval(tracker, request, watcher)
        return _finish(output, request, ran.invocation, printer, interrupted=ran.interrupted)


def _absolute(plugin: str | None) -> str | None:
    """A plugin's file by a path that means the same from everywhere."""
    return str(Path(plugin).resolve()) if plugin and plugin.endswith(".py") else plugin


def _resume(output: Output, given: dict[str, Any], printer: Printer) -> int:
    from valkyrie.evals.running import resume_eval

    with tracker_here() as tracker:
        ref = _interrupted(tracker, given["resume"])
        if any(item["experiment"] for item in tracker.fetch_bound(ref)["items"]):
            raise UsageError(f"{ref} is an experiment; `valk experiment run --resume {ref}` goes on.")
        watcher = Watching(output, printer, verbose=given["verbose"])
        request, ran = resume_eval(tracker, ref, watcher, shutdown_timeout=_said("shutdown_timeout", given))
        return _finish(output, request, ran.invocation, printer, interrupted=ran.interrupted)


def _said(name: str, given: dict[str, Any]) -> Any:
    """What the command line says, not a default."""
    source = click.get_current_context().get_parameter_source(name)
    return given[name] if source is click.core.ParameterSource.COMMANDLINE else None


def _refuse_with_resume() -> None:
    """What an eval is was said when it began."""
    context = click.get_current_context()
    other = [
        option
        for option in context.command.params
        if option.name not in _WITH_RESUME
        and context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
    ]
    if other:
        raise UsageError(
            f"--resume goes on with the eval as it was asked for; leave out {other[0].opts[0]}, or start a "
            "new one."
        )


def _interrupted(tracker: LocalTracker, said: str) -> str:
    """The job that `--resume` means."""
    from valkyrie.job_views import JobFilter

    if said != LAST:
        return job_of_folder(Path(said)) if Path(said).is_dir() else said
    recent = tracker.list_jobs(JobFilter(limit=100)).jobs
    evals = [job for job in recent if job.source.get("type") == "eval"]
    if not evals:
        raise UsageError("--resume: no eval was started here yet.")
    return next((job for job in evals if job.state != "completed"), evals[0]).id


def _finish(
    output: Output, request: EvalRequest, invocation: Invocation, printer: Printer, *, interrupted: bool
) -> int:
    from valkyrie.cli.eval_report import document
    from valkyrie.evals.writing import write_all

    written = write_all(invocation, junit=request.junit) if invocation.folder else None
    printer.finish(invocation, written)
    output.emit("eval", **document(invocation, written, interrupted=interrupted))
    return INTERRUPTED if interrupted else invocation.exit_code
