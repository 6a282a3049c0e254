"""Graders that pass whatever the agent does, or never."""

from __future__ import annotations

from collections.abc import Iterator

from valkyrie.lint.claims import Claim, claim_of, claims_of, existences
from valkyrie.lint.codes import finding
from valkyrie.specs.model import EvalSpec, Finding, GraderSpec, Stimulus

_NEVER_ZERO = ("token-budget", "turn-count", "wall-time", "step-count")
_BOUNDS = (*_NEVER_ZERO, "tool-call-count", "error-count", "max-repeat", "diff-empty")
_ANY_ANSWER = ("completed", "exit-success")


def vacuous(stimulus: Stimulus) -> Iterator[Finding]:
    """Single graders that tell nothing."""
    for claim in claims_of(stimulus):
        if claim.matches_everything:
            yield _of_everything(claim)
    for grader in stimulus.graders:
        if grader.type in _NEVER_ZERO and _is_zero(grader.config.get("max")):
            message = (
                f"{grader.label} allows at most 0, which no trial keeps to; set `max` to what is too much"
            )
            yield finding("impossible-grader", message, grader.place)
    given = {entry.dest.removeprefix("./").rstrip("/"): entry for entry in stimulus.environment.files}
    for path, wanted, grader in existences(stimulus):
        if wanted and path in given:
            message = (
                f"{grader.label} looks for {path}, which environment.files puts there before the agent "
                "starts; look for what the agent must write"
            )
            yield finding("vacuous-grader", message, grader.place)


def _of_everything(claim: Claim) -> Finding:
    what = f"{claim.grader.label}: {claim.source!r} is found in every text"
    if not claim.wanted:
        message = f"{what}, so this can never pass; say what must not be there"
        return finding("impossible-grader", message, claim.grader.place)
    means = "any file passes" if claim.subject.startswith("file ") else "any answer passes"
    return finding("vacuous-grader", f"{what}, so {means}; say what must be there", claim.grader.place)


def _is_zero(value: object) -> bool:
    if isinstance(value, str):
        return value.strip().rstrip("msh").strip() in ("0", "0.0")
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


def weak(spec: EvalSpec, stimulus: Stimulus) -> Iterator[Finding]:
    """Stimuli that are passed without any work: by any word, or by the prompt said back."""
    if not stimulus.graders:
        return
    if any(_takes_work(one) for one in stimulus.graders):
        return
    quiet = spec.defaults.executor == "mock"
    claims = [claim for claim in claims_of(stimulus) if claim.wanted]
    if any(claim.matches_everything for claim in claims):
        return  # said of the grader itself
    if not claims:
        message = (
            f"every grader of {stimulus.name!r} passes for an agent that says one word and does nothing; "
            "add one that wants something"
        )
        yield finding("passes-without-work", message, stimulus.place, quiet=quiet)
    elif _passed_by_echo(stimulus):
        message = (
            f"an agent that repeats the prompt of {stimulus.name!r} passes all of its graders; look for "
            "something the prompt does not say"
        )
        yield finding("prompt-holds-answer", message, stimulus.place, quiet=quiet)


def _takes_work(grader: GraderSpec) -> bool:
    """Whether passing takes more than words."""
    if grader.type in (*_BOUNDS, *_ANY_ANSWER, "file-not-exists"):
        return False
    if grader.type in ("skill-invocation", "tool-calls"):
        return bool(grader.config.get("required"))
    if grader.type == "file-exists":
        return not grader.config.get("negate")
    claim = claim_of(grader)
    if claim is None:
        return True
    return claim.wanted and claim.subject not in ("output", "transcript")


def _passed_by_echo(stimulus: Stimulus) -> bool:
    return all(_echo_passes(stimulus, claim) for claim in claims_of(stimulus))


def _echo_passes(stimulus: Stimulus, claim: Claim) -> bool:
    if claim.subject not in ("output", "transcript"):
        return True
    turn = claim.grader.turn
    if turn is not None:
        heard = list(stimulus.turns[turn : turn + 1])
    else:
        heard = list(stimulus.turns[-1:] if claim.subject == "output" else stimulus.turns)
    return any(claim.found_in(text) for text in heard) == claim.wanted
