"""Whatever an attempt raises becomes a category, a cause and one line: the attempt boundary."""

from __future__ import annotations

import errno
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sandboxes.errors import (
    SandboxCapacityError,
    SandboxConnectionError,
    SandboxCrowdedError,
    SandboxDiedError,
    SandboxError,
    SandboxFullError,
    SandboxImageError,
    SandboxNotFoundError,
    SandboxUnsupportedError,
)
from sandboxes.masker import Masker
from valkyrie.agents.protocol import AgentExit, Trouble
from valkyrie.domain import COUNTED_AS_ZERO as COUNTED_AS_ZERO
from valkyrie.domain import Category
from valkyrie.errors import AgentError, SandboxFailedError, ValkyrieError

MESSAGE_LIMIT = 2000
BROKEN = "grader_broken_by_work"
KILLED = "sandbox_killed_by_agent"
SETUP_BROKEN = "setup_broken_by_agent"


NOT_STARTED = "agent_not_started"
_NO_COMMAND = {126: "it cannot be executed", 127: "it, or what interprets it, was not found"}
_UNLOADED = re.compile(
    r"""\A\s*(
        Traceback\ \(most\ recent\ call\ last\):\n(?:[ \t].*\n|\n)*(?:ModuleNotFound|Import)Error\b
        | [ ]{0,2}File\ ".*",\ line\ \d+\n(?:.*\n){0,3}?(?:Syntax|Indentation|Tab)Error\b
        | \S*python[\d.]*:\ (?:can't\ open\ file|No\ module\ named)
        | node:internal/modules/.*\n(?:.*\n){0,6}?Error:\ Cannot\ find\ module
    )""",
    re.VERBOSE,
)
"""What interpreters print first about a program they cannot load."""


def start_failure(ended: AgentExit, heard: str) -> AgentError | None:
    """Return why an agent never started, by its exit code and the beginning of what it printed.

    It counts as 0 and is never tried again, so that nothing is won by looking like one. An agent that used
    its model has started, whatever its last command was.
    """
    if ended.reason is not None or ended.exit_code == 0 or (ended.usage and ended.usage.steps):
        return None
    said = f"The agent did not start: its command ended with exit code {ended.exit_code}"
    if why := _NO_COMMAND.get(ended.exit_code):
        return AgentError(f"{said}, so {why}.", cause=NOT_STARTED)
    if _UNLOADED.match(heard):
        return AgentError(f"{said} and printed {heard.strip().splitlines()[-1]!r}.", cause=NOT_STARTED)
    return None


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why an attempt ended without a grade."""

    category: Category
    cause: str
    message: str
    retry_after: float | None = None


_TROUBLES = {
    "model_refused": Category.AGENT,
    "context_overflow": Category.AGENT,
    "agent_gave_up": Category.AGENT,
    "model_rate_limited": Category.INFRASTRUCTURE,
    "model_unreachable": Category.INFRASTRUCTURE,
    "model_unauthorized": Category.USER,
    "model_unknown": Category.USER,
}
"""Who must act when an agent gave up."""


def category_of(cause: str) -> Category:
    """Return whose trouble it is; one nobody foresaw is the agent's."""
    return _TROUBLES.get(cause, Category.AGENT)


def is_graded(cause: str) -> bool:
    """Return whether an agent in this trouble had its chance, so that what it left is graded."""
    return category_of(cause) is Category.AGENT


class TroubleError(Exception):
    """The agent gave up for a reason that says nothing about it."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


def failure_of(trouble: Trouble, masker: Masker | None = None) -> AttemptFailure:
    """The agent's trouble as what is recorded of an attempt."""
    message = masker.text(trouble.message) if masker else trouble.message
    return AttemptFailure(
        category_of(trouble.cause), trouble.cause, message[:MESSAGE_LIMIT], trouble.retry_after
    )


class PhaseTimeoutError(Exception):
    """A phase took longer than it may."""

    def __init__(self, phase: str, seconds: float) -> None:
        super().__init__(f"{phase} took longer than {seconds:g} s")
        self.phase = phase


OF_FILES = frozenset(
    {
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EILSEQ),
        *(errno.EOVERFLOW, errno.ENXIO, errno.EACCES, errno.EPERM, errno.ENODATA),
    }
)
"""What the shape of files brings about, and not the machine they are on."""


