"""What can go wrong when a model is asked, and which error an answer of a server becomes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from sandboxes.retry import parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmark_runner.models.endpoint import Endpoint

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


class ChatError(Exception):
    """A model gave no answer. The message names the model and its address, never a key."""

    def __init__(self, message: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP; None where there was no answer at all."""
        self.retry_after = retry_after
        """Seconds the server asks to wait, where it says."""


class ChatConfigError(ChatError, ValueError):
    """Nothing says where the model is, or with which key it is asked."""


class ChatRefusalError(ChatError):
    """The model, or a filter before it, declines to answer."""


class ChatTooLongError(ChatError):
    """The messages are longer than the model can read."""


class ChatUnavailableError(ChatError):
    """The server was busy, broken or out of reach at every try."""


class TransientError(Exception):
    """A try failed in a way that may pass; the message goes on from "Model M at URL …"."""

    def __init__(self, why: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.retry_after = retry_after


class UnreadableAnswerError(Exception):
    """A server answered with something that is not its API."""


class BrokenStreamError(Exception):
    """A stream told of a failure; the event's `error` object is what it said."""

    def __init__(self, error: Any) -> None:
        super().__init__("the stream told of an error")
        self.error = error


def failure_of(endpoint: Endpoint, status: int, headers: Mapping[str, str], text: str) -> Exception:
    """Return what to raise for an answer of HTTP that is not a success."""
    code, words = _said(text)
    if (status in _LATER or status >= 500) and not _SPENT.search(code):
        quoted = quotable(endpoint, words)
        return TransientError(
            f"answered {status}: {quoted}", status, parse_retry_after(headers.get("retry-after"))
        )
    return _final(endpoint, f"refused ({status})", code, words, status)


def stream_failure(endpoint: Endpoint, error: Any) -> Exception:
    """Return what to raise for a failure that came in the middle of an answer."""
    code, words = _said(json.dumps({"error": error}))
    if _LATER_WORDS.search(code) or not code:
        return TransientError(f"failed while it answered: {quotable(endpoint, words)}")
    return _final(endpoint, "failed while it answered", code, words, None)


def quotable(endpoint: Endpoint, text: str) -> str:
    """Return what a server says in one short line, without the key it may echo."""
    return re.sub(r"\s+", " ", endpoint.masked(text)).strip()[:QUOTED] or "(no words)"


def _final(endpoint: Endpoint, what: str, code: str, words: str, status: int | None) -> ChatError:
    begun = f"{endpoint.title} {what}: {quotable(endpoint, words)}"
    if status in (None, 400, 413, 422) and _TOO_LONG.search(f"{code} {words}"):
        return ChatTooLongError(begun, status)
    if status in (None, 400) and _FILTERED.search(code):
        return ChatRefusalError(begun, status)
    if status is not None and 300 <= status < 400:
        return ChatError(f"{begun} Redirects are not followed: give the address it redirects to.", status)
    return ChatError(f"{begun} {endpoint.advice(status)}".rstrip(), status)


def _said(text: str) -> tuple[str, str]:
    """Return the codes and the words of an error object; all of it as words where it is none."""
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", re.sub(r"<[^<>]*>", " ", text[:4000]) if text.lstrip()[:1] == "<" else text[:4000]
    if not isinstance(error, dict):
        return "", str(error)
    code = " ".join(str(error[key]) for key in ("type", "code") if error.get(key))
    return code, str(error.get("message") or code)
