"""Compared agents, and the agents of a job, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from benchmark_runner.terminal import PLAIN, Column, Table, TerminalStyle, safe
from valkyrie.compare.job_sides import Tally, Trials, run_names, tally
from valkyrie.compare.pairs import ScoredTrials
from valkyrie.compare.summary import summarise
from valkyrie.compare.views import AgentSummary, Estimate, Summary
from valkyrie.report.formats import (
    DAGGER,
    INGESTED_NOTE,
    NONE,
    dollars,
    duration,
    elapsed,
    ends_text,
    errors_text,
    exits_text,
    ids_preview,
    number,
    plural,
    range_cell,
    range_text,
    score_cell,
    second_tries_text,
    short_id,
    spread_text,
    tampering_text,
)

if TYPE_CHECKING:
    from valkyrie.views import RunView, TokensView
    from valkyrie.views.jobs import JobView


_NAMED = 5
"""Tasks named in a note."""


def tables(summary: Summary, ink: TerminalStyle = PLAIN, *, denominators: bool = True) -> Iterator[Table]:
    """Scores; where they differ, all three denominators; where tasks were repeated, pass@k and flakiness."""
    yield score_table(summary, ink)
    if denominators and any(_denominators_differ(agent) for agent in summary.agents):
        yield _denominator_table(summary.agents, ink)
    if any(agent.repeats.flaky_of for agent in summary.agents):
        yield _repeats_table(summary.agents, ink)


def score_table(summary: Summary, ink: TerminalStyle = PLAIN) -> Table:
    """One line per agent, the highest lower end first; what is confirmed only where something is not."""
    unconfirmed = any(agent.unconfirmed for agent in summary.agents)
    table = Table(
        [
            Column("Agent", shrink=True),
            Column("Pass rate" if summary.metric == "pass" else "Score", "right"),
            *([Column("Confirmed", "right")] if unconfirmed else []),
            Column("95 % interval", "right"),
            Column("Passed", "right"),
            Column("Graded", "right"),
            Column("Errors", "right"),
        ]
    )
    for agent in by_rank(summary.agents):
        leading, errors = agent.scores.infrastructure_excluded, sum(agent.errors.values())
        table.rows.append(
            [
                ink.paint(agent.name, "bold"),
                agent_score_cell(agent),
                *([number(agent.score_confirmed, fraction=agent.fraction)] if unconfirmed else []),
                _range(leading, fraction=agent.fraction),
                NONE if agent.passed is None else f"{agent.passed}/{agent.graded}",
                f"{agent.graded}/{agent.planned}",
                ink.paint(str(errors), "red" if errors else None),
            ]
        )
    return table


def by_rank(agents: Sequence[AgentSummary]) -> list[AgentSummary]:
    """The best first, those on one benchmark together."""
    places = list(dict.fromkeys((agent.benchmark, agent.dataset) for agent in agents))
    return sorted(agents, key=lambda agent: (places.index((agent.benchmark, agent.dataset)), agent.rank))


def agent_score_cell(agent: AgentSummary) -> str:
    """The mean over tasks, or the range it is in; a dagger when some of it is open to tampering."""
    mark = DAGGER if agent.open_to_tampering else ""
    if agent.has_range:
        return range_cell(agent.score_low, agent.score_high) + mark
    return number(agent.scores.infrastructure_excluded.mean, fraction=agent.fraction) + mark


def score_notes(agents: Sequence[AgentSummary]) -> Iterator[str]:
    """Yield what must be said of scores: what they depend on, what is unconfirmed, what is open to
    tampering."""
    for agent in agents:
        if agent.has_range:
            said = range_text(agent.score_low, agent.score_high, agent.ungraded)
            yield f"{agent.name}: {said}; it is ranked by the lower end."
        if agent.unconfirmed:
            passes = plural(agent.unconfirmed, "pass", "passes")
            yield f"{agent.name}: {passes} only seen in the sandbox the agent left (unconfirmed)."
        if said := exits_text(agent.exit_codes, agent.graded + sum(agent.errors.values())):
            yield f"{agent.name}: {said}; `valk run logs {short_id(agent.run_id)}`."
        if agent.second_tries:
            yield f"{agent.name}: {second_tries_text(agent.second_tries)}."
        if agent.open_to_tampering:
            tasks = agent.planned == len(agent.tasks)
            said = tampering_text(agent.open_to_tampering, agent.planned, tasks=tasks)
            yield f"{DAGGER} {agent.name}: {said}."


def _range(found: Estimate, *, fraction: bool) -> str:
    if found.interval is None:
        return NONE
    return ends_text(found.interval, fraction=fraction)


def _denominators_differ(agent: AgentSummary) -> bool:
    scores = agent.scores
    return len({found.trials for found in (scores.all_trials, scores.graded_only)}) > 1


def _denominator_table(agents: Sequence[AgentSummary], ink: TerminalStyle) -> Table:
    titles = ("All trials", "Graded only", "Infrastructure excluded")
    table = Table([Column("Agent", shrink=True), *(Column(title, "right") for title in titles)])
    for agent in agents:
        scores = agent.scores
        three = (scores.all_trials, scores.graded_only, scores.infrastructure_excluded)
        cells = (
            f"{number(found.mean, fraction=agent.fraction)} of {plural(found.trials, 'trial')}"
            for found in three
        )
        table.rows.append([ink.paint(agent.name, "bold"), *cells])
    return table


def _repeats_table(agents: Sequence[AgentSummary], ink: TerminalStyle) -> Table:
    most = max(len(agent.repeats.pass_at) for agent in agents)
    shown = _told(most)
    table = Table(
        [
            Column("Agent", shrink=True),
            *(Column(f"pass@{k}", "right") for k in shown),
            *(Column(f"pass^{k}", "right") for k in shown if k > 1),
            Column("Flaky tasks", "right"),
            Column("Two trials disagree", "right", optional=True),
        ]
    )
    for agent in agents:
        found = agent.repeats
        table.rows.append(
            [
                ink.paint(agent.name, "bold"),
                *(repeats_cell(found.pass_at, found.pass_at_intervals, k) for k in shown),
                *(repeats_cell(found.pass_all, found.pass_all_intervals, k) for k in shown if k > 1),
                f"{len(found.flaky)}/{found.flaky_of}" if found.flaky_of else NONE,
                number(found.flakiness, fraction=True),
            ]
        )
    return table


def _told(most: int) -> list[int]:
    """1, 2, 4, 8, … and the last."""
    doubled = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [*doubled, most] if most else []


def repeats_cell(values: Sequence[float], intervals: Sequence[tuple[float, float] | None], k: int) -> str:
    """`83.3 % (62.1–95.0)`: pass@k or pass^k with its 95 % interval."""
    if k > len(values):
        return NONE
    said = number(values[k - 1], fraction=True)
    interval = intervals[k - 1] if k <= len(intervals) else None
    return said if interval is None else f"{said} ({ends_text(interval, fraction=True)})"


def notes(summary: Summary) -> Iterator[str]:
    """Yield what must be said below the tables: methods, errors, what is left out, which tasks are flaky."""
    yield from interval_notes(
        (agent.name, found.interval, found.method)
        for agent in summary.agents
        for found in (agent.scores.infrastructure_excluded,)
    )
    yield from score_notes(summary.agents)
    if named := [agent.name for agent in summary.agents if agent.ingested]:
        yield f"{', '.join(named)}: {INGESTED_NOTE.removeprefix('ingested: ')}."
    for agent in summary.agents:
        yield from _agent_notes(agent)
    tests = dict.fromkeys(one.test for one in summary.comparisons if one.test)
    ranges = dict.fromkeys(one.interval_method for one in summary.comparisons if one.interval_method)
    if tests:
        yield f"Differences: p-values by {' and '.join(tests)}, intervals by {' and '.join(ranges)}."


def interval_notes(
    found: Iterable[tuple[str, tuple[float, float] | None, str | None]],
) -> Iterator[str]:
    """Say by which method a table's intervals were found, once for all of them, and which rows have none.

    `found` has each row's name, its interval, and the method, or why there is no interval.
    """
    methods: dict[str, list[str]] = {}
    for name, interval, method in found:
        if method is not None:
            methods.setdefault(method if interval else f"none, {method}", []).append(name)
    if len(methods) == 1:
        yield f"Intervals: {next(iter(methods))}."
    elif methods:
        told = (f"{method} ({', '.join(names)})" for method, names in methods.items())
        yield f"Intervals: {'; '.join(told)}."


def _agent_notes(agent: AgentSummary) -> Iterator[str]:
    found = agent.repeats
    if not agent.ended:
        yield f"{agent.name} goes on: its numbers are those so far."
    if agent.errors or agent.not_run:
        waiting = f", {agent.not_run} not run" if agent.not_run else ""
        yield f"{agent.name}: {errors_text(agent.errors)}{waiting}."
    if found.flaky:
        yield f"{agent.name} is flaky on {ids_preview(found.flaky[:_NAMED], len(found.flaky))}."
    if found.fewest:
        named = ids_preview(found.fewest[:_NAMED], len(found.fewest))
        yield f"{agent.name}: pass@k ends at {len(found.pass_at)}, as {named} have no more trials that count."
    if found.excluded and found.flaky_of:
        named = ids_preview(found.excluded[:_NAMED], len(found.excluded))
        yield f"{agent.name}: pass@k is without {named}."


def task_tables(summary: Summary, ink: TerminalStyle = PLAIN) -> Iterator[Table]:
    """Yield who did better where, one table for each benchmark."""
    places: dict[tuple[str, str], list[AgentSummary]] = {}
    for agent in summary.agents:
        places.setdefault((agent.benchmark, agent.dataset), []).append(agent)
    for agents in places.values():
        yield _task_table(agents, ink)


def _task_table(agents: Sequence[AgentSummary], ink: TerminalStyle) -> Table:
    """Two agents: what the first won most clearly comes first, what it lost most clearly last."""
    tasks = list(dict.fromkeys(task for agent in agents for task in agent.tasks))
    if len(agents) == 2:
        tasks.sort(key=lambda task: -_lead(agents, task))
    table = Table(
        [Column("Task", shrink=True), *(Column(agent.name, "right") for agent in agents), Column("Better")]
    )
    for task in tasks:
        best = _best(agents, task)
        cells = (_task_cell(agent, task, ink, won=agent.name == best) for agent in agents)
        table.rows.append([safe(task), *cells, best])
    return table


def _lead(agents: Sequence[AgentSummary], task: str) -> float:
    first, second = (_mean(agent, task) for agent in agents)
    return 0.0 if first is None or second is None else round(first - second, 12)


def _mean(agent: AgentSummary, task: str) -> float | None:
    return agent.tasks[task].mean if task in agent.tasks else None


def _best(agents: Sequence[AgentSummary], task: str) -> str:
    """The one that did better than all others; a dash for a tie, or where somebody has no result."""
    means = {agent.name: _mean(agent, task) for agent in agents}
    known = {name: round(mean, 12) for name, mean in means.items() if mean is not None}
    if len(known) < len(means) or len(known) < 2:
        return NONE
    ahead = [name for name, mean in known.items() if mean == max(known.values())]
    return ahead[0] if len(ahead) == 1 else NONE


def _task_cell(agent: AgentSummary, task: str, ink: TerminalStyle, *, won: bool) -> str:
    if task not in agent.tasks:
        return NONE
    result = agent.tasks[task]
    if result.mean is None:
        return ink.paint(result.why or NONE, "red" if result.why not in (None, "not run") else "dim")
    text = number(result.mean, fraction=agent.fraction)
    many = f" ({result.passed}/{result.trials})" if result.trials > 1 and agent.passed is not None else ""
    return ink.paint(text + many, "green" if won else None)


# The tables of a job's summary: who passed what, how sure, how steadily, at which price.

_VERDICTS = ("passed", "partial", "failed", "error")


def summarised(job: JobView, trials: Trials | Mapping[str, ScoredTrials]) -> Summary:
    """The numbers of every run and the comparisons between them."""
    names = run_names(job)
    return summarise([(run, trials[run.id]) for run in job.runs], names=[names[run.id] for run in job.runs])


def summary_table(
    job: JobView,
    trials: Trials | Mapping[str, ScoredTrials],
    summary: Summary,
    ink: TerminalStyle = PLAIN,
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


def _share(found: Tally, verdict: str, ink: TerminalStyle) -> str:
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
    """Return where only the benchmark itself can compute a score, that one."""
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
    """Return what must be said below the table."""
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
