"""eval-results.md: what an eval came to, for people; fits a GitHub job summary.

Text of agents and graders only ever stands in fences longer than any run of backticks it holds.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from benchmark_runner.terminal import safe
from valkyrie.evals.figures import EvalOutcome, Figures, curve, figures, repeats_of, stimulus_outcome
from valkyrie.evals.phrases import (
    agent_end,
    clipped,
    constraints_text,
    counts_text,
    ends_text,
    exits_words,
    failed_graders,
    fault_text,
    full_name,
    grader_label,
    interval_text,
    percent,
    resume_command,
    score_parts,
    score_text,
    score_words,
    seconds,
    trial_name,
    used_text,
    verdict_text,
    verification_words,
    with_interval,
)
from valkyrie.evals.results import Invocation, SpecResult, StimulusResult, TrialResult
from valkyrie.report.formats import INGESTED_NOTE, has_range, plural

MOST_BYTES = 900_000
"""A job summary on GitHub takes 1 MiB."""
MOST_ROWS = 1_000
_SPECIAL = re.compile(r"([\\`*_\[\]<>#!|~&$])")
_BACKTICKS = re.compile("`+")
_MARKS = {
    EvalOutcome.PASSED: "✔ passed",
    EvalOutcome.FAILED: "✘ failed",
    EvalOutcome.GRADER_ERROR: "! grader error",
    EvalOutcome.EXECUTION_ERROR: "! execution error",
    EvalOutcome.NOT_RUN: "! not run",
    EvalOutcome.NOT_GRADED: "– not graded",
    EvalOutcome.SKIPPED: "– skipped",
}


def markdown(invocation: Invocation) -> str:
    """The whole document; details that do not fit are counted, the tables always come."""
    lines = [f"# Eval results{f': {escaped(invocation.name)}' if invocation.name else ''}", ""]
    each = [(result, figures([result])) for result in invocation.evals]
    lines += _summary(invocation, each)
    for result, found in each:
        lines += _eval_section(result, found)
    lines += _compared(invocation)
    lines += _within(_failures(invocation), MOST_BYTES - _size(lines) - 4_000)
    lines += _reproduce(invocation)
    return "\n".join(lines).rstrip() + "\n"


def escaped(text: str) -> str:
    """A name inside a line or a table: what Markdown or HTML would read is not read."""
    return (
        _SPECIAL.sub(r"\\\1", safe(text))
        .replace("\\<", "&lt;")
        .replace("\\>", "&gt;")
        .replace("\\&", "&amp;")
    )


def fenced(text: str) -> list[str]:
    """Text nothing in which can end its block."""
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    return [f"{fence}text", text, fence]


def _summary(invocation: Invocation, each: Sequence[tuple[SpecResult, Figures]]) -> Iterator[str]:
    found = each[0][1] if len(each) == 1 else figures(invocation.evals)
    yield f"**{'Passed' if invocation.exit_code == 0 else 'Not passed'}** · {counts_text(found)} (trials)"
    yield ""
    runs = any(result.score is not None for result, _ in each)
    agent = (" agent |", " --- |") if runs else ("", "")
    numbered = ("stimuli", "score", "95% interval", "pass rate", "errors", "not run")
    yield f"| eval |{agent[0]} model | verdict | {' | '.join(numbered)} |"
    yield f"| --- |{agent[1]} --- | --- |{' --: |' * len(numbered)}"
    for result, numbers in each:
        yield _summary_row(result, numbers, agent=runs)
    yield ""
    if used := used_text(found.used):
        yield from (f"Used: {escaped(used)}.", "")
    if any(result.ingested for result, _ in each):
        yield from (f"> {INGESTED_NOTE}.", "")
    for notice in invocation.notices:
        yield from (f"> {escaped(notice)}", "")


def _compared(invocation: Invocation) -> Iterator[str]:
    """Yield who did better, how sure that is; each pair of runs in a sentence."""
    sentences = invocation.sentences() if invocation.sentences else ()
    if sentences:
        yield from ("## Compared", "")
        yield from (line for sentence in sentences for line in (escaped(sentence), ""))


def _summary_row(result: SpecResult, found: Figures, *, agent: bool) -> str:
    interval, _ = found.score_interval
    cells = [
        escaped(result.name + ("" if result.variant == "main" else f" ({result.variant})"))
        + (" (ingested)" if result.ingested else ""),
        *([escaped(result.executor)] if agent else []),
        escaped(result.model or "—"),
        f"{_eval_mark(result)} {escaped(verdict_text(result))}",
        f"{found.stimuli[EvalOutcome.PASSED]}/{len(result.stimuli)}",
        _score_cell(result, found),
        "—" if interval is None else ends_text(interval, found),
        percent(found.pass_rate),
        str(found.trials[EvalOutcome.GRADER_ERROR] + found.trials[EvalOutcome.EXECUTION_ERROR]),
        str(found.trials[EvalOutcome.NOT_RUN]),
    ]
    return f"| {' | '.join(cells)} |"


def _score_cell(result: SpecResult, found: Figures) -> str:
    """The score, or the range it is in where trials are ungraded."""
    score = result.score
    if score is not None and has_range(score):
        return f"{percent(score.score_low)} to {percent(score.score_high)}"
    if found.score_range is not None:
        return f"{percent(found.score_range[0])} to {percent(found.score_range[1])}"
    return score_text(found.score, found)


def _eval_mark(result: SpecResult) -> str:
    if result.skipped is not None or (not result.graded and result.ok):
        return "–"
    return "✔" if result.ok else "!" if result.passed else "✘"


def _eval_section(result: SpecResult, found: Figures) -> Iterator[str]:
    yield f"## {escaped(full_name(result))}"
    yield ""
    about = [f"`{_code(result.file)}`"] if result.file else []
    about += [f"executor {escaped(result.executor)}"] if result.executor else []
    about += [f"threshold {result.threshold:g}"] if result.threshold is not None else []
    about += [f"run `{_code(result.run_id)}`"] if result.run_id else []
    if about:
        yield from (" · ".join(about), "")
    if result.skipped is not None:
        yield from (f"{escaped(verdict_text(result))}.", "")
        return
    several = any(stimulus.planned > 1 for stimulus in result.stimuli)
    yield from _stimuli_table(result.stimuli, found, several=several)
    for words in score_words(result):
        yield from (f"> {escaped(words)}", "")
    if exits := exits_words(result):
        yield from (f"> {exits}", "")  # numbers, and an id of the store
    yield from _statistics(result, found, several=several)


def _stimuli_table(stimuli: Sequence[StimulusResult], found: Figures, *, several: bool) -> Iterator[str]:
    more = " pass@k | pass^k | flaky |" if several else ""
    yield f"| stimulus | outcome | score | passed | time |{more}"
    yield "| --- | --- | --: | --: | --: |" + (" --: | --: | --: |" if several else "")
    for stimulus in stimuli[:MOST_ROWS]:
        cells = [
            escaped(stimulus.name),
            _MARKS[stimulus_outcome(stimulus)],
            score_text(stimulus.score, found),
            f"{stimulus.passes}/{len(stimulus.graded)}",
            seconds(sum(trial.duration_ms for trial in stimulus.trials)),
        ]
        if several:
            cells += _repeats_cells(stimulus)
        yield f"| {' | '.join(cells)} |"
    if len(stimuli) > MOST_ROWS:
        yield from ("", f"… and {len(stimuli) - MOST_ROWS} more in results.jsonl.")
    yield ""


def _repeats_cells(stimulus: StimulusResult) -> list[str]:
    found = repeats_of(stimulus)
    if found is None:
        return ["—", "—", "—"]
    k = found.trials
    flaky = f"⚠ {percent(found.flakiness)}" if found.flaky else ""
    return [f"{percent(found.pass_at(k))} (k={k})", f"{percent(found.pass_all(k))} (k={k})", flaky]


def _statistics(result: SpecResult, found: Figures, *, several: bool) -> Iterator[str]:
    if not found.counted:
        return
    score = "; ".join(score_parts(found)).removeprefix("score ")
    rate = f"pass rate {percent(found.pass_rate)} ({interval_text(*found.pass_interval)})"
    yield (
        f"Score {score}; {rate}. Trials of one stimulus are averaged first. An end by the agent's own doing "
        "counts as the worst score; other errors count nowhere."
    )
    yield ""
    if held := constraints_text(result.trials):
        yield from (f"{escaped(held.capitalize())}. Constraints are in no score.", "")
    points = curve(result.stimuli)
    if not several or len(points) < 2:
        return
    yield "| k | pass@k (95% interval) | pass^k (95% interval) |"
    yield "| --: | --: | --: |"
    for point in points[:MOST_ROWS]:
        at = with_interval(point.pass_at, point.pass_at_interval)
        yield f"| {point.k} | {at} | {with_interval(point.pass_all, point.pass_all_interval)} |"
    yield ""


def _failures(invocation: Invocation) -> Iterator[list[str]]:
    """First wrong answers, then errors; each block stands or falls whole."""
    every = [
        (_heading(result, stimulus, trial), trial)
        for result in invocation.evals
        for stimulus in result.stimuli
        for trial in stimulus.trials
    ]
    failed = [(heading, trial) for heading, trial in every if trial.fault is None]
    wrong = [(heading, trial) for heading, trial in failed if failed_graders(trial)]
    told = [(heading, trial) for heading, trial in failed if trial.reason and not failed_graders(trial)]
    if told:
        yield ["## Failed trials", ""]
        yield from ([heading, "", *_reason(trial)] for heading, trial in told)
    if wrong:
        yield ["## Failed graders", ""]
        yield from ([heading, "", *_wrong(trial)] for heading, trial in wrong)
    noted = [(heading, words) for heading, trial in every if (words := verification_words(trial))]
    if noted:
        yield ["## Verification", "", "How these scores came about is for their reader to know.", ""]
        yield from ([heading, "", *(f"- {escaped(one)}" for one in words), ""] for heading, words in noted)
    broken = [(heading, trial) for heading, trial in every if trial.fault is not None]
    by_agent = [(heading, trial) for heading, trial in broken if trial.fault and trial.fault.by_agent]
    others = [(heading, trial) for heading, trial in broken if trial.fault and not trial.fault.by_agent]
    if by_agent:
        yield ["## Ended by the agent", "", "No verdict, by the agent's own doing: the worst score.", ""]
        yield from ([heading, "", *fenced(fault_text(trial)), ""] for heading, trial in by_agent)
    if others:
        yield ["## Errors", "", "These trials have no verdict. None of them counts as a wrong answer.", ""]
        yield from ([heading, "", *fenced(fault_text(trial)), ""] for heading, trial in others)


def _heading(result: SpecResult, stimulus: StimulusResult, trial: TrialResult) -> str:
    parts = [full_name(result), stimulus.name, trial_name(stimulus, trial)]
    return f"### {' › '.join(escaped(part) for part in parts if part)}"


def _reason(trial: TrialResult) -> list[str]:
    return [*_end(trial), *fenced(clipped(trial.reason or "", characters=2000, lines=40)), ""]


def _end(trial: TrialResult) -> list[str]:
    return [f"Agent's end: {escaped(ended)}.", ""] if (ended := agent_end(trial)) else []


def _wrong(trial: TrialResult) -> Iterator[str]:
    yield from _end(trial)
    for grader in failed_graders(trial):
        yield from (f"{escaped(grader_label(grader))}, score {grader.score:.2f}:", "")
        yield from fenced(clipped(grader.evidence, characters=2000, lines=40) or "no evidence given")
        yield ""


def _within(blocks: Iterator[list[str]], most: int) -> Iterator[str]:
    """Blocks as long as there is room, then how many more there were."""
    size = left = 0
    for block in blocks:
        size += _size(block)
        if size > most:
            left += 1
        else:
            yield from block
    if left:
        yield from (f"… and {plural(left, 'more block')}: results.jsonl has all of it.", "")


def _size(lines: Sequence[str]) -> int:
    return sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)


def _reproduce(invocation: Invocation) -> Iterator[str]:
    runs = any(result.score is not None for result in invocation.evals)
    words = invocation.command or ([] if runs else _command(invocation))
    commands = [shlex.join(one) for one in (*([words] if words else []), *invocation.again)]
    if not commands:
        return
    if resume := resume_command(invocation):
        commands.append(resume)
    yield from ("## Run it again", "", *fenced(safe("\n".join(commands), keep_lines=True)))


def _command(invocation: Invocation) -> list[str]:
    """Return what runs evals again of which only results are known; a variant is nothing without its
    experiment."""
    if any(result.variant != "main" for result in invocation.evals):
        return []
    files = dict.fromkeys(result.file for result in invocation.evals if result.file)
    models = dict.fromkeys(result.model for result in invocation.evals if result.model)
    runs = {stimulus.planned for result in invocation.evals for stimulus in result.stimuli}
    words = ["valk", "eval", *(word for file in files for word in ("-e", file))]
    words += ["--model", ",".join(models)] if models else []
    return words + (["--runs", str(runs.pop())] if len(runs) == 1 else [])


def _code(text: str) -> str:
    return safe(text).replace("`", "'")
