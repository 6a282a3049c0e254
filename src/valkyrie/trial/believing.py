"""What an agent says of how it went, as far as it is believed: agents may say anything."""

from __future__ import annotations

import math
from dataclasses import replace

from sandboxes.masker import Masker
from valkyrie.agents.protocol import AgentExit, Trouble, Usage
from valkyrie.trial.cost import MOST_DOLLARS, MOST_TOKENS
from valkyrie.trial.failures import MESSAGE_LIMIT

LONGEST_NAME = 200


def believed(ended: AgentExit, masker: Masker | None) -> AgentExit:
    """The same exit with numbers that can be added up, and without secrets in its words."""
    if ended.usage is None and ended.trouble is None:
        return ended
    return replace(
        ended,
        usage=ended.usage and _usage(ended.usage, masker),
        trouble=ended.trouble and _trouble(ended.trouble, masker),
    )


def _usage(said: Usage, masker: Masker | None) -> Usage:
    return Usage(
        input_tokens=_count(said.input_tokens),
        cached_tokens=min(_count(said.cached_tokens), _count(said.input_tokens)),
        output_tokens=_count(said.output_tokens),
        cost=_dollars(said.cost),
        cost_source=_words(said.cost_source, masker),
        model=_words(said.model, masker),
        steps=_count(said.steps),
    )


def _trouble(said: Trouble, masker: Masker | None) -> Trouble:
    message = _words(said.message, masker, MESSAGE_LIMIT) or ""
    return Trouble(said.cause, message, _number(said.retry_after))


def _count(value: object) -> int:
    whole = value if isinstance(value, int) and not isinstance(value, bool) else 0
    return min(max(whole, 0), MOST_TOKENS)


def _number(value: object) -> float | None:
    """A finite number that is not negative, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return None
    return float(min(value, MOST_TOKENS))


def _dollars(value: object) -> float | None:
    number = _number(value)
    return None if number is None else min(number, MOST_DOLLARS)


def _words(value: object, masker: Masker | None, most: int = LONGEST_NAME) -> str | None:
    if not isinstance(value, str):
        return None
    # Half a character is in no text a database takes.
    whole = value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return (masker.text(whole) if masker else whole)[:most]
