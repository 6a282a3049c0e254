"""Graders as claims about a text: those that can never all pass, always pass, or never."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from valkyrie.errors import GraderError
from valkyrie.evals.lint.rules import finding
from valkyrie.grade.js_regex import JsRegex
from valkyrie.grade.protocol import constraint_graders
from valkyrie.specs.model import EvalSpec, Finding, GraderSpec, SourceLocation, Stimulus

_TEXT_TYPE = re.compile(r"(output|transcript|file|diff)-(not-)?(contains|matches)")
_EXISTS_TYPE = re.compile(r"file-(not-)?exists")
DEPENDS_ON_SURROUNDINGS = re.compile(r"[\^$]|\\[bB]|\(\?[=!<]")
"""In a pattern: what it finds in a text it may not find in a longer one."""
_PROBES = ("", "a", "0 x", "\n", "The quick brown fox.\nIt jumped, 12 times!\n")


@dataclass(frozen=True, slots=True)
class Claim:
    """Something must be in a text, or must not."""

    subject: str
    """`output`, `transcript`, `diff`, or `file` with its path."""
    wanted: bool
    grader: GraderSpec
    text: str | None = None
    pattern: JsRegex | None = None
    """Of the two, the one the grader looks for."""
    source: str = ""
    """As the author wrote it."""
    case_sensitive: bool = False

    @property
    def matches_everything(self) -> bool:
        """Whether it is found in whatever there is."""
        return all(self.found_in(probe) for probe in _PROBES)

    def found_in(self, text: str) -> bool:
        """Return whether a grader would find it there."""
        if self.pattern is not None:
            return found(self.pattern, text)
        return self._folded(self.text or "") in self._folded(text)

    def _folded(self, text: str) -> str:
        return text if self.case_sensitive else text.lower()

    def excludes(self, other: Claim) -> bool:
        """Return whether this claim, which forbids, can never hold together with `other`, which wants."""
        if self.subject != other.subject or turn_of(self.grader) != turn_of(other.grader):
            return False
        if self.pattern is not None and other.pattern is not None:
            return self.source == other.source
        if other.text is None or (self.pattern and DEPENDS_ON_SURROUNDINGS.search(self.source)):
            return False
        if self.pattern is None and self.case_sensitive and not other.case_sensitive:
            return False  # the same word in other letters satisfies both
        return self.found_in(other.text)


def turn_of(grader: GraderSpec) -> int | None:
    """The turn it looks at; graders of diffs may say so in their config."""
    own = grader.config.get("turn") if grader.type.startswith(("diff-", "expected-diff")) else None
    return own if isinstance(own, int) else grader.turn


def claim_of(grader: GraderSpec) -> Claim | None:
    """The claim a text grader makes; None for other graders, and where its config is no good."""
    match = _TEXT_TYPE.fullmatch(grader.type)
    if match is None:
        return None
    subject, negated, how = match.groups()
    config = grader.config
    if subject == "file":
        if not isinstance(config.get("path"), str):
            return None
        subject = f"file {_plain_path(config['path'])}"
    wanted = (not negated) ^ bool(config.get("negate"))
    if how == "contains" and not (subject == "diff" and "pattern" in config):
        names = ("value", "substring", "pattern")
        said = next((config[name] for name in names if isinstance(config.get(name), str)), None)
        if said is None:
            return None
        exact = match[1] in ("file", "diff") or config.get("case_sensitive") is True
        return Claim(subject, wanted, grader, text=said, source=said, case_sensitive=exact)
    said = config.get("pattern")
    pattern = compiled(said)
    return Claim(subject, wanted, grader, pattern=pattern, source=pattern.source) if pattern else None


def compiled(pattern: object) -> JsRegex | None:
    """A spec's regex, or None where it is none; whoever makes the grader says why."""
    regex = JsRegex(pattern) if isinstance(pattern, str) else None
    return regex if regex and regex.problem is None else None


