"""Make graders from a spec's entries, ask them, and combine what they say into a verdict."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from sandboxes.errors import SandboxError
from valkyrie.errors import GraderError, InfrastructureError, UsageError, UserError, ValkyrieError
from valkyrie.grade.base import BuiltIn, Config, clipped, result_of
from valkyrie.grade.protocol import (
    WHERE,
    Grader,
    GraderInput,
    GraderResult,
    Kind,
    Need,
    TrialVerdict,
    built_in,
)
from valkyrie.plugins import load, load_file, names
from valkyrie.specs.model import Finding, GraderSpec, Scoring, SpecError, Stimulus
from valkyrie.text import did_you_mean
from valkyrie.trajectory.transcript import turn_slice

GROUP = "valkyrie.graders"
"""The entry point group; an entry's name is the type a spec names."""


class GraderRegistry:
    """Types that plugins added."""

    def __init__(self) -> None:
        self._made_by: dict[str, Any] = {}

    def register(self, grader: Any, type: str | None = None) -> None:
        """Add a grader's class under its own `type`, or another one. Built-in types may be replaced."""
        name = type or type_of(grader)
        if not name:
            raise UserError(
                f"the grader {_shown(grader)} has no `type`; name it: register(grader, 'my-type')."
            )
        if not callable(getattr(grader, "grade", None)):
            raise UserError(f"the grader {_shown(grader)} has no method `grade(given)`.")
        self._made_by[name] = grader

    def types(self) -> list[str]:
        """Return what specs may name because of these plugins."""
        return sorted(self._made_by)

    def get(self, name: str) -> Any:
        """Return what makes a grader of this type; None when no plugin does."""
        return self._made_by.get(name)


def load_plugins(specifiers: Iterable[str], base: Path | None = None) -> GraderRegistry:
    """The types these plugins add. Raises UsageError for a missing one, UserError for a broken one."""
    registry = GraderRegistry()
    for specifier in specifiers:
        _take(load_one(specifier, base), registry, specifier)
    return registry


def load_one(specifier: str, base: Path | None = None) -> Any:
    """The class, function or module a specifier stands for."""
    if specifier.endswith(".py"):
        return load_file(_file(specifier, base))
    return load(specifier, group=GROUP)


def installed_types() -> list[str]:
    """Types of installed packages; nothing is imported."""
    return names(GROUP)


def make_plugin_grader(made_by: Any, spec: GraderSpec) -> Grader:
    """A grader of a plugin; one that is written in the simple way is put into the shape of the others."""
    grader: Any = made_by
    try:
        if inspect.isclass(made_by):
            maker: Callable[..., Any] = made_by
            grader = maker(spec) if _takes_spec(maker) else maker()
        needs = frozenset(Need(need) for need in getattr(grader, "needs", ()))
    except (TypeError, KeyError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return PluginGrader(spec, grader, needs)


class PluginGrader:
    """Any object with `grade(given)`."""

    type: ClassVar[str] = ""

    def __init__(self, spec: GraderSpec, grader: Any, needs: frozenset[Need]) -> None:
        self.spec = spec
        self.grader = grader
        self.needs = needs  # type: ignore[misc]  # what a class of ours says, this says for the plugin's

    needs: ClassVar[frozenset[Need]] = frozenset()

    async def grade(self, given: GraderInput) -> GraderResult:
        """Return what it found; anything but a result of one of the known forms is its error."""
        found = self.grader.grade(given)
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, GraderResult):
            return found
        if isinstance(found, bool):
            found = {"passed": found}
        if isinstance(found, Mapping):
            return result_of(found, self.spec)
        raise GraderError(
            f"it returned {clipped(repr(found), 100)}; a GraderResult, a map with `passed`, "
            "or true or false is expected."
        )


def type_of(grader: Any) -> str | None:
    """The type a class or object says it is."""
    name = getattr(grader, "type", None)
    if isinstance(name, str) and name:
        return name
    metadata = getattr(grader, "metadata", None)
    named = metadata.get("name") if isinstance(metadata, Mapping) else None
    return named if isinstance(named, str) and named else None


