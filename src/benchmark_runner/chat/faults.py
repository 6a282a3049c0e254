"""What went wrong at a server, as errors: what may pass, and what will not."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from benchmark_runner.chat.errors import ChatError, ChatRefusalError, ChatTooLongError
from sandboxes.masker import Masker
from sandboxes.retry import parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmark_runner.chat.endpoint import Endpoint

QUOTED = 300
"""Characters of a server's words that are passed on."""
_LATER = frozenset({408, 409, 425, 429})
_LATER_WORDS = re.compile(r"overloaded|rate_limit|api_error|server_error|timeout|unavailable", re.IGNORECASE)
_SPENT = re.compile(r"insufficient_quota|billing_hard_limit", re.IGNORECASE)
_TOO_LONG = re.compile(
    r"context_length_exceeded|context (?:length|window|size)|(?:prompt|input|request) is too (?:long|large)",
    re.IGNORECASE,
)
_FILTERED = re.compile(r"content_filter|content_policy|invalid_prompt", re.IGNORECASE)


class PassingError(Exception):
    """A try failed in a way that may pass; the message goes on from "Model M at URL …"."""

    def __init__(self, why: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.retry_after = retry_after


def failure_of(endpoint: Endpoint, status: int, headers: Mapping[str, str], text: str) -> Exception:
    """What to raise for an answer that is none."""
    code, words = _said(text)
    quoted = quotable(endpoint, words)
    if (status in _LATER or status >= 500) and not _SPENT.search(code):
        return PassingError(
            f"answered {status}: {quoted}", status, parse_retry_after(headers.get("retry-after"))
        )
    return _final(endpoint, f"refused ({status})", code, words, status)


def told_in_stream(endpoint: Endpoint, error: Any) -> Exception:
    """What to raise for a failure that came in the middle of an answer."""
    code, words = _said(json.dumps({"error": error}))
    if _LATER_WORDS.search(code) or not code:
        return PassingError(f"failed while it answered: {quotable(endpoint, words)}")
    return _final(endpoint, "failed while it answered", code, words, None)


def refusal(endpoint: Endpoint, words: str) -> ChatRefusalError:
    """The model declined."""
    return ChatRefusalError(
        f"Model {endpoint.model} at {endpoint.place} declined to answer: {quotable(endpoint, words)}"
    )


def quotable(endpoint: Endpoint, text: str) -> str:
    """What a server says, in one short line, without the key it may echo."""
    masked = Masker([endpoint.key or ""]).text(text)
    return re.sub(r"\s+", " ", masked).strip()[:QUOTED] or "(no words)"


def _final(endpoint: Endpoint, what: str, code: str, words: str, status: int | None) -> ChatError:
    begun = f"Model {endpoint.model} at {endpoint.place} {what}: {quotable(endpoint, words)}"
    if status in (None, 400, 413, 422) and _TOO_LONG.search(f"{code} {words}"):
        return ChatTooLongError(begun, status)
    if status in (None, 400) and _FILTERED.search(code):
        return ChatRefusalError(begun, status)
    return ChatError(f"{begun}{_way_out(endpoint, status)}", status)


def _said(text: str) -> tuple[str, str]:
    """The codes and the words of an error object; all of it as words where it is none."""
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", re.sub(r"<[^<>]*>", " ", text[:4000]) if text.lstrip()[:1] == "<" else text[:4000]
    if not isinstance(error, dict):
        return "", str(error)
    code = " ".join(str(error[key]) for key in ("type", "code") if error.get(key))
    return code, str(error.get("message") or code)


def _way_out(endpoint: Endpoint, status: int | None) -> str:
    if status in (401, 403):
        return f" Look at the key: {endpoint.key_source}."
    if status == 404:
        return " Look at the model's name and the server's address."
    if status is not None and 300 <= status < 400:
        return " Redirects are not followed: give the address it redirects to."
    return ""
