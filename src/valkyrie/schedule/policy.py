"""One table: what each way of failing means, and what is done about it.

Used by the scheduler (retry or not, and when), the score (what is open) and the reports alike;
docs/concepts/failures is generated from it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from valkyrie.domain import Category

MOST_ASKED_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What is done when an attempt ends this way."""

    category: Category
    cause: str
    meaning: str
    by_agent: str = "no"
    """Can an agent bring it about? `yes` counts as 0 and is never tried again; `no` may say why not."""
    attempts: int = 1
    """Attempts in all before the trial stands in ERROR; 1 is no retry."""
    base_s: float = 2.0
    """First back-off; doubles each time, with full jitter, and never holds a slot."""
    most_s: float = 60.0

    @property
    def retryable(self) -> bool:
        """Trying again by hand may well help."""
        return self.attempts > 1

    @property
    def agent_can(self) -> bool:
        return self.by_agent.startswith("yes")


_A, _B, _I, _U, _X = (
    Category.AGENT,
    Category.BENCHMARK,
    Category.INFRASTRUCTURE,
    Category.USER,
    Category.INTERNAL,
)

_YES = "yes: counts as 0"
_CONTROLLED = "no: a control without its work fails, too"
_BEFORE = "no: it is over before the agent starts, or works without it"
_UNWORKED = "no: believed only of an agent that did nothing yet; later it is graded"