def _take(found: Any, registry: GraderRegistry, specifier: str) -> None:
    before = registry.types()
    if isinstance(found, ModuleType):
        if callable(registering := getattr(found, "register_graders", None)):
            registering(registry)
        else:
            for one in vars(found).values():
                if inspect.isclass(one) and one.__module__ == found.__name__ and _is_grader(one):
                    registry.register(one)
        if registry.types() == before:
            hint = did_you_mean(
                "register_graders", [name for name in vars(found) if not name.startswith("_")]
            )
            raise UserError(
                f"{specifier}: it has no class with `type` and `grade(given)`, "
                f"and no function register_graders(registry).{hint}"
            )
    elif inspect.isfunction(found):
        found(registry)
    else:
        registry.register(found)


def _is_grader(one: Any) -> bool:
    return type_of(one) is not None and callable(getattr(one, "grade", None))


def _takes_spec(made_by: Any) -> bool:
    """Return whether a class is made with the spec, or with nothing."""
    parameters = list(inspect.signature(made_by).parameters.values())
    return any(
        one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL) for one in parameters
    )


def _file(said: str, base: Path | None) -> Path:
    """Beside the eval spec, or where the command was given."""
    path = Path(said).expanduser()
    places = [folder / path for folder in (base or Path(), Path())]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UsageError(
            f"grader plugin {said} is not there; it is looked for beside the eval spec and here."
        )
    return found.resolve()


def _shown(grader: Any) -> str:
    return getattr(grader, "__qualname__", None) or repr(grader)


# From the entries of a spec to graders that can be asked.


@dataclass(frozen=True, slots=True)
class MadeGrader:
    """A grader with its name, its weight, and the turn it looks at."""

    grader: Grader
    spec: GraderSpec
    name: str
    weight: float = 1.0

    @property
    def needs(self) -> frozenset[Need]:
        """What must be there for it."""
        return self.grader.needs

    @property
    def is_judge(self) -> bool:
        return Need.JUDGE in self.needs

    @property
    def absence_only(self) -> bool:
        """It only says what an agent must not have said or done."""
        return isinstance(self.grader, BuiltIn) and self.grader.absence_only

    @property
    def diff_turn(self) -> int | None:
        """The turn whose diff it looks at; None where it looks at the last one's, or at none."""
        return self.grader.turn if isinstance(self.grader, BuiltIn) and Need.DIFF in self.needs else None

    def findings(self) -> list[Finding]:
        """Return what is doubtful about its config: unknown keys, patterns that are none."""
        config = getattr(self.grader, "config", None)
        return config.findings() if isinstance(config, Config) else []


def make_graders(
    stimulus: Stimulus, *, scoring: Scoring, plugins: Iterable[str] = (), base: Path | None = None
) -> list[MadeGrader]:
    """The graders of a stimulus, in order.

    Raises SpecError with everything that is wrong. Plugins' relative paths are relative to `base`.
    """
    registry = load_plugins(plugins, base)
    made, problems = [], list[Finding]()
    for spec in stimulus.graders:
        try:
            grader = make_grader(spec, registry)
            problems += _unfit(grader, stimulus)
            made.append(MadeGrader(grader, spec, spec.label, weight_of(spec, scoring)))
            # A pattern that is none fails its grader when it is asked; a key nobody reads changes verdicts.
            problems += [one for one in made[-1].findings() if one.code == "grader-config"]
        except SpecError as error:
            problems += error.findings
    if problems:
        raise SpecError(problems)
    return made


def make_grader(spec: GraderSpec, registry: GraderRegistry | None = None) -> Grader:
    """One grader. Raises SpecError for an unknown type or a config it does not take."""
    made_by = _maker(spec, registry or GraderRegistry())
    if _is_turn_wrong(spec.turn):
        raise _problem(spec, "grader-config", f"`turn` is {spec.turn!r}; it must be a whole number from 0.")
    try:
        if made_by.__module__.startswith("valkyrie.grade."):
            ours: Grader = made_by(spec)
            return ours
        return make_plugin_grader(made_by, spec)
    except SpecError:
        raise
    except (ValueError, ValkyrieError) as error:
        raise _problem(spec, "grader-config", str(error)) from error


