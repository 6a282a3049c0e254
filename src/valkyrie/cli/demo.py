"""`demo`: the whole platform in one command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from valkyrie.cli.options import tracker, verb
from valkyrie.cli.output import Output
from valkyrie.cli.run_watch import DETACHED, watch
from valkyrie.compare.tables import interval_notes
from valkyrie.report.formats import short_id
from valkyrie.report.tables import score_table

if TYPE_CHECKING:
    from valkyrie.views import RunView

BENCHMARK = "quickstart"
AGENTS = ("oracle", "nop")


@verb("demo", examples="valk demo\nvalk run list --label demo")
def demo(output: Output) -> int:
    """Run oracle and nop on quickstart, end with a score table.

    The oracle runs each task's own solution and must pass all of them; nop does nothing and must pass none.
    Exit 1 when either is otherwise: then a task, its grader or this machine is broken. Where the `local`
    sandbox cannot work, nothing is isolated and the demo says so.
    """
    from valkyrie.views import RunRequest, to_json

    provider = _provider(output)
    with tracker() as opened:
        refs = []
        for agent in AGENTS:
            request = RunRequest(agent=agent, benchmark=BENCHMARK, provider=provider, label="demo")
            started = opened.start(request)
            output.notices(started.notices)
            refs.append(started.run.id)
        try:
            runs = watch(opened, refs, output)
        except KeyboardInterrupt:
            output.line("Detached; both runs go on. See them: valk run list --label demo")
            return DETACHED
    wrong = _wrong(runs)
    output.emit("demo", passed=not wrong, reasons=wrong, runs=[to_json(run) for run in runs])
    if not output.json:
        output.table(score_table(runs, output.ink))
        found = [(run.agent, run.score.interval, run.score.interval_method) for run in runs]
        output.lines(output.ink.paint(note, "dim") for note in interval_notes(found))
        output.panel(
            "Next", [("Look closer", f"valk run tasks {short_id(runs[0].id)}"), ("All runs", "valk run list")]
        )
    for reason in wrong:
        output.note(f"Not as it should be: {reason}.")
    return 1 if wrong else 0


def _provider(output: Output) -> str:
    from valkyrie.cli.doctor import local_sandbox

    local = local_sandbox()
    if local.works:
        return "local"
    output.note(f"NOTHING IS ISOLATED in this demo: the local sandbox cannot work here ({local.problem}).")
    output.note("It uses plain processes; `valk doctor` says how to get the sandbox.")
    return "process"


def _wrong(runs: list[RunView]) -> list[str]:
    wrong = []
    for run, should_pass in zip(runs, (True, False), strict=True):
        wanted = run.score.planned if should_pass else 0
        if run.score.passed != wanted or run.score.graded != run.score.planned:
            count = f"{run.score.passed} of {run.score.planned} passed, {run.score.graded} graded"
            wrong.append(f"{run.agent} should pass {wanted}, but {count} (valk run tasks {short_id(run.id)})")
    return wrong
