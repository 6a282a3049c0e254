"""An eval as JUnit XML: a suite per eval and model, a case per stimulus.

Kept to what the two common schemas (Apache Ant's, Jenkins xUnit's) both allow: a case has at most one of
failure, error and skipped and no output of its own, so what each trial did stands in the suite's output.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape  # xml's own brings a web client with it

from benchmark_runner.terminal import safe
from valkyrie.evals.figures import EvalOutcome, Figures, figures, stimulus_outcome, trial_outcome, used_by
from valkyrie.evals.phrases import (
    SKIPPED,
    agent_end,
    clipped,
    constraints_text,
    exits_words,
    failed_graders,
    fault_text,
    flaky_text,
    full_name,
    grader_label,
    percent,
    repeats_parts,
    seconds,
    trial_name,
    used_text,
    verification_words,
)
from valkyrie.evals.results import Invocation, SpecResult, StimulusResult, TrialResult

LONGEST_OUTPUT = 200_000
"""Characters of a suite's output."""
LONGEST_CASE = 8_000
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FOLDER = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d)-(\d\d)-(\d\d)-\d{3}Z$")
_SPACES = re.compile(r"\s+")
_ERRORS = (EvalOutcome.GRADER_ERROR, EvalOutcome.EXECUTION_ERROR, EvalOutcome.NOT_RUN)
_ASIDE = (EvalOutcome.SKIPPED, EvalOutcome.NOT_GRADED)


def junit_xml(invocation: Invocation) -> str:
    stamp = _stamp(invocation)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for number, result in enumerate(invocation.evals):
        lines += _suite(result, number, stamp)
    return "\n".join([*lines, "</testsuites>", ""])


def _suite(result: SpecResult, number: int, stamp: str) -> Iterator[str]:
    outcomes = Counter(_outcome(result, stimulus) for stimulus in result.stimuli)
    attributes = {
        "name": _token(full_name(result)),
        "package": _token(result.name),
        "id": str(number),
        "timestamp": stamp,
        "hostname": "localhost",
        "tests": str(len(result.stimuli)),
        "failures": str(outcomes[EvalOutcome.FAILED]),
        "errors": str(sum(outcomes[outcome] for outcome in _ERRORS)),
        "skipped": str(sum(outcomes[outcome] for outcome in _ASIDE)),
        "time": _time(sum(trial.duration_ms for trial in result.trials)),
    }
    yield f"  <testsuite {_attributes(attributes)}>"
    yield "    <properties>"
    for name, value in _properties(result):
        yield f"      <property {_attributes({'name': name, 'value': value})}/>"
    yield "    </properties>"
    for stimulus in result.stimuli:
        yield from _case(result, stimulus)
    yield f"    <system-out>{_bounded(_output(result), LONGEST_OUTPUT)}</system-out>"
    yield "    <system-err></system-err>"
    yield "  </testsuite>"


def _properties(result: SpecResult) -> Iterator[tuple[str, str]]:
    found = figures([result])
    given = {
        "eval": result.name,
        "file": result.file,
        "model": result.model,
        "executor": result.executor,
        "variant": result.variant,
        "run": result.run_id,
        "ingested": "true" if result.ingested else None,
        "threshold": None if result.threshold is None else f"{result.threshold:g}",
        "score": None if found.score is None else f"{found.score:.4f}",
        "passRate": None if found.pass_rate is None else f"{found.pass_rate:.4f}",
        "used": used_text(found.used),
        "agentExits": exits_words(result),
        "constraints": constraints_text(result.trials).removeprefix("constraints: "),
        **_range_properties(found),
        **_score_properties(result),
    }
    for name, value in given.items():
        if value:
            yield name, value
    for stimulus in result.stimuli:
        if stimulus.planned > 1:
            for part in repeats_parts(stimulus):
                name, _, value = part.partition(": ")
                yield f"{_token(stimulus.name)} {name}", value


def _range_properties(found: Figures) -> dict[str, str]:
    """The interval, and what the score would be had ungraded trials all failed, or all passed."""
    interval, _ = found.score_interval
    named = {"scoreInterval": interval, "scoreRange": found.score_range}
    said = {name: f"{ends[0]:.4f} to {ends[1]:.4f}" for name, ends in named.items() if ends}
    return {**said, **({"countedAsZero": str(found.by_agent)} if found.by_agent else {})}


def _score_properties(result: SpecResult) -> dict[str, str]:
    """The named numbers of a run of the store, as far as they say more than its score."""
    score = result.score
    if score is None:
        return {}
    named = {
        "scoreConfirmed": score.score_confirmed,
        "scoreLow": score.score_low,
        "scoreHigh": score.score_high,
    }
    counts = {"unconfirmedPasses": score.unconfirmed, "ungraded": score.ungraded}
    counts["openToTampering"] = score.open_to_tampering
    return {
        **{name: f"{value:.4f}" for name, value in named.items() if value is not None},
        **{name: str(value) for name, value in counts.items() if value},
    }


