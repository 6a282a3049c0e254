"""How much one request may ask for: what is stored of it is read again with every list of runs."""

from __future__ import annotations

import math
import os

from valkyrie.errors import UsageError
from valkyrie.views import RunRequest, UpdateRequest

MOST_TRIALS = 100_000
"""Trials of one run: all of them are planned, in memory, before the first begins."""
LONGEST_TEXT = 1000
MOST_VALUES = 256 * 1024
"""Characters of all parameters, of all names of secrets, of all headers."""
_TEXTS = (
    *("agent", "benchmark", "model", "dataset", "slice", "label", "provider"),
    *("lambda_function", "webhook", "webhook_key", "provider_secret", "model_url"),
)
PRIORITIES = range(5)
_YES = ("1", "true", "yes", "on")


def check_texts(request: RunRequest) -> None:
    """Raise UsageError for a text nobody means to give a run."""
    for name in _TEXTS:
        check_text(name.replace("_", " "), getattr(request, name))
    for name in ("kwargs", "secrets", "headers", "env_vars"):
        if sum(len(key) + len(value) for key, value in getattr(request, name).items()) > MOST_VALUES:
            raise UsageError(f"The {name} have more than {MOST_VALUES:,} characters together.")


def check_text(what: str, text: str | None) -> None:
    """Raise UsageError for a text that is too long to be a name or a label."""
    if text is not None and len(text) > LONGEST_TEXT:
        raise UsageError(f"The {what} has {len(text):,} characters; {LONGEST_TEXT:,} are taken.")


def check_trials(tasks: int, trials: int) -> None:
    """Raise UsageError for a run of more trials than one can have."""
    if tasks * trials > MOST_TRIALS:
        raise UsageError(
            f"{tasks:,} tasks with {trials:,} trials each are more than the {MOST_TRIALS:,} trials a run can "
            "have; choose fewer tasks (--slice), or fewer --trials."
        )


def switched_on(variable: str) -> bool:
    """Return whether the operator's environment says yes."""
    return os.environ.get(variable, "").strip().lower() in _YES


def check_priority(priority: int) -> int:
    """0 (first) to 4 (last), or UsageError."""
    if priority not in PRIORITIES:
        raise UsageError(f"--priority must be 0 (first) to 4 (last), not {priority}.")
    return priority


def check_max_cost(max_cost: float) -> float:
    """A sum of money, or UsageError."""
    if not (math.isfinite(max_cost) and max_cost > 0):
        raise UsageError(f"--max-cost must be above 0 US dollars, not {max_cost:g}.")
    return max_cost


def check_update(request: UpdateRequest) -> None:
    """Raise UsageError for what no run can become."""
    if request.concurrency is not None and request.concurrency < 1:
        raise UsageError(f"--concurrency must be at least 1, not {request.concurrency}.")
    check_text("label", request.label)
    if request.max_cost is not None:
        check_max_cost(request.max_cost)
    if request.priority is not None:
        check_priority(request.priority)
    if request.abort_after is not None and request.abort_after < 0:
        raise UsageError(f"--abort-after must be at least 0, not {request.abort_after}.")
