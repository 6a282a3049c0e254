"""A comparison of two result folders as people read it."""

from __future__ import annotations

from collections.abc import Iterator

from valkyrie.evals.comparing.numbers import Average
from valkyrie.evals.comparing.record import FolderComparison
from valkyrie.nouns import Json
from valkyrie.report.comparison_words import points, probability
from valkyrie.report.formats import NONE, ids_preview, no_command, plural, safe
from valkyrie.report.layout import PLAIN, Column, Ink, Table

_LABELS = {
    "totalTokens": "Tokens",
    "inputTokens": "Tokens in",
    "outputTokens": "Tokens out",
    "turnCount": "Turns",
    "toolCallCount": "Tool calls",
    "wallTimeMs": "Wall time (ms)",
}
_NAMED = 5


def delta_table(compared: FolderComparison, ink: Ink = PLAIN) -> Table | None:
    """What the treatment used more, or less; None where nothing was measured."""
    if not compared.numbers.deltas:
        return None
    table = Table(
        [
            Column(f"{safe(compared.treatment.name)} minus {safe(compared.baseline.name)}", shrink=True),
            Column("Mean", "right"),
            Column("95 % interval", "right"),
            Column("Spread", "right"),
            Column(""),
        ]
    )
    for name, found in compared.numbers.deltas.items():
        table.rows.append(
            [
                _LABELS[name],
                ink.paint(amount(found.mean), "bold" if found.sure else None),
                interval(found),
                amount(found.deviation).lstrip("+"),
                ink.paint("varies a lot", "dim") if found.varies else "",
            ]
        )
    return table


def judge_sentence(compared: FolderComparison) -> str | None:
    """Whom judges prefer, by how much, how sure; None where nobody judged."""
    numbers = compared.numbers
    if not numbers.judged or numbers.score is None:
        return None
    score = numbers.score
    treatment, baseline = safe(compared.treatment.name), safe(compared.baseline.name)
    ahead, behind = (treatment, baseline) if score.mean > 0 else (baseline, treatment)
    by = f"by {abs(score.mean):.2f} (of 1)"
    if score.sure:
        said = f"The judge prefers {ahead} to {behind} {by}"
    elif abs(score.mean) < 1e-9:
        said = f"The judge can't tell {treatment} and {baseline} apart: they are level"
    else:
        said = f"The judge can't tell {treatment} and {baseline} apart: {ahead} is ahead {by}"
    sure = "no interval" if score.low is None else f"95 % interval {_range(score)}"
    ends = f"{sure}, {probability(score.p_value)}"
    orders = f"; the two orders disagreed on {numbers.disagreements}" if numbers.disagreements else ""
    return (
        f"{said}, {ends}: {plural(numbers.wins, 'win')}, {plural(numbers.ties, 'tie')}, "
        f"{numbers.losses} {'loss' if numbers.losses == 1 else 'losses'} of {treatment} "
        f"in {plural(len(numbers.counted), 'pair')}{orders}."
    )


def judge_json(compared: FolderComparison) -> Json | None:
    """Return the same as data; None where nobody judged."""
    numbers = compared.numbers
    if not numbers.judged or numbers.score is None:
        return None
    score = numbers.score
    return {
        "prefers": ("treatment" if score.mean > 0 else "baseline") if score.sure else None,
        "meanScore": score.mean,
        "ciLow": score.low,
        "ciHigh": score.high,
        "pValue": score.p_value,
    }


def remarks(compared: FolderComparison) -> Iterator[str]:
    """What was left out, the verdicts' test, what judges cost."""
    numbers, matched = compared.numbers, compared.matched
    found = numbers.mcnemar()
    if found["baselineOnly"] or found["treatmentOnly"] or found["concordant"]:
        repeated = len({one.pair.task for one in numbers.counted}) < len(numbers.counted)
        doubt = " Trials of one stimulus are not independent: trust the sentence above more." * repeated
        yield (
            f"Verdicts, pair by pair: {found['treatmentOnly']} only {safe(compared.treatment.name)} passed, "
            f"{found['baselineOnly']} only {safe(compared.baseline.name)}, {found['concordant']} alike; "
            f"mid-p McNemar p = {found['pValue']:.3g}.{doubt}"
        )
    if errored := len(numbers.outcomes) - len(numbers.counted):
        yield f"{plural(errored, 'pair')} with an error: in no number above."
    for side, names in (
        (compared.baseline.name, matched.only_baseline),
        (compared.treatment.name, matched.only_treatment),
    ):
        if names:
            yield f"Only in {safe(side)}: {ids_preview([safe(name) for name in names[:_NAMED]], len(names))}."
    if compared.usage:
        cost = compared.usage.get("cost")
        money = "" if cost is None else f", ${cost:.4f}"
        yield (
            f"Judge: {compared.usage['inputTokens']:,} tokens in, {compared.usage['outputTokens']:,} out, "
            f"{plural(compared.usage['requests'], 'request')}{money}."
        )


def pair_lines(compared: FolderComparison) -> Iterator[str]:
    """Every pair with its evidence."""
    for one in compared.numbers.outcomes:
        mark = "error" if one.errored else f"{one.winner} {one.magnitude}" if one.score else "tie"
        yield f"{safe(one.pair.task)} #{one.pair.index}: {mark} ({one.score:+.2f})"
        for line in no_command(safe(one.evidence, keep_lines=True)).splitlines():
            yield f"    {line}"


def amount(value: float) -> str:
    """A difference of counts, with its sign."""
    text = f"{value:+,.1f}" if abs(value) < 100 else f"{value:+,.0f}"
    return text.replace("-", "−")


def interval(found: Average) -> str:
    """`−3.0 to +4.5`."""
    if found.low is None or found.high is None:
        return NONE
    return f"{amount(found.low)} to {amount(found.high)}"


def _range(score: Average) -> str:
    low, high = score.low or 0.0, score.high or 0.0
    if score.mean < 0:
        low, high = -high, -low
    return f"{low:.2f} to {high:.2f}".replace("-", "−")


def judge_failures(compared: FolderComparison, least: float) -> list[str]:
    """Why judges shut a gate: by a one-sided test they prefer the baseline, by at least so many points."""
    score = compared.numbers.score
    if not compared.numbers.judged or score is None or not score.surely_below:
        return []
    if -score.mean * 100 < least - 1e-9:
        return []
    baseline, treatment = safe(compared.baseline.name), safe(compared.treatment.name)
    return [
        f"the judge prefers {baseline} to {treatment} by {points(-score.mean, fraction=True)} points of 100 "
        f"(one-sided {probability(score.p_value / 2)})."
    ]