@contextmanager
def blamed_on_agent() -> Iterator[None]:
    """Turn failures of a sandbox an agent works or worked in into errors of the agent.

    What the host saw outside the sandbox stays what it is: a provider that cannot be reached or has no room,
    a sandbox whose end was caused outside it. Names and folders that make our own reading of them fail are
    the agent's.
    """
    try:
        yield
    except (SandboxUnsupportedError, SandboxConnectionError, SandboxCapacityError):
        raise
    except (SandboxFullError, SandboxCrowdedError):
        raise  # `classify` has causes of their own for these
    except SandboxDiedError as error:
        if error.outside:
            raise
        raise AgentError(f"The sandbox ended while the agent had it: {error}", cause=KILLED) from error
    except (SandboxError, SandboxFailedError) as error:
        raise AgentError(f"The agent's sandbox cannot be used any more: {error}", cause=KILLED) from error
    except PhaseTimeoutError as error:
        if error.phase not in ("agent", "carry"):
            raise
        raise AgentError(f"The agent's processes do not end: {error}", cause=KILLED) from error
    except (OSError, UnicodeError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno not in OF_FILES:
            raise
        message = f"What the agent left cannot be read: {type(error).__name__}: {error}"
        raise AgentError(message[:MESSAGE_LIMIT], cause=KILLED) from error


_PHASE_TIMEOUTS = {
    "equip": (Category.INFRASTRUCTURE, "agent_fetch_failed"),
    "build": (Category.INFRASTRUCTURE, "sandbox_timeout"),
    "setup": (Category.BENCHMARK, "setup_timeout"),
    "install": (Category.AGENT, "agent_install_timeout"),
    "agent": (Category.INFRASTRUCTURE, "sandbox_failed"),
    "collect": (Category.AGENT, "agent_output_missing"),
    "carry": (Category.INFRASTRUCTURE, "sandbox_failed"),
    "grade": (Category.BENCHMARK, "grader_timeout"),
}


def classify(error: BaseException, masker: Masker | None = None) -> AttemptFailure:
    """Return who must act, and what to tell them; no secret is told."""
    message = str(error).strip() or type(error).__name__
    # A file name or a grader's words may hold half a character, which no database takes.
    message = message.encode("utf-8", "replace").decode()
    message = masker.text(message) if masker else message
    message = message if len(message) <= MESSAGE_LIMIT else message[:MESSAGE_LIMIT] + " …"
    match error:
        case ValkyrieError():
            return AttemptFailure(error.category, error.cause, message, error.retry_after)
        case TroubleError():
            return failure_of(error.trouble, masker)
        case PhaseTimeoutError():
            category, cause = _PHASE_TIMEOUTS.get(error.phase, (Category.INTERNAL, "internal"))
            return AttemptFailure(category, cause, message)
        case SandboxImageError():
            return AttemptFailure(Category.BENCHMARK, "task_image_broken", message)
        case SandboxUnsupportedError():
            return AttemptFailure(Category.USER, "sandbox_unsupported", message)
        case SandboxCapacityError():
            return AttemptFailure(Category.INFRASTRUCTURE, "sandbox_capacity", message, error.retry_after)
        case SandboxNotFoundError():
            return AttemptFailure(
                Category.INFRASTRUCTURE, "sandbox_failed", f"The sandbox was lost: {message}"
            )
        case SandboxFullError():
            return AttemptFailure(
                Category.AGENT, "agent_filled_disk", f"The sandbox's disk is full: {message}"
            )
        case SandboxCrowdedError():
            return AttemptFailure(Category.AGENT, "agent_output_missing", message)
        case SandboxError():
            return AttemptFailure(Category.INFRASTRUCTURE, "sandbox_failed", message)
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return AttemptFailure(Category.INFRASTRUCTURE, "disk_full", f"The host's disk is full: {message}")
        case OSError() | sqlite3.Error():
            return AttemptFailure(
                Category.INFRASTRUCTURE, "infrastructure", f"{type(error).__name__}: {message}"
            )
        case _:
            return AttemptFailure(Category.INTERNAL, "internal", f"{type(error).__name__}: {message}")
