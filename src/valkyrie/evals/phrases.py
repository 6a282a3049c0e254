"""What reports say about trials, graders and verdicts, in the same words everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmark_runner.terminal import safe
from valkyrie.evals.figures import EvalOutcome, Figures, Used, repeats_of
from valkyrie.evals.results import Invocation, SpecResult, StimulusResult, TrialResult
from valkyrie.grade.protocol import GraderResult
from valkyrie.report.formats import (
    OPEN,
    confirmed_text,
    dollars,
    exits_text,
    has_range,
    plural,
    range_text,
    short_id,
    tampering_text,
)
from valkyrie.report.tables import system_changes

SKIPPED = "Skipped"


def percent(share: float | None) -> str:
    """`80.0%`; a dash where there is no number."""
    return "—" if share is None else f"{share * 100:.1f}%"


def seconds(milliseconds: float) -> str:
    """`8.3s`; `12ms` for what takes next to no time, and minutes from the first on: `2m05s`."""
    if 0 < milliseconds < 50:
        return f"{max(1, round(milliseconds))}ms"
    if milliseconds < 59_950:
        return f"{max(0.0, milliseconds) / 1000:.1f}s"
    whole = round(milliseconds / 1000)
    hours, rest = divmod(whole, 3600)
    return f"{hours}h{rest // 60:02d}m" if hours else f"{rest // 60}m{rest % 60:02d}s"


def full_name(result: SpecResult) -> str:
    """`my-eval [gpt-5.5]`, with its variant where it is not the only one; of runs with the agent."""
    variant = "" if result.variant == "main" else f" ({result.variant})"
    ingested = " (ingested)" if result.ingested else ""
    who = result.model or ""
    if result.score is not None:  # a run of the store: its agent is what is tested
        who = f"{result.executor}:{result.model}" if result.model else result.executor
    return f"{result.name}{variant}" + (f" [{who}]" if who else "") + ingested


def clipped(text: str, *, characters: int, lines: int) -> str:
    """Text from outside, harmless and short; says so where it was cut."""
    tidy = safe(text[: characters * 4], keep_lines=True).strip("\n")
    kept = "\n".join(tidy[:characters].split("\n")[:lines]).rstrip()
    lost = len(tidy) - len(kept) if len(text) <= characters * 4 else len(text) - len(kept)
    return kept if lost <= 0 or not tidy[len(kept) :].strip() else f"{kept} … (cut)"


def trial_name(stimulus: StimulusResult, trial: TrialResult) -> str:
    """`trial 3`, as people count; nothing where there is only one."""
    return f"trial {trial.index + 1}" if stimulus.planned > 1 or trial.index else ""


def score_words(result: SpecResult) -> list[str]:
    """Return what a reader of a run's score must know: its range, what is confirmed, what is open to
    tampering."""
    score = result.score
    if score is None:
        return []
    words = [range_text(score.score_low, score.score_high, score.ungraded)] if has_range(score) else []
    if score.unconfirmed:
        words.append(f"score_confirmed {confirmed_text(score)}")
    if score.open_to_tampering:
        words.append(tampering_text(score.open_to_tampering, score.graded, tasks=False))
    return words


def exits_words(result: SpecResult) -> str:
    """Return how many agents ended by themselves with an exit code but 0, and where a run's logs are; or
    nothing."""
    trials = result.trials
    codes = Counter(str(one.exit_code) for one in trials if one.exit_code and one.exit_reason is None)
    said = exits_text(codes, len(trials))
    stored = said and result.score is not None and result.run_id
    return f"{said}; `valk run logs {short_id(result.run_id or '')}`" if stored else said


def agent_end(trial: TrialResult) -> str:
    """`exit code 127`, or what ended the agent from outside; empty where it ended with 0."""
    return trial.exit_reason or (f"exit code {trial.exit_code}" if trial.exit_code else "")


def verification_words(trial: TrialResult) -> list[str]:
    """Return what a reader of one trial's score must know; nothing where nothing is odd."""
    found = trial.verification
    if found is None:
        return []
    words = [f"counted as 0: {found.category or 'agent'}/{found.cause}"] if found.cause else []
    if found.confirmed is False and (trial.score or 0.0) > (found.score_confirmed or 0.0):
        words.append("unconfirmed: only seen in the sandbox the agent left")
    if found.open_to_tampering:
        words.append(OPEN)
    if changed := system_changes(found.evidence):
        words.append(f"{plural(changed, 'system file')} changed by the agent")
    return words


