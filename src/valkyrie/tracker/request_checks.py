"""What no run can be, whatever its agent and tasks are, and what only some may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.registry import PROVIDERS
from valkyrie.errors import UsageError
from valkyrie.nouns import DEFAULT_ORG, VerifyMode
from valkyrie.tracker.bounds import check_max_cost, check_priority, check_texts, switched_on
from valkyrie.tracker.model_access import check_model_url
from valkyrie.views import RunRequest

if TYPE_CHECKING:
    from valkyrie.organisation import Organisation

MOST_STRETCH = 1000.0
"""How far time limits may be stretched: ten minutes become a week."""
UNISOLATED = "VALKYRIE_ALLOW_UNISOLATED"
LONGEST_S = 366 * 86_400.0
"""Seconds; a year."""


def check_request(request: RunRequest, organisation: Organisation, *, allow_local: bool) -> None:
    """UsageError for what is refused before anything is looked at."""
    check_texts(request)
    _check_numbers(request)
    _check_place(request, organisation)
    if request.verify is not None and request.verify not in list(VerifyMode):
        raise UsageError(f"--verify is {' or '.join(VerifyMode)}, not {request.verify!r}.")
    if request.family is not None and not request.family.strip():
        raise UsageError("--family is empty; name a key of the tasks' metadata.")
    check_model_url(request.model_url, trusted=organisation.trusted, allow_local=allow_local)


def _check_numbers(request: RunRequest) -> None:
    for flag, value, least in (
        ("--concurrency", request.concurrency, 1),
        ("--trials", request.trials, 1),
        ("--max-attempts", request.max_attempts or 1, 1),
        ("--abort-after", request.abort_after, 0),
    ):
        if value < least:
            raise UsageError(f"{flag} must be at least {least}, not {value}.")
    if not 0 < request.timeout_multiplier <= MOST_STRETCH:
        raise UsageError(
            f"--timeout-multiplier must be above 0 and at most {MOST_STRETCH:g}, "
            f"not {request.timeout_multiplier:g}."
        )
    if request.agent_timeout is not None and not 0 < request.agent_timeout <= LONGEST_S:
        raise UsageError(
            f"--timeout must be above 0 and at most {LONGEST_S:.0f} seconds, not {request.agent_timeout:g}."
        )
    check_priority(request.priority)
    if request.max_cost is not None:
        check_max_cost(request.max_cost)


def _check_place(request: RunRequest, organisation: Organisation) -> None:
    """Who asks from elsewhere runs no code on a server's bare machine, and leaves no sandboxes on it."""
    if organisation.trusted:
        return
    if request.provider == "process" and not switched_on(UNISOLATED):
        raise UsageError(
            "--provider process isolates nothing, so this tracker does not offer it; its operator can with "
            f"{UNISOLATED}=1. --provider local isolates."
        )
    of_the_machine = not (found := PROVIDERS.get(request.provider)) or not found.settings
    if request.keep_sandbox and of_the_machine and organisation.identity.org_id != DEFAULT_ORG:
        raise UsageError(
            "--keep-sandbox leaves sandboxes on the tracker's machine, where only its own people could look "
            "into them; leave it out. `valk run outputs` has what the agent left."
        )
