"""Configs of graders that ask a judge, and the scales they are graded on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from valkyrie.grade.base import Config
from valkyrie.grade.protocol import Need
from valkyrie.specs.model import GraderSpec, Stimulus
from valkyrie.specs.reader import EFFORT_FORM, EFFORTS
from valkyrie.text import did_you_mean


@dataclass(frozen=True, slots=True)
class Scale:
    """From `low`, the worst, to `high`, the best; `whole` has nothing in between."""

    name: str
    low: int
    high: int
    words: str
    """What a judge is told about it."""
    whole: bool = False

    def read(self, value: Any) -> float | None:
        """A score as a judge gave it; None for what is none on this scale."""
        if isinstance(value, bool):
            return float(value) if self.whole else None
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return None
        if not isinstance(value, int | float) or not math.isfinite(value):
            return None
        if not self.low <= value <= self.high or (self.whole and value not in (self.low, self.high)):
            return None
        return float(value)

    def normal(self, score: float) -> float:
        """The score as 0..1."""
        return (score - self.low) / (self.high - self.low)

    def said(self, score: float) -> str:
        """The score as people write it: `4/5`."""
        if self.whole:
            return "yes" if score == self.high else "no"
        return f"{score:g}/{self.high}"


SCALES: Mapping[str, Scale] = {
    "binary": Scale("binary", 0, 1, "0 (the criterion is not met) or 1 (it is met), nothing else", True),
    "scale_1_5": Scale("scale_1_5", 1, 5, "from 1 (not met at all) to 5 (fully met)"),
    "scale_1_10": Scale("scale_1_10", 1, 10, "from 1 (not met at all) to 10 (fully met)"),
}
DEFAULT = "scale_1_5"


# The config of a judge, read and checked once.

EVIDENCE = ("trajectory", "diff", "repo", "golden_patch")
PROVIDERS = ("openai", "anthropic")
AGGREGATIONS = ("mean", "median", "majority", "min", "unanimous")
THRESHOLD = 0.5
BUILT_IN_RUBRIC = (
    "The agent did what the task asks, and all of it.",
    "What the agent says and leaves behind is correct.",
    "The agent claims nothing that the evidence does not bear out.",
)
"""What a judge goes by where the author wrote neither a rubric nor a prompt."""
_CRITERION_KEYS = ("name", "description", "weight", "pass_threshold", "required")


@dataclass(frozen=True, slots=True)
class Judge:
    """Who is asked; what is None is as the eval, or the command line, says."""

    model: str | None = None
    provider: str | None = None
    reasoning_effort: str | None = None


@dataclass(frozen=True, slots=True)
class PanelCriterion:
    """One criterion of a panel's own."""

    name: str
    """What judges answer with."""
    description: str = ""
    weight: float = 1.0
    pass_threshold: float = THRESHOLD
    required: bool = False

    @property
    def text(self) -> str:
        return f"{self.name}: {self.description}" if self.description else self.name


@dataclass(frozen=True, slots=True)
class Judging:
    """What is asked, and how the answer counts."""

    prompt: str = ""
    judge: Judge = field(default_factory=Judge)
    scale: Scale = SCALES[DEFAULT]
    threshold: float = THRESHOLD
    evidence: tuple[str, ...] | None = None
    """What must be shown; None shows what there is."""
    criteria: tuple[PanelCriterion, ...] = ()
    """In place of the stimulus's rubric."""

    @property
    def needs(self) -> frozenset[Need]:
        """What must be there for it to be asked; without a wish, the diff is worth having."""
        wanted = ("diff",) if self.evidence is None else self.evidence
        found = {"diff": Need.DIFF, "repo": Need.WORKSPACE, "golden_patch": Need.GOLDEN_PATCH}
        return frozenset({Need.JUDGE, *(found[kind] for kind in wanted if kind in found)})

    def passes(self, normal: float) -> bool:
        """Return whether a score of 0..1 reaches the threshold."""
        return reaches(normal, self.threshold)

    def rubric(self, stimulus: Stimulus) -> tuple[str, ...]:
        """Return what each answer scores one by one; the built-in criteria where nobody wrote any."""
        if self.criteria:
            return tuple(one.text for one in self.criteria)
        return stimulus.rubric or (() if self.prompt else BUILT_IN_RUBRIC)


def reaches(score: float, threshold: float) -> bool:
    """Return whether a score is at least the threshold, whatever the last bit says."""
    return score >= threshold - 1e-9


@dataclass(frozen=True, slots=True)
class Panel:
    """Several judges, and how their answers become one."""

    judging: Judging
    judges: tuple[Judge, ...]
    aggregation: str = "mean"
    overall_threshold: float | None = None
    """What the panel's score must reach; None: as the aggregation says."""


def read_prompt(config: Config) -> Judging:
    """The config of `prompt`; SpecError for one that cannot be used."""
    return _judging(config, _judge(config))