TABLE: tuple[Policy, ...] = (
    Policy(
        _A,
        "grader_broken_by_work",
        "Grading gave no verdict on the agent's work, and gave one without it. Score 0.",
        _YES,
    ),
    Policy(
        _A,
        "grader_tokens_unreported",
        "A grader asks how many tokens were used, and the agent reported none. Score 0.",
        _YES,
    ),
    Policy(
        _A,
        "sandbox_killed_by_agent",
        "The sandbox ended or became useless after the agent started, and nothing outside it was the cause. "
        "Score 0.",
        _YES,
    ),
    Policy(
        _A,
        "setup_broken_by_agent",
        "Setting up a later step failed after the agent was there, and works without it. Score 0.",
        _YES,
    ),
    Policy(
        _A,
        "agent_failed",
        "The agent's command ended with a non-zero code and --on-agent-failure error was given.",
        _YES,
    ),
    Policy(
        _A,
        "agent_not_started",
        "The agent's command is not there or cannot be run (exit code 126 or 127), or could not load itself.",
        _YES,
    ),
    Policy(_A, "agent_timeout", "The agent of an eval took longer than it may.", _YES),
    Policy(_A, "agent_install_failed", "install_cmd failed.", _YES),
    Policy(_A, "agent_install_timeout", "install_cmd took longer than it may.", _YES),
    Policy(_A, "agent_filled_disk", "The agent left its sandbox without room for what comes after it.", _YES),
    Policy(_A, "agent_output_missing", "A required output artifact is missing or too large.", _YES),
    Policy(_A, "model_refused", "The model refused to go on. Graded all the same.", _YES),
    Policy(_A, "context_overflow", "The agent outgrew its model's context. Graded all the same.", _YES),
    Policy(_A, "agent_gave_up", "The agent said that it failed. Graded all the same.", _YES),
    Policy(_B, "benchmark", "The benchmark could not do its part.", _CONTROLLED),
    Policy(_B, "task_broken", "The task's own files are wrong."),
    Policy(_B, "task_image_broken", "The task's image cannot be built, or does not start.", _BEFORE),
    Policy(_B, "task_setup_failed", "Setting the task up failed.", _BEFORE),
    Policy(_B, "task_unhealthy", "The task's health check did not pass.", _BEFORE, attempts=2),
    Policy(_B, "setup_timeout", "Setting the task up took longer than it may.", _BEFORE, attempts=2),
    Policy(_B, "grader_no_verdict", "Grading ran and left no usable reward. Never a zero.", _CONTROLLED),
    Policy(_B, "judge_no_verdict", "A judge answered without a verdict.", _CONTROLLED, attempts=2),
    Policy(_B, "judge_refused_question", "A judge's server refused what it was asked.", _CONTROLLED),
    Policy(_B, "judge_too_long", "What a judge is to read is too long for its model.", _CONTROLLED),
    Policy(_B, "grader_start_failed", "The grader could not be started.", _CONTROLLED),
    Policy(_B, "grader_timeout", "Grading took longer than it may.", _CONTROLLED),
    Policy(_B, "service_failed", "The benchmark service said that it failed.", _CONTROLLED),
    Policy(_B, "service_refused", "The benchmark service refused a request about this task.", _CONTROLLED),
    Policy(
        _B, "service_protocol", "The benchmark service sent something that is not its protocol.", _CONTROLLED
    ),
    Policy(
        _I,
        "service_unreachable",
        "The benchmark service did not answer, or the connection broke.",
        attempts=5,
        base_s=3.0,
    ),
    Policy(_I, "service_busy", "The benchmark service had no room.", attempts=10, base_s=5.0, most_s=120.0),
    Policy(_I, "service_silent", "The benchmark service said nothing for too long.", attempts=2),
    Policy(_I, "infrastructure", "Machine, network or disk failed.", attempts=3),
    Policy(
        _I,
        "model_rate_limited",
        "The model's server asked the agent to slow down until it gave up.",
        _UNWORKED,
        attempts=6,
        base_s=15.0,
        most_s=300.0,
    ),
    Policy(
        _I,
        "model_unreachable",
        "The model's server failed, was overloaded, or the connection broke.",
        _UNWORKED,
        attempts=4,
        base_s=5.0,
        most_s=120.0,
    ),
    Policy(
        _I,
        "judge_unreachable",
        "A judge's model failed, was overloaded, or the connection broke.",
        attempts=6,
        base_s=2.0,
        most_s=60.0,
    ),
    Policy(_I, "agent_fetch_failed", "The agent's packages could not be fetched.", attempts=3, base_s=5.0),
    Policy(
        _I,
        "sandbox_failed",
        "The sandbox could not be made, or ended for a cause that was seen outside it.",
        "no: what it causes is sandbox_killed_by_agent",
        attempts=3,
    ),
    Policy(_I, "sandbox_capacity", "The provider had no room.", attempts=8, base_s=5.0, most_s=120.0),
    Policy(_I, "sandbox_timeout", "Making the sandbox took longer than it may.", attempts=3),
    Policy(
        _I,
        "disk_full",
        "The host's disk is full.",
        "no: what it may leave on the host is limited",
        attempts=4,
        base_s=15.0,
        most_s=120.0,
    ),
    Policy(
        _I,
        "artifacts",
        "What the attempt left could not be put where artifacts are kept.",
        attempts=4,
        base_s=10.0,
        most_s=120.0,
    ),
    Policy(_I, "lease_lost", "Another executor took the trial over.", attempts=3),
    Policy(_U, "user", "What was asked cannot be done as asked."),
    Policy(_U, "task_changed", "The task's files changed after the run was planned."),
    Policy(_U, "missing_variable", "A task names a host variable that is not set."),
    Policy(_U, "sandbox_unsupported", "The provider cannot give what the task needs."),
    Policy(_U, "bundle", "The frozen agent is missing or damaged."),
    Policy(_U, "agent_layer_changed", "The installed agent is not what was installed."),
    Policy(_U, "artifacts_config", "The place for artifacts is not there, or may not be written."),
    Policy(_U, "missing_secret", "A secret has no value."),
    Policy(
        _U,
        "model_unauthorized",
        "The model's server does not take the key, or has no credit for it.",
        _UNWORKED,
    ),
    Policy(_U, "model_unknown", "The model's server does not know the model.", _UNWORKED),
    Policy(_U, "judge_refused", "A judge's server does not take the key, or does not know the model."),
    Policy(_U, "service_unauthorized", "The benchmark service does not take our credential."),
    Policy(_U, "service_forbidden", "The benchmark service does not let us use this dataset."),
    Policy(_X, "internal", "A defect in Valkyrie. Please report it.", "not known: never tried again"),
)

_FALLBACK = {_A: "agent_failed", _B: "benchmark", _I: "infrastructure", _U: "user", _X: "internal"}


@cache
def _by_cause() -> dict[str, Policy]:
    return {policy.cause: policy for policy in TABLE}


def policy_for(category: Category, cause: str) -> Policy:
    """The row for a cause; an unknown cause follows its category's own row."""
    found = _by_cause().get(cause)
    return found if found and found.category is category else _by_cause()[_FALLBACK[category]]


def backoff(policy: Policy, failures: int, retry_after: float | None, rng: random.Random) -> float:
    """Seconds to wait before the next attempt after `failures` failed ones: exponential, fully jittered.

    What the other side asked for (Retry-After) is a floor, of a day at most: every run must come to its end.
    """
    ceiling = min(policy.most_s, policy.base_s * 2.0 ** max(0, failures - 1))
    waited = rng.uniform(ceiling / 4, ceiling)
    return max(waited, min(retry_after or 0.0, MOST_ASKED_S))
