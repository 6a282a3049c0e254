"""Reward files: what a verifier leaves behind as its verdict. Anything doubtful is an error, never a 0."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from valkyrie.errors import GraderError

MAX_REWARD_BYTES = 256 * 1024

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def parse_reward_json(content: bytes, where: str) -> dict[str, float]:
    """A flat map of names to finite numbers."""
    try:
        data = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise GraderError(f"{where} is not valid JSON: {_one_line(error)}") from error
    if not isinstance(data, dict) or not data:
        raise GraderError(f'{where} must hold a flat map of numbers such as {{"reward": 1.0}}')
    if any(not _is_text(key) for key in data):
        raise GraderError(f"{where}: a name holds half a character, which cannot be written down")
    return {key: _finite(key, value, where) for key, value in data.items()}


def parse_reward_txt(content: bytes, where: str) -> dict[str, float]:
    """One finite number, as `{"reward": x}`."""
    text = content.decode("utf-8", "replace").strip()
    if not text:
        raise GraderError(f"{where} is empty; it must hold one number")
    if not _NUMBER.fullmatch(text):
        raise GraderError(f"{where} must hold one finite number, not {text[:60]!r}")
    return {"reward": _finite("reward", float(text), where)}


def score_of(rewards: Mapping[str, float]) -> float:
    """The key `reward` if there is one, else the mean of all values."""
    if "reward" in rewards:
        return rewards["reward"]
    return sum(rewards.values()) / len(rewards)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")


def _finite(key: str, value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GraderError(f"{where}: {key!r} must be a number, not {_one_line(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise GraderError(f"{where}: {key!r} must be a finite number")
    return number


def _is_text(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def _one_line(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."