def read_panel(config: Config) -> Panel:
    shared = Judge(None, _choice(config, "provider", PROVIDERS), _effort(config))
    aggregation = _choice(config, "aggregation", AGGREGATIONS) or _choice(config, "aggregate", AGGREGATIONS)
    judging = _judging(config, shared)
    return Panel(
        replace(judging, criteria=_criteria(config, judging.threshold)),
        _judges(config, shared),
        aggregation or "mean",
        config.number("overall_threshold", high=1.0, default=None),
    )


def read_pairwise(config: Config) -> Judging:
    threshold = config.number("threshold", high=1.0, default=THRESHOLD)
    return Judging(config.text("prompt", default="").strip(), _judge(config), threshold=threshold)


def _criteria(config: Config, threshold: float) -> tuple[PanelCriterion, ...]:
    if not config.has("criteria"):
        return ()
    listed = config.value("criteria")
    if not isinstance(listed, list) or not listed:
        raise config.wrong("`criteria` must list at least one {name, description, …}.")
    found = [_criterion(config, entry, threshold) for entry in listed]
    names = [one.name for one in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise config.wrong(f"two of `criteria` are called {twice!r}; judges score them by name.")
    return tuple(found)


def _criterion(config: Config, entry: Any, threshold: float) -> PanelCriterion:
    if not isinstance(entry, dict):
        raise config.wrong(f"`criteria` has {entry!r}; an entry is {{name, description, …}}.")
    config.refuse_others("an entry of `criteria`", entry, _CRITERION_KEYS)
    own = Config(GraderSpec(config.spec.type, entry, config.spec.name, place=config.spec.place))
    return PanelCriterion(
        own.text("name").strip(),
        own.text("description", default="").strip(),
        own.number("weight", default=1.0),
        own.number("pass_threshold", high=1.0, default=threshold),
        own.flag("required"),
    )


def _judging(config: Config, judge: Judge) -> Judging:
    if _choice(config, "output_delivery", ("workspace", "inline")) == "inline":
        raise config.wrong("`output_delivery: inline` is no longer taken; leave the key out.")
    return Judging(
        prompt=config.text("prompt", default="").strip(),
        judge=judge,
        scale=SCALES[_choice(config, "scoring", SCALES) or DEFAULT],
        threshold=config.number("threshold", high=1.0, default=THRESHOLD),
        evidence=_evidence(config),
    )


def _judge(config: Config) -> Judge:
    return Judge(
        model=config.text("model", default=None),
        provider=_choice(config, "provider", PROVIDERS),
        reasoning_effort=_effort(config),
    )


def _effort(config: Config) -> str | None:
    value: str | None = config.text("reasoning_effort", default=None)
    if value is not None and not EFFORT_FORM.fullmatch(value):
        known = ", ".join(EFFORTS)
        raise config.wrong(f"`reasoning_effort` is a word such as {known}, not {value!r}.")
    return value


def _choice(config: Config, key: str, known: Iterable[str]) -> str | None:
    value: str | None = config.text(key, default=None)
    if value is not None and value not in known:
        hint = did_you_mean(value, known) or f" It is one of {', '.join(known)}."
        raise config.wrong(f"no `{key}` is called {value!r}.{hint}")
    return value


def _evidence(config: Config) -> tuple[str, ...] | None:
    if not config.has("evidence"):
        return None
    listed = config.texts("evidence")
    if not listed:
        raise config.wrong(
            f"`evidence` is empty; list some of {', '.join(EVIDENCE)}, or leave it out to show what there is."
        )
    for item in listed:
        if item not in EVIDENCE:
            hint = did_you_mean(item, EVIDENCE) or f" It is one of {', '.join(EVIDENCE)}."
            raise config.wrong(f"no `evidence` is called {item!r}.{hint}")
    return tuple(dict.fromkeys(listed))


def _judges(config: Config, shared: Judge) -> tuple[Judge, ...]:
    """`models` or `judges`: names, or objects with `model`."""
    if config.has("models") and config.has("judges"):
        raise config.wrong("`models` and `judges` mean the same; write one of them.")
    listed = config.value("models", "judges")
    if not isinstance(listed, list) or not listed:
        raise config.wrong("`models` must list the judges: names of models, or objects with `model`.")
    found = []
    for item in listed:
        entry = {"model": item} if isinstance(item, str) else item
        if not isinstance(entry, dict) or not entry.get("model"):
            raise config.wrong("each of `models` is the name of a model, or an object with `model`.")
        config.refuse_others("an entry of `models`", entry, ("model", "provider", "reasoning_effort"))
        one = _judge(Config(GraderSpec(config.spec.type, entry, config.spec.name, place=config.spec.place)))
        found.append(
            Judge(
                one.model,
                one.provider or shared.provider,
                one.reasoning_effort or shared.reasoning_effort,
            )
        )
    return tuple(found)
