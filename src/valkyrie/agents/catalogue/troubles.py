"""From what an agent says went wrong with its model to a cause of schedule.policy's table."""

from __future__ import annotations

import re

from valkyrie.agents.protocol import Trouble

MOST_MESSAGE = 500
_STATUS = re.compile(r"(?:\b(?:status|error|code|http)\b\D{0,12}|^\s*)([45]\d\d)\b", re.IGNORECASE)
_AFTER = re.compile(
    r"(?:retry|try again)[-\s_]*(?:after|in)\W{0,3}(\d{1,5}(?:\.\d+)?)\s*(ms|s|sec|seconds?|m|minutes?)?\b",
    re.I,
)

_WORDS: tuple[tuple[str, str], ...] = (
    (
        "context_overflow",
        r"prompt (?:is|as) too long|context[ _]?(?:length|window)|maximum context|too many (?:input )?tokens"
        r"|input (?:is|was) too long|exceeds? the (?:maximum|max)(?: number of)? (?:input )?tokens"
        r"|input token count|request_too_large",
    ),
    (
        "model_unauthorized",
        r"credit balance|insufficient[_ ]quota|billing|exceeded your current quota"
        r"|invalid[ _-](?:x-)?api[ _-]?key|incorrect api key|authentication|unauthori[sz]ed"
        r"|permission[_ ](?:error|denied)|not logged in"
        r"|api[ _]key not valid|forbidden|/login\b",
    ),
    ("model_rate_limited", r"rate[ _-]?limit|too many requests|resource_exhausted|slow down|usage limit"),
    (
        "model_unknown",
        r"model[_ ]not[_ ]found|model .{0,80}(?:does not exist|not found|may not exist|is not supported)"
        r"|models/\S+ is not found|unknown model|not_found_error|no such model|not found \(404\)",
    ),
    (
        "model_refused",
        r"refusal|refused to|content[_ ]?filter|usage polic|safety|violat\w+ .{0,40}polic|prohibited_content"
        r"|unable to respond to this request|invalid_prompt|flagged|(?:cyber|bio)_policy",
    ),
    (
        "model_unreachable",
        r"overloaded|disconnected|connection (?:reset|refused|error|closed|aborted)|econnre|socket hang up"
        r"|fetch failed|timed? ?out|network error|unexpected (?:eof|end)|stream (?:closed|ended|error)"
        r"|internal server error|bad gateway|service unavailable|server_error|api_error|terminated"
        r"|unable to connect|error sending request|incomplete|premature|high demand|connection .{0,30}lost",
    ),
)
_PATTERNS = tuple((cause, re.compile(pattern, re.IGNORECASE)) for cause, pattern in _WORDS)


def trouble(message: str, status: int | None = None, retry_after: float | None = None) -> Trouble:
    """Why an agent gave up, from the words of its error and the model server's status, if it is known."""
    said = " ".join(message.split())[:MOST_MESSAGE] or "the agent did not say why it gave up"
    found = status if status is not None else _status_in(said)
    cause = _by_words(said, found) or "agent_gave_up"
    wait = retry_after if retry_after is not None else _asked(said)
    return Trouble(cause, said, wait if cause == "model_rate_limited" else None)


def _by_words(said: str, status: int | None) -> str | None:
    by_status = _of_status(status)
    matching = [cause for cause, pattern in _PATTERNS if pattern.search(said)]
    # A 400, 403 or 429 may mean several things; the words decide between them.
    if "context_overflow" in matching and status in (None, 400, 413, 422):
        return "context_overflow"
    if status == 429:
        no_credit = "model_unauthorized" in matching and re.search(r"quota|credit|billing", said, re.I)
        return "model_unauthorized" if no_credit else "model_rate_limited"
    return by_status or (matching[0] if matching else None)


def _of_status(status: int | None) -> str | None:
    if status is None:
        return None
    if status in (401, 402, 403):
        return "model_unauthorized"
    if status == 404:
        return "model_unknown"
    return "model_unreachable" if status in (408, 409, 425) or status >= 500 else None


def _status_in(said: str) -> int | None:
    match = _STATUS.search(said)
    return int(match[1]) if match else None


def _asked(said: str) -> float | None:
    match = _AFTER.search(said)
    if match is None:
        return None
    unit = (match[2] or "s").lower()
    return float(match[1]) * (0.001 if unit == "ms" else 60.0 if unit.startswith("m") else 1.0)
