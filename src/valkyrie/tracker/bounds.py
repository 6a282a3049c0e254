"""How much one request may ask for: what is stored of it is read again with every list of runs."""

from __future__ import annotations

import os

from valkyrie.errors import UsageError
from valkyrie.views import RunRequest

MOST_TRIALS = 100_000
"""Trials of one run: all of them are planned, in memory, before the first begins."""
LONGEST_TEXT = 1000
MOST_VALUES = 256 * 1024
"""Characters of all parameters, of all names of secrets, of all headers."""
_TEXTS = (
    *("agent", "benchmark", "model", "dataset", "slice", "label", "provider"),
    *("lambda_function", "webhook", "webhook_key", "provider_secret", "model_url"),
)
_YES = ("1", "true", "yes", "on")


def check_texts(request: RunRequest) -> None:
    """UsageError for a text nobody means to give a run."""
    for name in _TEXTS:
        check_text(name.replace("_", " "), getattr(request, name))
    for name in ("kwargs", "secrets", "headers", "env_vars"):
        if sum(len(key) + len(value) for key, value in getattr(request, name).items()) > MOST_VALUES:
            raise UsageError(f"The {name} have more than {MOST_VALUES:,} characters together.")


def check_text(what: str, text: str | None) -> None:
    """UsageError for a text that is too long to be a name or a label."""
    if text is not None and len(text) > LONGEST_TEXT:
        raise UsageError(f"The {what} has {len(text):,} characters; {LONGEST_TEXT:,} are taken.")


def check_trials(tasks: int, trials: int) -> None:
    """UsageError for a run of more trials than one can have."""
    if tasks * trials > MOST_TRIALS:
        raise UsageError(
            f"{tasks:,} tasks with {trials:,} trials each are more than the {MOST_TRIALS:,} trials a run can "
            "have; choose fewer tasks (--slice), or fewer --trials."
        )


def switched_on(variable: str) -> bool:
    """Whether the operator's environment says yes."""
    return os.environ.get(variable, "").strip().lower() in _YES
