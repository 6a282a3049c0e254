"""What an agent says it used and cost, read from the `metrics.json` it left. It is not trusted with more."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sandboxes.types import CopyLimits
from valkyrie.agents.protocol import Usage
from valkyrie.trial.log import AttemptLog

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
    tokens: Usage | None = None
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


def _tokens(said: object, note: Callable[[str], None]) -> Usage | None:
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
    return Usage(whole, min(read.get("cached", 0), whole), read.get("output", 0))


def _dollars(value: object) -> float:
    if value is None:
        raise _UnusableError("it names neither cost nor total_cost_usd")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _UnusableError("the cost is not a number")
    if not 0 <= value <= MOST_DOLLARS:  # nor is NaN
        raise _UnusableError(f"the cost is not between 0 and {MOST_DOLLARS:,.0f} US dollars")
    return float(value)


async def note_metrics(folder: Path, log: AttemptLog) -> Reported:
    """What the agent said it used and cost; why it is not believed goes into the attempt's log."""
    said: list[str] = []
    found = await asyncio.to_thread(reported_metrics, folder, said.append)
    for text in said:
        log.note(text)
    return found
