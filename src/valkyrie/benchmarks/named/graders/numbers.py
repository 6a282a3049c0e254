"""Compare a JSON value with the expected numbers, each within its tolerance. A file of the task's tests."""

# ruff: noqa: T201 - a program of its own

import json
import math
import os
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
ANSWER = Path("/app/result.json")
MAX_ANSWER = 1 << 20


def main() -> None:
    wanted = json.loads((TESTS / "expected.json").read_text(encoding="utf-8"))
    given, problem = read_answer()
    if problem is None:
        problem = difference(given, wanted["value"], wanted["tolerance"], "value")
    print(problem or "every number is within its tolerance")
    folder = Path(os.environ.get("VERIFIER_DIR", "/logs/verifier"))
    (folder / "reward.txt").write_text("0\n" if problem else "1\n", encoding="utf-8")


def read_answer() -> "tuple[Any, str | None]":
    """The value the agent wrote; else why there is none. A link could lead to the expected value."""
    if ANSWER.is_symlink() or not ANSWER.is_file():
        return None, f"there is no file {ANSWER}"
    if ANSWER.stat().st_size > MAX_ANSWER:
        return None, f"{ANSWER} is too large"
    try:
        data = json.loads(ANSWER.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        return None, f"{ANSWER} is not JSON: {str(error)[:100]}"
    if not isinstance(data, dict) or set(data) != {"value"}:
        return None, f"{ANSWER} must be an object with the one key `value`"
    return data["value"], None


def difference(given: Any, value: Any, tolerance: Any, where: str) -> "str | None":
    """Return what is wrong with the first part that is; nothing is said about the expected numbers."""
    if isinstance(value, dict):
        if not isinstance(given, dict) or set(given) != set(value):
            return f"{where} must be an object with exactly the keys asked for"
        pairs = [(key, value[key], part(tolerance, key)) for key in value]
        return first(difference(given[key], one, much, f"{where}.{key}") for key, one, much in pairs)
    if isinstance(value, list):
        if not isinstance(given, list) or len(given) != len(value):
            return f"{where} must be a list of the length asked for"
        triples = [(at, value[at], part(tolerance, at)) for at in range(len(value))]
        return first(difference(given[at], one, much, f"{where}[{at}]") for at, one, much in triples)
    if isinstance(value, str):
        return None if given == value else f"{where} is not the expected word"
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        return f"{where} is no number"
    if not is_finite(given):
        return f"{where} is no finite number"
    return None if abs(given - value) <= tolerance else f"{where} is not within its tolerance"


def part(tolerance: Any, key: Any) -> Any:
    """The tolerance of one part; one number may hold for all of them."""
    return tolerance if isinstance(tolerance, (int, float)) else tolerance[key]


def is_finite(number: "int | float") -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def first(problems: Any) -> "str | None":
    return next((problem for problem in problems if problem), None)


if __name__ == "__main__":
    main()
