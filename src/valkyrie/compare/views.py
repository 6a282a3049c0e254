"""What a comparison of runs found, as plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from valkyrie.domain import Json
from valkyrie.report.statistics.anytime import AnytimeStanding
from valkyrie.report.statistics.power import Needed

Metric = Literal["score", "pass"]
Verdict = Literal["better", "worse", "unclear", "same", "nothing"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks, with what it was taken over."""

    mean: float | None
    interval: tuple[float, float] | None
    method: str
    """How the interval was found, or why there is none."""
    tasks: int
    trials: int
    """The denominator."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The same question over three denominators, always by name."""

    all_trials: Estimate
    """Every planned trial; one without a grade counts 0."""
    graded_only: Estimate
    infrastructure_excluded: Estimate
    """What the agent answers for: graded trials, and errors of its own, which count 0. The leading one."""


@dataclass(frozen=True, slots=True)
class RepeatScores:
    """What several trials of each task say."""

    pass_at: Sequence[float]
    """pass@1, pass@2, …: at least one of k trials passes."""
    pass_all: Sequence[float]
    """pass^1, pass^2, …: all of k trials pass."""
    fewest: Sequence[str]
    """Tasks with fewer trials than others, which end both lists; empty when all have as many."""
    excluded: Sequence[str]
    """Tasks without any trial that counts."""
    flaky: Sequence[str]
    """Tasks that passed and failed."""
    flaky_of: int
    """Tasks with two trials or more."""
    pass_at_intervals: Sequence[tuple[float, float] | None] = ()
    """95 %, over tasks, of the numbers of `pass_at` for k = 1, 2, 4, … and the last; None for the others."""
    pass_all_intervals: Sequence[tuple[float, float] | None] = ()
    flakiness: float | None = None
    """The chance that two trials of a task disagree; None where no task has two."""

    @property
    def flaky_share(self) -> float | None:
        """None where no task has two trials."""
        return len(self.flaky) / self.flaky_of if self.flaky_of else None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One agent on one task."""

    mean: float | None
    """None where nothing counts."""
    trials: int
    """That count."""
    passed: int
    why: str | None
    """Why nothing counts: an error's category, or `not run`."""


@dataclass(frozen=True, slots=True)
class AgentSummary:
    """One run, as one of the agents that are compared."""

    run_id: str
    name: str
    """What it is called here; no other one is called so."""
    agent: str
    model: str | None
    benchmark: str
    dataset: str
    state: str
    ended: bool
    fraction: bool
    """Numbers are 0..1 and print as per cent."""
    scores: Scores
    planned: int
    graded: int
    passed: int | None
    """None where the benchmark does not speak of passing."""
    errors: Mapping[str, int]
    """Trials in error, by category."""
    not_run: int
    """Trials that were stopped, or have not ended."""
    repeats: RepeatScores
    tasks: Mapping[str, TaskResult]
    ungraded: int = 0
    """Trials that say nothing about the agent: they failed for other reasons, or have not ended."""
    score_low: float | None = None
    """The score if every ungraded trial had failed; None where numbers are no fractions."""
    score_high: float | None = None
    """The score if every ungraded trial had passed."""
    score_confirmed: float | None = None
    """Over every planned trial, if only what was seen in a fresh sandbox counts; None: not known."""
    confirmed: int = 0
    """Passes that were seen in a fresh sandbox."""
    unconfirmed: int | None = None
    """Passes that were only seen in the sandbox the agent left; None: not known."""
    open_to_tampering: int = 0
    """Graded trials whose tests ran in the sandbox the agent left, or beside its processes."""
    families: int | None = None
    """How many families its tasks are of; None where no families are known."""
    second_tries: int = 0
    """Trials that had counted as ended by the agent's doing, and were tried again on demand."""
    ingested: bool = False
    """Its trials ran elsewhere, and its scores are what a file said."""
    exit_codes: Mapping[str, int] = field(default_factory=dict)
    """How many agents ended by themselves with each exit code but 0."""
    rank: int = 1
    """Among those on the same benchmark, by the lower end of the score."""

    @property
    def has_range(self) -> bool:
        """Whether its score depends on trials that were not graded, and nothing more will change that."""
        return self.ended and self.ungraded > 0 and self.score_low is not None


@dataclass(frozen=True, slots=True)
class ComparisonBound:
    """What a comparison would say had the trials that one side lacks all ended in one way."""

    difference: float
    interval: tuple[float, float] | None
    p_value: float
    alike: bool
    """The same result on every task."""
    tasks: int
    verdict: Verdict = "unclear"
    limits: tuple[float, float] | None = None
    """One-sided 95 % limits of the difference; each holds alone."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B on the tasks both have; `difference` is A minus B. Without such tasks, no numbers."""

    a: str
    b: str
    a_run: str
    b_run: str
    excluded: Mapping[str, Sequence[str]]
    """Tasks left out, by reason: an error's category, not run, no number, only A, only B, content."""
    fraction: bool
    ended: bool
    """Both runs have."""
    verdict: Verdict = "nothing"
    """better: A beats B; worse: B beats A; unclear; same; nothing: nothing to compare."""
    tasks: int = 0
    """In common, with a result on both sides."""
    difference: float | None = None
    interval: tuple[float, float] | None = None
    interval_method: str | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    """After Holm's correction; the same as `p_value` for a single comparison."""
    comparisons: int = 1
    """How many were made together."""
    test: str | None = None
    won: Sequence[str] = ()
    """Tasks A did better on."""
    lost: Sequence[str] = ()
    needed: Needed | None = None
    a_lacks: int = 0
    """Trials B has and A has not, for reasons that are not A's doing."""
    b_lacks: int = 0
    seen: Verdict = "nothing"
    """What the tasks in common alone would say."""
    undecided: bool = False
    """They would say something that does not hold for every way the lacking trials could have ended."""
    lowest: ComparisonBound | None = None
    """Had all that A lacks failed and all that B lacks passed; None where nothing is lacking, or scores are
    no fractions."""
    highest: ComparisonBound | None = None
    """Had all that A lacks passed and all that B lacks failed."""
    limits: tuple[float, float] | None = None
    """One-sided 95 % limits of the difference; each holds alone."""
    margin: float | None = None
    """A difference that counts as none, where one was stated; else 2 points do."""
    families: int | None = None
    """How many families the tasks in common are of; None where no families are known."""
    anytime: AnytimeStanding | None = None
    """What holds whenever one looks; None where both runs ended by themselves, or scores are no fractions."""

    @property
    def drop(self) -> float:
        """How much lower B is, in points; 0 when it is not."""
        return max(0.0, (self.difference or 0.0) * (100 if self.fraction else 1))


@dataclass(frozen=True, slots=True)
class Summary:
    """Agents beside each other, and which differences are more than chance."""

    metric: Metric
    agents: Sequence[AgentSummary]
    comparisons: Sequence[Comparison]


def summary_json(summary: Summary, sentences: Sequence[str], *, tasks: bool = False) -> Json:
    """As plain JSON data; `sentences` are those of its comparisons."""
    told = summary if tasks else replace(summary, agents=[replace(one, tasks={}) for one in summary.agents])
    data: Json = asdict(told)
    for agent, view in zip(data["agents"], summary.agents, strict=True):
        agent["repeats"]["flaky_share"] = view.repeats.flaky_share
        if not tasks:
            del agent["tasks"]
    for comparison, sentence in zip(data["comparisons"], sentences, strict=True):
        comparison["sentence"] = sentence
    return data
