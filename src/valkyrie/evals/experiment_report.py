"""report.md of an experiment: the variants' numbers, each against the baseline, and stimulus by stimulus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from valkyrie.evals.figures import Figures, Outcome, figures
from valkyrie.evals.markdown import escaped
from valkyrie.evals.results import TrialResult
from valkyrie.evals.variants import ExperimentResult, Key, VariantResult, by_stimulus
from valkyrie.evals.wording import ends_text, percent, score_text, seconds
from valkyrie.report.comparison_views import Comparison
from valkyrie.report.comparison_words import sentence
from valkyrie.report.formats import dollars, plural, safe
from valkyrie.report.layout import Column, Table

MOST_ROWS = 1_000
_TITLES = (
    "stimuli passed",
    "score",
    "95% interval",
    "pass rate",
    "failed",
    "errors",
    "not run",
    "tokens",
    "cost",
    "time",
)


def report(result: ExperimentResult, *, judged: Sequence[str] = ()) -> str:
    """The whole document; `judged` are lines of an A/B judge's."""
    lines = [f"# Experiment: {escaped(result.name)}", ""]
    lines += _overview(result)
    lines += _compared(result)
    if judged:
        lines += [*judged, ""]
    lines += _stimuli(result)
    return "\n".join(lines).rstrip() + "\n"


def sentences(result: ExperimentResult) -> list[str]:
    """Each variant against the baseline, in one plain sentence."""
    found = [_sentence(one) for one in result.comparisons.get("score", ())]
    by_pass = [f"By passes: {_sentence(one)}" for one in result.comparisons.get("pass", ())]
    return [*found, *by_pass]


def _sentence(one: Comparison) -> str:
    """In the words of specs; whatever variants are called, their names stay as they are."""
    a, b = "\0a", "\0b"
    said = sentence(replace(one, a=a, b=b)).replace("tasks", "stimuli").replace("task", "stimulus")
    return said.replace(a, safe(one.a)).replace(b, safe(one.b))


def _overview(result: ExperimentResult) -> Iterator[str]:
    evals = {one.file for variant in result.variants for one in variant.evals}
    trials = sum(len(variant.trials) for variant in result.variants)
    yield (
        f"{plural(len(result.variants), 'variant')}, {plural(len(evals), 'eval')}, {plural(trials, 'trial')}."
        " An end by the agent's own doing counts as the worst score; other errors count nowhere, and make the"
        " score a range."
    )
    yield ""
    yield f"| variant | {' | '.join(_TITLES)} |"
    yield f"| --- | {' | '.join('--:' for _ in _TITLES)} |"
    yield from map(_row, result.variants)
    yield ""


def variants_table(result: ExperimentResult) -> Table:
    """The same for a terminal."""
    titles = [Column("Variant"), *(Column(title.capitalize(), "right") for title in _TITLES)]
    rows: list[Sequence[str]] = [
        [safe(one.name) + (" (baseline)" if one.is_baseline else ""), *_numbers(one)]
        for one in result.variants
    ]
    return Table(titles, rows)


def _row(variant: VariantResult) -> str:
    name = escaped(variant.name) + (" (baseline)" if variant.is_baseline else "")
    return f"| {' | '.join([name, *_numbers(variant)])} |"


def _numbers(variant: VariantResult) -> list[str]:
    found = figures(variant.evals)
    interval, _ = found.score_interval
    used = found.used
    return [
        f"{found.stimuli[Outcome.PASSED]}/{sum(found.stimuli.values())}",
        _score(found),
        "—" if interval is None else ends_text(interval, found),
        percent(found.pass_rate),
        str(found.trials[Outcome.FAILED]),
        str(found.trials[Outcome.GRADER_ERROR] + found.trials[Outcome.EXECUTION_ERROR]),
        str(found.trials[Outcome.NOT_RUN]),
        f"{used.input_tokens + used.output_tokens:,}",
        "—" if used.total_cost is None else dollars(used.total_cost),
        seconds(sum(trial.duration_ms for trial in variant.trials)),
    ]


def _score(found: Figures) -> str:
    """The score, or the range it is in where trials are ungraded."""
    if found.score_range is None:
        return score_text(found.score, found)
    return f"{percent(found.score_range[0])} to {percent(found.score_range[1])}"


def _compared(result: ExperimentResult) -> Iterator[str]:
    said = sentences(result)
    if not said or result.baseline is None:
        return
    yield f"## Against {escaped(result.baseline.name)}"
    yield ""
    yield from (f"- {escaped(one)}" for one in said)
    yield ""
    yield "Stimuli are paired; several trials of one are averaged first, so repeats do not add breadth."
    yield ""


def _stimuli(result: ExperimentResult) -> Iterator[str]:
    tables = [by_stimulus(variant) for variant in result.variants]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    yield "## Stimulus by stimulus"
    yield ""
    names = " | ".join(escaped(variant.name) for variant in result.variants)
    yield f"| eval | stimulus | {names} |"
    yield f"| --- | --- | {' | '.join('--:' for _ in result.variants)} |"
    for key in keys[:MOST_ROWS]:
        yield _stimulus_row(key, [table.get(key, []) for table in tables])
    if len(keys) > MOST_ROWS:
        yield from ("", f"… and {len(keys) - MOST_ROWS} more in the variants' results.jsonl.")
    yield ""


def _stimulus_row(key: Key, cells: Sequence[Sequence[TrialResult]]) -> str:
    return f"| {escaped(key[0])} | {escaped(key[1])} | {' | '.join(map(_cell, cells))} |"


def _cell(trials: Sequence[TrialResult]) -> str:
    """`80.0% (4/5)`, and how many errors there were."""
    graded = [trial for trial in trials if trial.passed is not None]
    errors = sum(1 for trial in trials if trial.fault)
    told = f", {plural(errors, 'error')}" if errors else ""
    if not graded:
        return f"—{told}"
    scores = [trial.score if trial.score is not None else float(bool(trial.passed)) for trial in graded]
    passes = sum(1 for trial in graded if trial.passed)
    return safe(f"{percent(sum(scores) / len(scores))} ({passes}/{len(graded)}){told}")