def failed_graders(trial: TrialResult) -> list[GraderResult]:
    """Those that said no; errors and skipped ones are none of them."""
    return [grader for grader in trial.graders if grader.status == "ok" and not grader.passed]


def grader_label(grader: GraderResult) -> str:
    """`names-the-city (output-matches)`; the type alone where it is the name too."""
    return grader.name if grader.name == grader.type else f"{grader.name} ({grader.type})"


def fault_text(trial: TrialResult) -> str:
    """`execution error (agent_install_failed): …`, or nothing."""
    if trial.fault is None:
        return ""
    cause = "" if trial.fault.cause == "internal" else f" ({safe(trial.fault.cause)})"
    return f"{trial.fault.kind} error{cause}: {clipped(trial.fault.message, characters=2000, lines=8)}"


def constraints_text(trials: Sequence[TrialResult]) -> str:
    """`constraints: 2 of 3 held; broken: max_turns (7 turns, at most 5)`; nothing where there are none."""
    every = [one for trial in trials for one in trial.constraints]
    if not every:
        return ""
    broken = list({one.name: one for one in every if not one.held}.values())
    only = len(trials) == 1
    named = [
        f"{one.name} ({clipped(one.evidence, characters=200, lines=1)})" if only else one.name
        for one in broken
    ]
    said = f"constraints: {sum(one.held for one in every)} of {len(every)} held"
    return f"{said}; broken: {', '.join(named)}" if named else said


def repeats_parts(stimulus: StimulusResult) -> list[str]:
    """`pass@5: 100.0%`, `pass^5: 0.0%`, `pass rate: 4/5 (80.0%)`; nothing where nothing was graded."""
    found = repeats_of(stimulus)
    if found is None:
        return []
    k = found.trials
    return [
        f"pass@{k}: {percent(found.pass_at(k))}",
        f"pass^{k}: {percent(found.pass_all(k))}",
        f"pass rate: {found.passes}/{k} ({percent(found.rate)})",
    ]


def flaky_text(stimulus: StimulusResult) -> str:
    """`flaky (two trials disagree: 40.0%)`, or nothing."""
    found = repeats_of(stimulus)
    return f"flaky (two trials disagree: {percent(found.flakiness)})" if found and found.flaky else ""


def verdict_text(result: SpecResult) -> str:
    """Return why an eval passed or not; what went wrong without being a wrong answer is told apart."""
    if result.skipped is not None:
        return SKIPPED if result.skipped in ("", SKIPPED) else f"{SKIPPED} ({safe(result.skipped)})"
    wrong = [*_faults_parts(result.faults), *([f"{result.missing} not run"] if result.missing > 0 else [])]
    return "; ".join([*([_graded_text(result)] if _graded_text(result) else []), *wrong])


def _graded_text(result: SpecResult) -> str:
    if not result.graded:
        return "not graded"
    graded = [trial for trial in result.trials if trial.passed is not None and trial.fault is None]
    if not graded:
        return "" if result.trials or result.missing else "nothing to run"
    if all(trial.passed for trial in graded) and not any(failed_graders(trial) for trial in graded):
        return "all graders passed"
    if any(trial.broke for trial in graded):
        return "constraint(s) broken"
    if result.threshold is None:
        return "all trials passed" if all(trial.passed for trial in graded) else "grader(s) failed"
    reaches = "reaches" if result.passed else "is below"
    return f"the eval's score {percent(result.mean_score)} {reaches} its threshold {result.threshold:g}"


def _faults_parts(faults: Sequence[TrialResult]) -> Iterator[str]:
    for kind in ("grader", "execution"):
        count = sum(1 for trial in faults if trial.fault and trial.fault.kind == kind)
        if count:
            yield plural(count, f"{kind} error")


