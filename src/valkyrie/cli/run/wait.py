"""`run wait`: a run's end as an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from valkyrie.cli.options import Number, pinned, run_argument, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.cli.watch import DETACHED
from valkyrie.cli.watch import connect as watch_run
from valkyrie.report.formats import ends_text, number, plural, run_exits_text, safe, score_sentence

if TYPE_CHECKING:
    from valkyrie.views import RunView, ScoreView

TIMED_OUT = 124


@verb(
    "wait",
    examples="valk run wait 3f2a --timeout 3600 --min-score 0.8 && ./deploy\n"
    "valk run wait 3f2a --min-score 0.8 --sure",
)
@run_argument
@click.option("--timeout", type=Number(min=0), metavar="SECONDS", help="Give up after this long: exit 124.")
@click.option(
    "--min-score",
    type=Number(),
    metavar="SCORE",
    help="Exit 1 when final_score is below this, on the benchmark's own scale (0.8 is 80 %).",
)
@click.option(
    "--sure",
    is_flag=True,
    help="With --min-score: exit 0 only when the whole 95 % interval of final_score reaches it.",
)
@click.option("--connect", "-f", is_flag=True, help="Watch it live meanwhile; Ctrl+C detaches.")
def wait(
    output: Output, *, ref: str, timeout: float | None, min_score: float | None, sure: bool, connect: bool
) -> int:
    """Block until a run ended; the exit code says how.

    \b
    0    FINISHED, every planned trial graded, --min-score reached (--sure: by the whole interval)
    1    ERROR or STOPPED, no trial graded, errors still open, a score below --min-score, or one that
         --sure can't tell
    2    no such run, or a wrong flag
    124  --timeout passed before the end
    130  interrupted; the run goes on
    """
    from valkyrie.views import to_json

    if sure and min_score is None:
        raise click.UsageError("--sure is about --min-score; give both.")
    if connect and timeout is not None:
        raise click.UsageError("--timeout and --connect exclude each other.")
    with tracker() as opened:
        ref = pinned(opened, ref)
        if connect and watch_run(opened, ref, output) == DETACHED:
            return DETACHED
        try:
            run, reasons, code = opened.wait(ref, timeout=timeout), [], 0
            run = opened.fetch(run.id) if sure else run  # what events tell of a run may lack its intervals
        except TimeoutError:
            run, reasons, code = opened.fetch(ref), [f"the run did not end within {timeout:g} s"], TIMED_OUT
    said: dict[str, Any] = {}
    if code == 0:
        reasons = shortcomings(run, None if sure else min_score)
        if sure and min_score is not None:
            outcome, reason = surely_reached(run.score, min_score)
            reasons += [reason] if reason else []
            said = {"sure": outcome}
        code = 1 if reasons else 0
    output.emit("run_wait", passed=code == 0, reasons=reasons, **said, run=to_json(run))
    output.line(
        f"{run.id}  {output.ink.state(run.state)}  {score_sentence(run.score, ended=code != TIMED_OUT)}"
    )
    if (exits := run_exits_text(run)) and not output.json:
        output.note(f"{exits}.")
    if reasons and not output.json:
        output.note(f"Not passed: {'; '.join(reasons)}.")
    return code


@verb("watch", examples="valk run watch 3f2a")
@run_argument
def watch(output: Output, *, ref: str) -> int:
    """Same as `run wait --connect`."""
    found = click.get_current_context().invoke(
        wait, ref=ref, connect=True, as_json=output.json, no_color=not output.ink.enabled
    )
    return int(found or 0)


def shortcomings(run: RunView, min_score: float | None = None) -> list[str]:
    """Why an ended run is not a pass; empty when it is."""
    reasons = []
    if run.state != "FINISHED":
        reasons.append(f"the run ended {run.state}" + (f": {safe(run.note)}" if run.note else ""))
    if not run.score.graded:
        reasons.append("no trial was graded")
    errors = sum(run.score.errors.values())
    if errors:
        reasons.append(f"{plural(errors, 'error')} open")
    elif run.score.graded < run.score.planned:
        reasons.append(f"{run.score.graded} of {run.score.planned} planned trials are graded")
    final = run.score.final_score
    if min_score is not None and (final is None or final < min_score):
        wanted = number(min_score, fraction=run.score.fraction)
        reasons.append(f"final_score {number(final, fraction=run.score.fraction)} is below {wanted}")
    return reasons


def surely_reached(score: ScoreView, wanted: float) -> tuple[str, str | None]:
    """Hold the interval of final_score against a number: `reached`, `below` or `can't tell`, and why not."""
    least = number(wanted, fraction=score.fraction)
    if score.final_score is None or score.final_interval is None:
        return "can't tell", f"can't tell whether final_score reaches {least}: it has no interval"
    low, high = score.final_interval
    ends = ends_text(score.final_interval, fraction=score.fraction)
    if low >= wanted:
        return "reached", None
    if high < wanted and not score.ungraded:
        return "below", f"final_score is surely below {least}: its 95 % interval is {ends}"
    final = number(score.final_score, fraction=score.fraction)
    return (
        "can't tell",
        f"can't tell whether final_score {final} reaches {least}: its 95 % interval is {ends}",
    )
