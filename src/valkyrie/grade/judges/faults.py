"""What went wrong at an endpoint, as errors: what may pass, what will not, and what is too long."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from sandboxes.retry import parse_retry_after
from valkyrie.errors import GraderError, UserError
from valkyrie.grade.judges.speaking import UnreadableAnswerError
from valkyrie.grade.protocol import JUDGE_REFUSED, JUDGE_REFUSED_QUESTION
from valkyrie.nouns import Json

if TYPE_CHECKING:
    import httpx

    from valkyrie.grade.judges.endpoint import Endpoint

_WHATEVER_IS_ASKED = frozenset({401, 402, 403, 404, 405})
_LATER = frozenset({408, 409, 425, 429})
_TOO_LONG = re.compile(
    r"context_length_exceeded|context (?:length|window|size)|(?:prompt|input|request) is too (?:long|large)",
    re.IGNORECASE,
)
_QUOTED = 300


class TooLongError(GraderError):
    """The question is longer than the judge's model can read."""

    default_cause = "judge_too_long"


class PassingError(Exception):
    """A try failed in a way that may pass."""

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class NotForcedError(PassingError):
    """The endpoint does not let itself be told which tool to use; words must do."""


def failure_of(endpoint: Endpoint, response: httpx.Response) -> Exception:
    """What to raise for an answer that is none."""
    status, text = response.status_code, _quoted(response, endpoint)
    if status in _LATER or status >= 500:
        return PassingError(f"answered {status}", parse_retry_after(response.headers.get("retry-after")))
    if status == 400 and "tool_choice" in text:
        return NotForcedError("does not take tool_choice")
    if status in (400, 413) and _TOO_LONG.search(text):
        return TooLongError(f"The question is too long for judge {endpoint.model}: {text}")
    return UserError(
        f"Judge {endpoint.model} at {endpoint.place} refused ({status}): {text} {_way_out(status)}",
        cause=JUDGE_REFUSED if status in _WHATEVER_IS_ASKED else JUDGE_REFUSED_QUESTION,
    )


def object_in(response: httpx.Response) -> Json:
    """The object an endpoint answered with. Raises UnreadableAnswerError."""
    try:
        found = response.json()
    except (ValueError, RecursionError):
        raise UnreadableAnswerError("no JSON") from None
    if not isinstance(found, dict):
        raise UnreadableAnswerError("no JSON object")
    return found


def _quoted(response: httpx.Response, endpoint: Endpoint) -> str:
    """What the endpoint says, in one short line, without the key it may echo."""
    from sandboxes.masker import Masker

    text = response.text
    try:
        said = json.loads(text)["error"]
        text = str(said["message"] if isinstance(said, dict) else said)
        code = said.get("code") if isinstance(said, dict) else None
        text = f"{code}: {text}" if code else text
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    masked = Masker([endpoint.key or ""]).text(text)
    return re.sub(r"\s+", " ", masked).strip()[:_QUOTED] or "without a word."


def _way_out(status: int) -> str:
    if status in (401, 403):
        return "Look at its key (VALKYRIE_JUDGE_API_KEY, or the vendor's own)."
    if status == 404:
        return "Look at the model's name and the endpoint's address (--judge-url)."
    return "Look at the model and the judge's config."