def check_grader(
    spec: GraderSpec, registry: GraderRegistry | None = None, stimulus: Stimulus | None = None
) -> list[Finding]:
    """Everything wrong or doubtful about an entry, and about it in its stimulus; nothing is graded."""
    try:
        grader = make_grader(spec, registry)
    except SpecError as error:
        return list(error.findings)
    unfit = _doubts(grader, stimulus) if stimulus else []
    return [*MadeGrader(grader, spec, spec.label).findings(), *unfit]


def known_types(registry: GraderRegistry | None = None) -> list[str]:
    """Every type a spec may name: built in, installed, and of these plugins."""
    return sorted({*WHERE, *installed_types(), *(registry.types() if registry else ())})


def weight_of(spec: GraderSpec, scoring: Scoring) -> float:
    """By name, then by type, then its own, then 1."""
    for weight in (scoring.weights.get(spec.label), scoring.weights.get(spec.type), spec.weight):
        if weight is not None:
            if not math.isfinite(weight) or weight < 0:
                raise _problem(spec, "grader-weight", f"its weight is {weight}; it must be 0 or more.")
            return float(weight)
    return 1.0


def judges(made: Sequence[MadeGrader]) -> list[MadeGrader]:
    return [one for one in made if one.is_judge]


def checks(made: Sequence[MadeGrader]) -> list[MadeGrader]:
    return [one for one in made if not one.is_judge]


def _unfit(grader: Grader, stimulus: Stimulus) -> list[Finding]:
    """Return why a grader that is fine by itself cannot speak about this stimulus."""
    return [finding for finding in _doubts(grader, stimulus) if finding.severity == "error"]


def _doubts(grader: Grader, stimulus: Stimulus) -> list[Finding]:
    """Return what is wrong or doubtful about a grader in this stimulus."""
    check = getattr(grader, "check", None) if isinstance(grader, BuiltIn) else None
    found: list[Finding] = check(stimulus) if check else []
    return found


def _maker(spec: GraderSpec, registry: GraderRegistry) -> Any:
    found = registry.get(spec.type) or built_in(spec.type)
    if found is not None:
        return found
    if spec.type in installed_types():
        return load_one(spec.type)
    near = did_you_mean(spec.type, known_types(registry))
    hint = near or " A plugin that adds it is named with --grader-plugin."
    raise _problem(spec, "unknown-grader-type", f"there is no grader of type {spec.type!r}.{hint}")


def _is_turn_wrong(turn: object) -> bool:
    return turn is not None and (isinstance(turn, bool) or not isinstance(turn, int) or turn < 0)


def _problem(spec: GraderSpec, code: str, message: str) -> SpecError:
    return SpecError([Finding(code, "error", f"{spec.label}: {message}", spec.place)])


# Asking graders: each gets what its turn shows, and one that breaks is an error, not a fail.

JUDGES_AT_ONCE = 4
SCORING_TIMEOUT = "scoring_timeout"
"""Of a grader that was not done when the time of all of them was over."""


@dataclass(frozen=True, slots=True)
class GradingTime:
    """The time that all graders of a trial have together."""

    seconds: float
    until: float
    """By the clock of the loop."""

    @classmethod
    def from_now(cls, seconds: float | None) -> GradingTime | None:
        """It begins; None where there is no limit."""
        return cls(seconds, asyncio.get_running_loop().time() + seconds) if seconds else None


