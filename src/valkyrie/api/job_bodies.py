"""What requests about jobs may carry: the verbs' own request objects, strictly read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Body
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from valkyrie.api.bodies import Strictly
from valkyrie.job_views import (
    DEFAULT_CONCURRENCY,
    DEFAULT_ERROR_RATE,
    JobAgent,
    JobChange,
    JobRequest,
    JobRetry,
    JobStop,
)
from valkyrie.tracker.bounds import LONGEST_TEXT
from valkyrie.views import RunRequest
from valkyrie.views.requests import AtLeastOne


def _left_out(text: str) -> str:
    if text:
        raise PydanticCustomError("left_out", "agents of a job and their models are named in its `agents`")
    return text


MOST_AGENTS = 50
"""All runs of a job are read with every look at it."""
MOST_SCENARIOS = 100_000
MOST_BENCHMARKS = 50
MOST_METADATA = 64
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Agents = Annotated[Sequence[Annotated[JobAgent, Strictly()]], Field(max_length=MOST_AGENTS)]
Scenarios = Annotated[Sequence[Text], Field(max_length=MOST_SCENARIOS)]
LeftOut = Annotated[str, AfterValidator(_left_out)]


@dataclass(frozen=True, slots=True)
class RunTemplate(RunRequest):
    """What all runs of a job have in common: a RunRequest without its agent and model."""

    agent: LeftOut = ""
    """Left out: a job's agents are named in `agents`."""
    benchmark: str = ""
    """Left out where `scenarios` are named."""
    model: LeftOut | None = None
    """Left out, as the agent is."""


@dataclass(frozen=True, slots=True)
class JobStart(JobRequest):
    """Agents × tasks × trials, asked for."""

    agents: Agents
    template: Annotated[RunTemplate, Strictly()] = field(default_factory=RunTemplate)
    """What all its runs have in common."""
    scenarios: Scenarios = ()
    """`task` or `benchmark[@dataset]/task`, instead of the template's benchmark."""
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Made of the benchmark and the time, unless said."""
    concurrency: AtLeastOne = DEFAULT_CONCURRENCY
    """Trials at once, of all its runs together."""
    metadata: Annotated[Mapping[Text, Text], Field(max_length=MOST_METADATA)] = field(default_factory=dict)
    """Words of the caller's, kept with the job."""
    time_limit: float | None = None
    """Seconds after which nothing more of the job begins; null is no limit."""
    stop_when_decided: bool = False
    """Run no trials that cannot change who is ahead."""
    margin: float | None = None
    """With stop_when_decided: that agents are no further apart than this, of 1, is an answer as well."""
    error_rate: float = DEFAULT_ERROR_RATE
    """With stop_when_decided: how often an answer may be wrong, over all looks and pairs together."""
    benchmarks: Annotated[Sequence[Text], Field(max_length=MOST_BENCHMARKS)] = ()
    """Several benchmarks instead of the template's one; each agent has a run on each."""


@dataclass(frozen=True, slots=True)
class JobResume(JobChange):
    """What is different when a job goes on. Everything left out stays as it was."""

    agents: Agents = ()
    """Added to those it has."""
    scenarios: Scenarios = ()
    """Tasks added to those it has; `all` is every task of its benchmark."""
    trials: AtLeastOne | None = None
    """Trials of each task; never fewer than before."""
    concurrency: AtLeastOne | None = None
    time_limit: float | None = None
    """Counted from now."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """For the benchmark's service; given again, because they are not stored."""


JobBody = Annotated[JobStart, Strictly()]
# These may be left out: nothing in them must be said.
JobStopBody = Annotated[JobStop, Strictly(), Body(default_factory=JobStop)]
JobResumeBody = Annotated[JobResume, Strictly(), Body(default_factory=JobResume)]
JobRetryBody = Annotated[JobRetry, Strictly(), Body(default_factory=JobRetry)]
