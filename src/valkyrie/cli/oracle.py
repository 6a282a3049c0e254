"""`oracle`: grade what an eval's author says is right, with no agent at work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from valkyrie.cli import eval_options as shared
from valkyrie.cli.eval_asked import placed_plugins
from valkyrie.cli.options import own_folder, verb
from valkyrie.cli.output import Output
from valkyrie.errors import UsageError

if TYPE_CHECKING:
    from valkyrie.evals.request import EvalItem, EvalRequest
    from valkyrie.specs.model import Project

EXAMPLES = """
valk oracle -e eval.yaml
valk oracle -e eval.yaml --stimulus fix-bug --output jsonl
valk oracle -e eval.yaml --no-golden-input
"""


@verb("oracle", examples=EXAMPLES)
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
    from valkyrie.cli.eval import finish_eval
    from valkyrie.cli.eval_watching import Watching, tracker_here
    from valkyrie.evals.console import Printer
    from valkyrie.evals.paper import Paper
    from valkyrie.evals.project_plugins import with_project_plugins
    from valkyrie.evals.running import run_eval
    from valkyrie.specs.project import find_project

    project = find_project(Path.cwd())
    request = with_project_plugins(_request(given, project), project, trust=given["trust"])
    records = sys.stdout if given["output_format"] == "jsonl" else None
    aside = records is not None or output.json
    paper = Paper.of(sys.stderr if aside else sys.stdout, no_color=not output.ink.enabled)
    with Printer(paper, verbose=given["verbose"], records=records) as printer, tracker_here() as tracker:
        ran = run_eval(tracker, request, Watching(output, printer, verbose=given["verbose"]))
        return finish_eval(output, given, request, ran, printer)


def _request(given: dict[str, Any], project: Project) -> EvalRequest:
    from valkyrie.benchmarks.eval_spec.golden import ORACLE
    from valkyrie.evals.request import EvalRequest

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
    from valkyrie.benchmarks.eval_spec.golden import has_golden
    from valkyrie.evals.request import EvalItem
    from valkyrie.permissions import Allowance
    from valkyrie.specs.reading import read_spec
    from valkyrie.suggest import did_you_mean

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