def _case(result: SpecResult, stimulus: StimulusResult) -> Iterator[str]:
    attributes = {
        "name": _token(stimulus.name),
        "classname": _token(full_name(result)),
        "time": _time(sum(trial.duration_ms for trial in stimulus.trials)),
    }
    outcome = _outcome(result, stimulus)
    if outcome is EvalOutcome.PASSED:
        yield f"    <testcase {_attributes(attributes)}/>"
        return
    yield f"    <testcase {_attributes(attributes)}>"
    if outcome in _ASIDE:
        message = result.skipped or (SKIPPED if outcome is EvalOutcome.SKIPPED else "not graded")
        yield f"      <skipped {_attributes({'message': message})}/>"
    else:
        tag = "failure" if outcome is EvalOutcome.FAILED else "error"
        told = {"message": _message(stimulus, outcome), "type": outcome.value.replace(" ", "-")}
        yield f"      <{tag} {_attributes(told)}>{_bounded(_why(stimulus), LONGEST_CASE)}</{tag}>"
    yield "    </testcase>"


def _outcome(result: SpecResult, stimulus: StimulusResult) -> EvalOutcome:
    return EvalOutcome.SKIPPED if result.skipped is not None else stimulus_outcome(stimulus)


def _message(stimulus: StimulusResult, outcome: EvalOutcome) -> str:
    """The one line a CI page shows."""
    if outcome is EvalOutcome.NOT_RUN:
        return f"{stimulus.planned - len(stimulus.trials)} of {stimulus.planned} trials did not run"
    if outcome is EvalOutcome.FAILED:
        names = dict.fromkeys(one.name for trial in stimulus.trials for one in failed_graders(trial))
        reasons = dict.fromkeys(trial.reason for trial in stimulus.trials if trial.reason)
        said = _zero(stimulus) or "; ".join(reasons) or "failed"
        said = f"grader(s) failed: {', '.join(names)}" if names else said
        if stimulus.threshold is not None:
            score = f"the stimulus' score {stimulus.score or 0.0:.2f}"
            said = f"{score} is below the threshold {stimulus.threshold:g}; {said}"
        return said[:1000]
    first = next(trial for trial in stimulus.faults if trial_outcome(trial) is outcome)
    return fault_text(first)[:1000]


def _zero(stimulus: StimulusResult) -> str:
    """Return why trials count 0 without a verdict, if any do."""
    found = (trial.verification for trial in stimulus.trials)
    return "; ".join(dict.fromkeys(f"counted as 0: {one.cause}" for one in found if one and one.cause))


def _why(stimulus: StimulusResult) -> Iterator[str]:
    """Yield every failing grader with its evidence, and every error, by trial."""
    for trial in stimulus.trials:
        before = f"{name}: " if (name := trial_name(stimulus, trial)) else ""
        if trial.fault is not None:
            yield before + fault_text(trial)
        for grader in failed_graders(trial):
            evidence = clipped(grader.evidence, characters=2000, lines=40)
            yield f"{before}{grader_label(grader)} scored {grader.score:.2f}: {evidence}"
        if trial.reason and not failed_graders(trial):
            yield before + clipped(trial.reason, characters=2000, lines=40)
        if ended := agent_end(trial):
            yield f"{before}agent's end: {ended}"
        if trial.broke:
            yield before + constraints_text([trial])
        for words in verification_words(trial):
            yield before + words


def _output(result: SpecResult) -> Iterator[str]:
    for stimulus in result.stimuli:
        yield from (f"{stimulus.name}: {_trial_line(trial)}" for trial in stimulus.trials)
        if stimulus.planned > 1 and (parts := repeats_parts(stimulus)):
            flaky = flaky_text(stimulus)
            yield f"{stimulus.name}: " + "  ".join([*parts, *([flaky] if flaky else [])])


def _trial_line(trial: TrialResult) -> str:
    score = "" if trial.score is None else f", score {_score(trial.score, fraction=trial.fraction)}"
    again = f", attempt {trial.attempts}" if trial.attempts > 1 else ""
    again += f", agent's end: {ended}" if (ended := agent_end(trial)) else ""
    again += f", {used}" if (used := used_text(used_by([trial]))) else ""
    verified = "".join(f"; {words}" for words in verification_words(trial))
    return (
        f"trial {trial.index + 1} {trial_outcome(trial).value} in {seconds(trial.duration_ms)}"
        f"{score}{again}{verified}"
    )


def _score(score: float, *, fraction: bool) -> str:
    return percent(score) if fraction else f"{score:g}"


def _bounded(lines: Iterator[str], most: int) -> str:
    """The lines that fit, as text of a document."""
    kept: list[str] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > most:
            kept.append("… cut; results.jsonl has all of it")
            break
        kept.append(line)
    return _text("\n".join(kept))


def _attributes(values: dict[str, str]) -> str:
    return " ".join(f"{name}={_quoted(value)}" for name, value in values.items())


def _quoted(value: str) -> str:
    return f'"{escape(_line(value))}"'


def _token(name: str) -> str:
    """A name, which is never empty."""
    return _line(name) or "unnamed"


def _line(value: str) -> str:
    return _SPACES.sub(" ", _ILLEGAL.sub("", safe(value))).strip()


def _text(value: str) -> str:
    return escape(_ILLEGAL.sub("", safe(value, keep_lines=True)), quote=False)


def _time(milliseconds: float) -> str:
    return f"{max(0.0, milliseconds) / 1000:.3f}"


def _stamp(invocation: Invocation) -> str:
    """When it began, by its folder, so that it stays the same. UTC, unsaid: the schemas allow no zone."""
    if invocation.folder and (named := _FOLDER.match(invocation.folder.name)):
        return "{}T{}:{}:{}".format(*named.groups())
    try:
        moment = datetime.fromisoformat(invocation.started_at)
    except ValueError:
        return "1970-01-01T00:00:00"
    return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%dT%H:%M:%S}"