def counts_text(figures: Figures) -> str:
    """`9 passed, 2 failed, 1 grader error`: trials, each kind by its name; zeros only of the first two."""
    words = {
        EvalOutcome.PASSED: "passed",
        EvalOutcome.FAILED: "failed",
        EvalOutcome.GRADER_ERROR: "grader error",
        EvalOutcome.EXECUTION_ERROR: "execution error",
        EvalOutcome.NOT_GRADED: "not graded",
        EvalOutcome.NOT_RUN: "not run",
    }
    said = []
    for outcome, word in words.items():
        count = figures.trials[outcome]
        if count or outcome in (EvalOutcome.PASSED, EvalOutcome.FAILED):
            said.append(plural(count, word) if word.endswith("error") else f"{count} {word}")
    return ", ".join(said) + by_agent_text(figures)


def by_agent_text(found: Figures) -> str:
    """`; 4 errors by the agent's own doing count 0`, or nothing."""
    if not found.by_agent:
        return ""
    count = "counts" if found.by_agent == 1 else "count"
    worst = "0" if found.fraction else "as the worst score"
    return f"; {plural(found.by_agent, 'error')} by the agent's own doing {count} {worst}"


def interval_text(interval: tuple[float, float] | None, method: str) -> str:
    """`95% interval 55.2%–95.3%, Gaffke over stimuli`, or why there is none."""
    if interval is None:
        return f"no interval: {of_stimuli(method)}"
    return f"95% interval {percent(interval[0])}–{percent(interval[1])}, {of_stimuli(method)}"


def score_text(value: float | None, found: Figures) -> str:
    """`80.0%`; on a scale of the benchmark's own the number itself."""
    return percent(value) if found.fraction or value is None else f"{value:g}"


def score_parts(found: Figures) -> list[str]:
    """`score 50.0% (95% interval …)`; with ungraded trials the range first, then the score of the others."""
    interval, method = found.score_interval
    sure = f"no interval: {of_stimuli(method)}"
    if interval is not None:
        sure = f"95% interval {ends_text(interval, found)}, {of_stimuli(method)}"
    counted = f"{score_text(found.score, found)} ({sure})"
    if found.score_range is None:
        return [f"score {counted}"]
    low, high = found.score_range
    ungraded = plural(found.ungraded, "ungraded trial")
    return [
        f"score {percent(low)} to {percent(high)}, depending on {ungraded}",
        f"without {'it' if found.ungraded == 1 else 'them'}: {counted}",
    ]


def ends_text(ends: tuple[float, float], found: Figures) -> str:
    """`55.2%–95.3%`, or `-1.5 to 4` on a scale of the benchmark's own."""
    low, high = ends
    return f"{percent(low)}–{percent(high)}" if found.fraction else f"{low:g} to {high:g}"


def of_stimuli(method: str) -> str:
    """Return how an interval was found, in the words of evals."""
    return method.replace("tasks", "stimuli").replace("task", "stimulus")


def with_interval(value: float, interval: tuple[float, float] | None) -> str:
    """`80.0% (55.2%–95.3%)`."""
    said = "" if interval is None else f" ({percent(interval[0])}–{percent(interval[1])})"
    return f"{percent(value)}{said}"


def used_text(used: Used) -> str:
    """`12,300 tokens in, 4,100 out, 900 for judges; $0.12`; nothing where nothing was reported."""
    tokens = []
    if used.input_tokens or used.output_tokens:
        tokens.append(f"{used.input_tokens:,} tokens in, {used.output_tokens:,} out")
    if used.judge_tokens:
        tokens.append(f"{used.judge_tokens:,}{'' if tokens else ' tokens'} for judges")
    cost = used.total_cost
    said = [", ".join(tokens)] if tokens else []
    if cost is not None:
        judges = f" ({dollars(used.judge_cost)} for judges)" if used.judge_cost else ""
        said.append(f"{dollars(cost)}{judges}")
    return "; ".join(said)


def resume_command(invocation: Invocation) -> str | None:
    """Return what goes on with an eval that was interrupted; None where nothing is missing.

    An end by the agent's doing is not: it counts, and is not tried again.
    """
    if invocation.id is None or not any(map(_lacks, invocation.evals)):
        return None
    return f"valk eval --resume {invocation.id[:8]}"


def _lacks(result: SpecResult) -> bool:
    """Return whether trials did not run, or ended for reasons that are not their agent's doing."""
    return result.missing > 0 or any(trial.fault and not trial.fault.by_agent for trial in result.faults)
