"""What an agent says it used, cost and met, read as far as it can be trusted."""

from __future__ import annotations

import asyncio
import json
import math
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes.masker import Masker
from sandboxes.types import CopyLimits
from valkyrie.agents.protocol import AgentExit, AgentUsage, Trouble
from valkyrie.trial.failures import MESSAGE_LIMIT
from valkyrie.trial.outputs import AttemptLog

METRICS = "metrics.json"
MOST_BYTES = 1024 * 1024
MOST_TOKENS = 10**12
"""Of one attempt: sums over a run must stay numbers a database can hold."""
MOST_DOLLARS = 1_000_000.0
"""An attempt that says it cost more is not believed: sums must stay numbers."""

_ARCHIVE = CopyLimits()


class _UnusableError(Exception):
    """There is a file, and nothing in it that can be taken."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What an agent wrote of itself."""

    cost: float | None = None
    """US dollars."""
    tokens: AgentUsage | None = None
    """Tokens alone; None where it named none."""


def reported_metrics(folder: Path, note: Callable[[str], None] = lambda _: None) -> Reported:
    """Return cost and tokens from an attempt's collected outputs, as far as they can be taken.

    Looked for at the top of `agent_output.tar.gz`, then in `artifacts/`: `{"cost": {"total": 1.23}}`,
    `{"cost": 1.23}` or `{"total_cost_usd": 1.23}`, and `"tokens": {"input": 51000, "cached": 200,
    "output": 4200}`. `note` hears why a file that is there is not taken.
    """
    for where, read in _places(folder):
        try:
            content = read()
            if content is not None:
                return _metrics_in(content, note)
        except OSError as error:
            note(f"the cost in {where} is not taken: {error.strerror or error}")
        except (_UnusableError, tarfile.TarError, EOFError) as error:
            note(f"the cost in {where} is not taken: {error}")
    return Reported()


def _places(folder: Path) -> Iterator[tuple[str, Callable[[], bytes | None]]]:
    yield f"agent_output/{METRICS}", lambda: _archived(folder / "agent_output.tar.gz")
    yield f"artifacts/{METRICS}", lambda: _plain(folder / "artifacts" / METRICS)


def _archived(archive: Path) -> bytes | None:
    """The member at the archive's top, read in passing: nothing is unpacked, no link is followed."""
    if not archive.is_file():
        return None
    passed = 0
    with tarfile.open(archive, "r|gz") as tar:
        for number, member in enumerate(tar):
            passed += member.size
            if number >= 2 * _ARCHIVE.max_entries or passed > 2 * _ARCHIVE.max_bytes:
                raise _UnusableError("the archive is larger than one of ours can be")
            if member.name.removeprefix("./") != METRICS:
                continue
            if not member.isreg():
                raise _UnusableError("it is not a plain file")
            _check_size(member.size)
            file = tar.extractfile(member)
            return file.read() if file else None
    return None


def _plain(path: Path) -> bytes | None:
    """A file of its own: neither a link nor something that would block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _UnusableError("it is not a plain file")
        _check_size(found.st_size)
        return file.read(MOST_BYTES)


def _check_size(size: int) -> None:
    if size > MOST_BYTES:
        raise _UnusableError(f"the file is larger than {MOST_BYTES >> 20} MiB")


def _metrics_in(content: bytes, note: Callable[[str], None]) -> Reported:
    try:
        said = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _UnusableError(f"it is not JSON ({type(error).__name__})") from None
    if not isinstance(said, dict):
        raise _UnusableError("it is not a JSON object")
    tokens = _tokens(said.get("tokens"), note)
    cost = said.get("cost")
    if isinstance(cost, dict):
        cost = cost.get("total")
    cost = said.get("total_cost_usd") if cost is None else cost
    if cost is None and tokens is not None:
        return Reported(None, tokens)
    return Reported(_dollars(cost), tokens)


def _tokens(said: object, note: Callable[[str], None]) -> AgentUsage | None:
    """Return the tokens that were named; `input` counts cached ones too."""
    if not isinstance(said, dict):
        return None
    read: dict[str, int] = {}
    for name in ("input", "cached", "output"):
        count = said.get(name)
        if count is None:
            continue
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_TOKENS:
            note(f"the tokens in {METRICS} are not taken: {name} is no whole number up to {MOST_TOKENS:,}")
            return None
        read[name] = count
    if not read:
        return None
    whole = read.get("input", 0)
    return AgentUsage(whole, min(read.get("cached", 0), whole), read.get("output", 0))


def _dollars(value: object) -> float:
    if value is None:
        raise _UnusableError("it names neither cost nor total_cost_usd")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _UnusableError("the cost is not a number")
    if not 0 <= value <= MOST_DOLLARS:  # nor is NaN
        raise _UnusableError(f"the cost is not between 0 and {MOST_DOLLARS:,.0f} US dollars")
    return float(value)


async def note_metrics(folder: Path, log: AttemptLog) -> Reported:
    """Return what the agent said it used and cost; why it is not believed goes into the attempt's log."""
    said: list[str] = []
    found = await asyncio.to_thread(reported_metrics, folder, said.append)
    for text in said:
        log.note(text)
    return found


# What an agent says of how it went, as far as it is believed: agents may say anything.

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


def _usage(said: AgentUsage, masker: Masker | None) -> AgentUsage:
    return AgentUsage(
        input_tokens=_count(said.input_tokens),
        cached_tokens=min(_count(said.cached_tokens), _count(said.input_tokens)),
        output_tokens=_count(said.output_tokens),
        cost=_said_dollars(said.cost),
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


def _said_dollars(value: object) -> float | None:
    number = _number(value)
    return None if number is None else min(number, MOST_DOLLARS)


def _words(value: object, masker: Masker | None, most: int = LONGEST_NAME) -> str | None:
    if not isinstance(value, str):
        return None
    # Half a character is in no text a database takes.
    whole = value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return (masker.text(whole) if masker else whole)[:most]
