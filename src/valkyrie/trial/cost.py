"""What an agent says it cost, read from the `metrics.json` it left. The agent is not trusted with more."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sandboxes.types import CopyLimits
from valkyrie.trial.log import AttemptLog

METRICS = "metrics.json"
MOST_BYTES = 1024 * 1024
MOST_DOLLARS = 1_000_000.0
"""An attempt that says it cost more is not believed: sums must stay numbers."""

_ARCHIVE = CopyLimits()


class _UnusableError(Exception):
    """There is a file, and no cost in it that can be taken."""


def reported_cost(folder: Path, note: Callable[[str], None] = lambda _: None) -> float | None:
    """US dollars, from an attempt's collected outputs; None when the agent said nothing usable.

    Looked for at the top of `agent_output.tar.gz`, then in `artifacts/`: `{"cost": {"total": 1.23}}`,
    `{"cost": 1.23}` or `{"total_cost_usd": 1.23}`. `note` hears why a file that is there is not taken.
    """
    for where, read in _places(folder):
        try:
            content = read()
            if content is not None:
                return _cost_in(content)
        except OSError as error:
            note(f"the cost in {where} is not taken: {error.strerror or error}")
        except (_UnusableError, tarfile.TarError, EOFError) as error:
            note(f"the cost in {where} is not taken: {error}")
    return None


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


def _cost_in(content: bytes) -> float:
    try:
        said = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _UnusableError(f"it is not JSON ({type(error).__name__})") from None
    if not isinstance(said, dict):
        raise _UnusableError("it is not a JSON object")
    cost = said.get("cost")
    if isinstance(cost, dict):
        cost = cost.get("total")
    return _dollars(said.get("total_cost_usd") if cost is None else cost)


def _dollars(value: object) -> float:
    if value is None:
        raise _UnusableError("it names neither cost nor total_cost_usd")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _UnusableError("the cost is not a number")
    if not 0 <= value <= MOST_DOLLARS:  # nor is NaN
        raise _UnusableError(f"the cost is not between 0 and {MOST_DOLLARS:,.0f} US dollars")
    return float(value)


async def note_cost(folder: Path, log: AttemptLog) -> float | None:
    """What the agent said it cost; why it is not believed goes into the attempt's log."""
    said: list[str] = []
    cost = await asyncio.to_thread(reported_cost, folder, said.append)
    for text in said:
        log.note(text)
    return cost