async def grade_all(
    made: Sequence[MadeGrader],
    given: GraderInput,
    *,
    only: Callable[[MadeGrader], bool] | None = None,
    time: GradingTime | None = None,
) -> list[GraderResult]:
    """Return what each grader (of those `only` lets through) found, in order.

    Judges are asked side by side. A judge that cannot be reached raises JudgeError when the others are done.
    One that is not done in `time` could not tell; what the others said stays.
    """
    asked = [one for one in made if only is None or only(one)]
    at_once = asyncio.Semaphore(JUDGES_AT_ONCE)

    async def judged(one: MadeGrader) -> GraderResult:
        async with at_once:
            return await _in_time(one, given, time)

    asking = {number: asyncio.ensure_future(judged(one)) for number, one in enumerate(asked) if one.is_judge}
    try:
        results = {
            number: await _in_time(one, given, time)
            for number, one in enumerate(asked)
            if number not in asking
        }
        answers = await asyncio.gather(*asking.values(), return_exceptions=True)
    finally:
        for task in asking.values():
            task.cancel()
    for number, answer in zip(asking, answers, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        results[number] = answer
    return [results[number] for number in range(len(asked))]


async def _in_time(one: MadeGrader, given: GraderInput, time: GradingTime | None) -> GraderResult:
    try:
        async with asyncio.timeout_at(time.until if time else None) as scope:
            return await grade_one(one, given)
    except TimeoutError:
        if time is None or not scope.expired():
            raise
        message = f"not done when the time of all graders was over (`scoring.timeout`: {time.seconds:g} s)"
        return _error(one, message, SCORING_TIMEOUT)


async def grade_one(one: MadeGrader, given: GraderInput) -> GraderResult:
    """Return what one grader found, under its name and with its weight.

    Raises only what says nothing about the grader: a judge out of reach (JudgeError), a lost sandbox.
    """
    if one.spec.turn is not None:
        part = turn_slice(given.transcript, one.spec.turn)
        if part is None:
            return _failed(one, f"the conversation did not come to turn {one.spec.turn} (counted from 0)")
        given = replace(given, transcript=part)
    try:
        found = await one.grader.grade(given)
    except (InfrastructureError, SandboxError):
        raise
    except ValkyrieError as error:
        return _error(one, str(error), error.cause)
    except Exception as error:  # noqa: BLE001 - plugins may raise anything, and a broken grader is no verdict
        return _error(one, f"{type(error).__name__}: {error}")
    own = one.name, one.spec.type, one.weight
    if (found.name, found.type, found.weight) == own:
        return found
    return replace(found, name=one.name, type=one.spec.type, weight=one.weight)


def _failed(one: MadeGrader, evidence: str) -> GraderResult:
    return GraderResult(one.name, one.spec.type, False, 0.0, evidence, weight=one.weight)


def _error(one: MadeGrader, message: str, cause: str = "grader_no_verdict") -> GraderResult:
    """Could not tell; the cause decides whether asking again may help."""
    evidence = clipped(message)
    kind: Kind = "llm" if one.is_judge else "code"
    return GraderResult(
        one.name,
        one.spec.type,
        False,
        0.0,
        evidence,
        kind=kind,
        status="error",
        weight=one.weight,
        details=[{"cause": cause}],
    )


# What the graders of a trial say together.

_ROUNDING = 1e-9


def aggregate(results: Sequence[GraderResult]) -> float:
    """Σ(weight · score) / Σ weight over the graders that speak; 1 when none does."""
    counted = [result for result in results if result.status == "ok"]
    total = sum(result.weight for result in counted)
    if not counted:
        return 1.0
    if total <= 0:
        return sum(result.score for result in counted) / len(counted)
    return sum(result.weight * result.score for result in counted) / total


def verdict(results: Sequence[GraderResult], threshold: float | None = None) -> TrialVerdict:
    """With a threshold: the aggregate reaches it; without: every grader passed. Skipped ones do not count.

    While `errors` of the verdict is not empty, there is none: it has not passed, and nobody failed either.
    """
    score = aggregate(results)
    if any(result.status == "error" for result in results):
        return TrialVerdict(score, False, results)
    if threshold is not None:
        return TrialVerdict(score, score >= threshold - _ROUNDING, results)
    return TrialVerdict(score, all(result.passed for result in results if result.status == "ok"), results)