def found(regex: JsRegex, text: str) -> bool:
    """Return whether it matches; one that takes too long to say matches nothing here."""
    try:
        return regex.search(text) is not None
    except GraderError:
        return False


def claims_of(stimulus: Stimulus) -> list[Claim]:
    """Return every claim of its text graders."""
    claims = (claim_of(grader) for grader in stimulus.graders)
    return [claim for claim in claims if claim]


def existences(stimulus: Stimulus) -> Iterator[tuple[str, bool, GraderSpec]]:
    """Path, whether it must be there, and the grader that says so."""
    for grader in stimulus.graders:
        path = grader.config.get("path")
        match = _EXISTS_TYPE.fullmatch(grader.type)
        if match and isinstance(path, str):
            yield _plain_path(path), (not match[1]) ^ bool(grader.config.get("negate")), grader


def _plain_path(path: str) -> str:
    return path.removeprefix("./").rstrip("/")


def texts(value: object) -> list[str]:
    """The texts of a list, or of one text."""
    if isinstance(value, str):
        return [value]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list | tuple) else []


def items(value: object) -> list[object]:
    """The items of a list, or the one value there is."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


# Graders of one stimulus that can never all pass.

_PLAIN_NAME = re.compile(r"\^?([A-Za-z0-9_-]+)\$?")


def contradictions(stimulus: Stimulus) -> Iterator[Finding]:
    """Each pair of demands that exclude each other."""
    yield from _texts(stimulus)
    yield from _files(stimulus)
    yield from _skills(stimulus)
    yield from _tools(stimulus)
    yield from _turns(stimulus)


def _against(first: str, second: str, place: SourceLocation | None, *, counts: bool = True) -> Finding:
    """Two demands that exclude each other; a warning where one is a constraint, which does not count."""
    if counts:
        message = f"{first}, but {second}: no trial can pass both. Drop one of them"
        return finding("contradictory-graders", message, place)
    message = f"{first}, but {second}: no trial can keep to both. Drop one of them"
    return replace(finding("contradictory-graders", message, place), severity="warning")


def _where(place: SourceLocation | None) -> str:
    return f" (line {place.line})" if place else ""


def _texts(stimulus: Stimulus) -> Iterator[Finding]:
    claims = claims_of(stimulus)
    for forbids in (claim for claim in claims if not claim.wanted):
        for wants in (claim for claim in claims if claim.wanted and forbids.excludes(claim)):
            first = f"{wants.grader.label} wants {wants.source!r} in the {wants.subject}"
            second = f"{forbids.grader.label}{_where(forbids.grader.place)} forbids {forbids.source!r}"
            yield _against(first, second, wants.grader.place)
    empty = [
        grader
        for grader in stimulus.graders
        if grader.type == "diff-empty" and not grader.config.get("negate")
    ]
    for claim in (claim for claim in claims if claim.subject == "diff" and claim.wanted):
        for grader in (one for one in empty if turn_of(one) == turn_of(claim.grader)):
            second = f"{grader.label}{_where(grader.place)} wants no changes"
            yield _against(f"{claim.grader.label} wants a change", second, claim.grader.place)


def _files(stimulus: Stimulus) -> Iterator[Finding]:
    gone = {path: grader for path, wanted, grader in existences(stimulus) if not wanted}
    needed = [(path, grader) for path, wanted, grader in existences(stimulus) if wanted]
    needed += [
        (claim.subject.removeprefix("file "), claim.grader)
        for claim in claims_of(stimulus)
        if claim.wanted and claim.subject.startswith("file ")
    ]
    for path, grader in needed:
        if path in gone:
            second = f"{gone[path].label}{_where(gone[path].place)} wants it not to exist"
            yield _against(f"{grader.label} needs the file {path}", second, grader.place)


@dataclass(frozen=True, slots=True)
class _Demand:
    """Of one skill or tool: that it is used, or that it is not."""

    name: str
    turn: int | None
    place: SourceLocation | None
    counts: bool = True
    """It is a grader's, not a constraint's."""

    def meets(self, refused: _Demand) -> bool:
        """Return whether the other, which forbids, holds where this one must be met."""
        return refused.turn is None or refused.turn == self.turn


def _skills(stimulus: Stimulus) -> Iterator[Finding]:
    graders = _with_constraints(stimulus, "skill-invocation")
    required = [
        _Demand(n, g.turn, g.place, counts) for g, counts in graders for n in texts(g.config.get("required"))
    ]
    refused = [
        _Demand(n, g.turn, g.place, counts)
        for g, counts in graders
        for n in texts(g.config.get("disallowed"))
    ]
    for one in required:
        for other in refused:
            if other.name in (one.name, "*") and one.meets(other):
                what = "every skill" if other.name == "*" else "it"
                second = f"{what} is forbidden{_where(other.place)}"
                both = one.counts and other.counts
                yield _against(f"the skill {one.name} is required", second, one.place, counts=both)


def _tools(stimulus: Stimulus) -> Iterator[Finding]:
    """Only demands that surely meet: a name without further conditions, and a plain name."""
    graders = _with_constraints(stimulus, "tool-calls")
    required = [
        _Demand(_tool_name(e), g.turn, g.place, counts)
        for g, counts in graders
        for e in items(g.config.get("required"))
    ]
    refused = [
        _Demand(_tool_name(e), g.turn, g.place, counts)
        for g, counts in graders
        for e in items(g.config.get("disallowed"))
        if _only_name(e)
    ]
    for one in required:
        plain = _PLAIN_NAME.fullmatch(one.name)
        for other in (other for other in refused if other.name and one.meets(other)):
            if other.name == one.name or (plain and _surely_refuses(other.name, one.name, plain[1])):
                second = f"{other.name!r} is forbidden{_where(other.place)}"
                both = one.counts and other.counts
                first = f"a call of the tool {one.name!r} is required"
                yield _against(first, second, one.place, counts=both)
    for grader in stimulus.graders:
        if required and _allows_no_calls(grader):
            first = f"a call of the tool {required[0].name!r} is required"
            second = f"{grader.label}{_where(grader.place)} allows no calls"
            yield _against(first, second, required[0].place, counts=required[0].counts)


def _allows_no_calls(grader: GraderSpec) -> bool:
    none = grader.type == "tool-call-count" and grader.config.get("max") == 0
    return none and grader.turn is None and not grader.config.get("tools")


def _with_constraints(stimulus: Stimulus, type_name: str) -> list[tuple[GraderSpec, bool]]:
    """Graders of a type, and what checks constraints; True for those that count."""
    graders = [(one, True) for one in stimulus.graders]
    graders += [(one, False) for one in constraint_graders(stimulus.constraints)]
    return [(grader, counts) for grader, counts in graders if grader.type == type_name]


def _surely_refuses(pattern: str, required: str, name: str) -> bool:
    """Return whether every tool that fits `required` is refused; unanchored, `bash` fits `read_bash` too."""
    regex = compiled(pattern)
    if regex is None or not found(regex, name):
        return False
    return required == f"^{name}$" or not DEPENDS_ON_SURROUNDINGS.search(pattern)


def _tool_name(entry: object) -> str:
    name = entry.get("name") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) else ""


def _only_name(entry: object) -> bool:
    return isinstance(entry, str) or (isinstance(entry, dict) and set(entry) == {"name"})


def _turns(stimulus: Stimulus) -> Iterator[Finding]:
    limit = stimulus.constraints.max_turns
    if limit is not None and limit < len(stimulus.turns):
        first = f"the conversation has {len(stimulus.turns)} turns"
        yield _against(first, f"max_turns is {limit}", stimulus.constraints.place, counts=False)


# Graders that pass whatever the agent does, or never.

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
    """Return whether passing takes more than words."""
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
