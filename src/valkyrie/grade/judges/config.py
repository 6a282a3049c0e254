"""The config of a judge, read and checked once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from valkyrie.grade.config import Config
from valkyrie.grade.judges.scales import DEFAULT, SCALES, Scale
from valkyrie.grade.protocol import Need
from valkyrie.specs.model import GraderSpec
from valkyrie.specs.reading import EFFORTS
from valkyrie.suggest import did_you_mean

EVIDENCE = ("trajectory", "diff", "repo", "golden_patch")
PROVIDERS = ("openai", "anthropic")
AGGREGATIONS = ("majority", "mean", "median", "min")
THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Judge:
    """Who is asked; what is None is as the eval, or the command line, says."""

    model: str | None = None
    provider: str | None = None
    reasoning_effort: str | None = None


@dataclass(frozen=True, slots=True)
class Judging:
    """What is asked, and how the answer counts."""

    prompt: str = ""
    judge: Judge = field(default_factory=Judge)
    scale: Scale = SCALES[DEFAULT]
    threshold: float = THRESHOLD
    evidence: tuple[str, ...] | None = None
    """What must be shown; None shows what there is."""

    @property
    def needs(self) -> frozenset[Need]:
        """What must be there for it to be asked; without a wish, the diff is worth having."""
        wanted = ("diff",) if self.evidence is None else self.evidence
        found = {"diff": Need.DIFF, "repo": Need.WORKSPACE}
        return frozenset({Need.JUDGE, *(found[kind] for kind in wanted if kind in found)})

    def passes(self, normal: float) -> bool:
        """Whether a score of 0..1 reaches the threshold, whatever the last bit says."""
        return normal >= self.threshold - 1e-9


@dataclass(frozen=True, slots=True)
class Panel:
    """Several judges, and how their answers become one."""

    judging: Judging
    judges: tuple[Judge, ...]
    aggregation: str = "majority"


def read_prompt(config: Config) -> Judging:
    """The config of `prompt`; SpecError for one that cannot be used."""
    return _judging(config, _judge(config))


def read_panel(config: Config) -> Panel:
    """The config of `panel`."""
    shared = Judge(None, _choice(config, "provider", PROVIDERS), _choice(config, "reasoning_effort", EFFORTS))
    aggregation = _choice(config, "aggregation", AGGREGATIONS) or _choice(config, "aggregate", AGGREGATIONS)
    return Panel(_judging(config, shared), _judges(config, shared), aggregation or "majority")


def read_pairwise(config: Config) -> Judging:
    """The config of `pairwise`."""
    threshold = config.number("threshold", high=1.0, default=THRESHOLD)
    return Judging(config.text("prompt", default="").strip(), _judge(config), threshold=threshold)


def _judging(config: Config, judge: Judge) -> Judging:
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
        reasoning_effort=_choice(config, "reasoning_effort", EFFORTS),
    )


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
        one = _judge(Config(GraderSpec(config.spec.type, entry, config.spec.name, place=config.spec.place)))
        found.append(
            Judge(
                one.model,
                one.provider or shared.provider,
                one.reasoning_effort or shared.reasoning_effort,
            )
        )
    return tuple(found)
