"""The tables of a job's summary: who passed what, how sure, how steadily, at which price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from valkyrie.report.comparison_tables import (
    agent_score_cell,
    by_rank,
    interval_notes,
    repeats_cell,
    score_notes,
)
from valkyrie.report.formats import NONE, dollars, duration, elapsed, ends_text, number, plural, score_cell
from valkyrie.report.jobs.sides import Tally, Trials, run_names, tally
from valkyrie.report.layout import PLAIN, Column, Ink, Table
from valkyrie.report.plan_power import spread_text
from valkyrie.report.scored_trials import ScoredTrials

if TYPE_CHECKING:
    from valkyrie.job_views import JobView
    from valkyrie.report.comparison_views import AgentSummary, Summary
    from valkyrie.views import RunView, TokensView

_VERDICTS = ("passed", "partial", "failed", "error")


def summarised(job: JobView, trials: Trials | Mapping[str, ScoredTrials]) -> Summary:
    """The numbers of every run and the comparisons between them."""
    from valkyrie.report.comparing import summarise

    names = run_names(job)
    return summarise([(run, trials[run.id]) for run in job.runs], names=[names[run.id] for run in job.runs])


def summary_table(
    job: JobView,
    trials: Trials | Mapping[str, ScoredTrials],
    summary: Summary,
    ink: Ink = PLAIN,
    now: float = 0.0,
) -> Table:
    """A line for each agent, the highest lower end first; what is still open, what was skipped and what is
    confirmed have a column only where something is, and for the last where something is not.

    On a narrow terminal the score and its interval are the last to go.
    """
    tallies = {run.id: tally(trials[run.id], fraction=run.score.fraction) for run in job.runs}
    some_open = any(found.verdicts["open"] for found in tallies.values())
    some_skipped = any(found.verdicts["skipped"] for found in tallies.values())
    unconfirmed = any(agent.unconfirmed for agent in summary.agents)
    table = Table(
        [
            Column("Agent", shrink=True),
            Column("Passed", "right"),
            Column("Partial", "right", optional=True),
            Column("Failed", "right", optional=True),
            Column("Errors", "right"),
            *([Column("Open", "right", optional=True)] if some_open else []),
            *([Column("Skipped", "right", optional=True)] if some_skipped else []),
            Column("Total", "right", optional=True),
            Column("Score", "right"),
            *([Column("Confirmed", "right")] if unconfirmed else []),
            Column("95 % interval", "right"),
            Column("Cost", "right", optional=True),
            Column("Tokens in/out", "right", optional=True),
            Column("Duration", "right", optional=True),
        ]
    )
    runs = {run.id: run for run in job.runs}
    for agent in by_rank(summary.agents):
        run, found = runs[agent.run_id], tallies[agent.run_id]
        table.rows.append(
            [
                ink.paint(agent.name, "bold"),
                *(_share(found, verdict, ink) for verdict in _VERDICTS),
                *([str(found.verdicts["open"])] if some_open else []),
                *([str(found.verdicts["skipped"])] if some_skipped else []),
                str(found.total),
                _score(run, agent),
                *([_confirmed(run, agent)] if unconfirmed else []),
                _interval(run, agent),
                dollars(run.cost.total) if run.cost and run.cost.reports else NONE,
                _tokens(run.tokens),
                duration(elapsed(run, now)),
            ]
        )
    return table


def _share(found: Tally, verdict: str, ink: Ink) -> str:
    """`9 (75.0 %)` of all trials."""
    count = found.verdicts[verdict]
    text = f"{count} ({100 * count / found.total:.1f} %)" if found.total else "0"
    return ink.paint(text, "red" if verdict == "error" and count else None)


def _score(run: RunView, agent: AgentSummary) -> str:
    """The mean over tasks; where only the benchmark itself can compute a score, that one."""
    if not run.score.fraction:
        return score_cell(run.score)
    return agent_score_cell(agent)


def _confirmed(run: RunView, agent: AgentSummary) -> str:
    """Where only the benchmark itself can compute a score, that one."""
    known = agent.score_confirmed if run.score.fraction else run.score.score_confirmed
    return number(known, fraction=run.score.fraction)


def _interval(run: RunView, agent: AgentSummary) -> str:
    """Of the score beside it: where only the benchmark itself can compute that, of that one."""
    own = agent.scores.infrastructure_excluded.interval
    found = own if agent.fraction else run.score.final_interval
    return NONE if found is None else ends_text(found, fraction=agent.fraction)


def _tokens(used: TokensView | None) -> str:
    return f"{amount(used.input)} / {amount(used.output)}" if used else NONE


def amount(count: int) -> str:
    """`950`, `12.3k`, `4.6M`."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def repeats_table(summary: Summary) -> Table | None:
    """pass@1 and pass@n, and how steady that is; None where there is one trial of each task.

    `compare` has those in between, and pass^k.
    """
    most = max((len(agent.repeats.pass_at) for agent in summary.agents), default=0)
    if most < 2:
        return None
    counts = [1, most]
    table = Table(
        [
            Column("Agent", shrink=True),
            *(Column(f"pass@{k}", "right") for k in counts),
            Column("Flaky tasks", "right"),
            Column("Two trials disagree", "right", optional=True),
        ]
    )
    for agent in summary.agents:
        repeats = agent.repeats
        table.rows.append(
            [
                agent.name,
                *(repeats_cell(repeats.pass_at, repeats.pass_at_intervals, k) for k in counts),
                f"{len(repeats.flaky)} of {repeats.flaky_of}" if repeats.flaky_of else NONE,
                number(repeats.flakiness, fraction=True),
            ]
        )
    return table


def summary_notes(job: JobView, summary: Summary) -> list[str]:
    """What must be said below the table."""
    notes = []
    if not job.ended:
        notes.append(f"The job is {job.state}; these numbers are what is known so far.")
    left_out = sum(
        count
        for agent in summary.agents
        for category, count in agent.errors.items()
        if category != "agent" and not agent.has_range
    )
    if left_out:
        notes.append(f"Score leaves out {plural(left_out, 'trial')} with errors that are not the agent's.")
    if zeroed := sum(agent.errors.get("agent", 0) for agent in summary.agents):
        notes.append(
            f"{plural(zeroed, 'error')} of agents' own doing {'counts' if zeroed == 1 else 'count'} 0."
        )
    names = run_names(job)
    notes += [
        f"{names[run.id]}, spread of scores: {spread_text(run.score.spread)}."
        for run in job.runs
        if run.score.spread is not None
    ]
    return [*_interval_notes(job, summary), *notes, *score_notes(summary.agents)]


def _interval_notes(job: JobView, summary: Summary) -> Iterator[str]:
    """Of the intervals that `_interval` shows."""
    runs = {run.id: run for run in job.runs}
    found: list[tuple[str, tuple[float, float] | None, str | None]] = []
    for agent in summary.agents:
        own, score = agent.scores.infrastructure_excluded, runs[agent.run_id].score
        if agent.fraction:
            found.append((agent.name, own.interval, own.method))
        elif score.final_interval is not None:
            found.append((agent.name, score.final_interval, score.final_interval_method))
    return interval_notes(found)
