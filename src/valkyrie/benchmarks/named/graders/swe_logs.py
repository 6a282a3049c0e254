"""Read a test run's log and decide whether an issue is resolved.

This file is copied into the tests folder of every SWE-bench task and runs there on whatever Python the image
has (3.6 or newer), so it imports nothing but the standard library and nothing of ours.
"""

# ruff: noqa: UP006, UP032, UP035, UP045, T201 - a program that must parse and run on Python 3.6

import json
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional

PASSED, FAILED, ERROR, SKIPPED, XFAIL = "PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"
STATUSES = (FAILED, PASSED, SKIPPED, ERROR, XFAIL)
BROKEN = (FAILED, ERROR)
START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
TIMED_OUT = 124

Results = Dict[str, str]
"""Test's name → status."""

_COLOUR = re.compile(r"\x1b?\[[0-9;]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")
_PARAMETERS = re.compile(r"(.*?)\[(.*)\]$")
_SYMPY_FAILURE = re.compile(r"^_+ (.*\.py:.*?) _+$")
_DJANGO_PASSED = re.compile(r"(.*?) \.\.\. +(?:ok|OK)$")
_DJANGO_VERSION = "--version is equivalent to version"


def parse_pytest(lines: Iterable[str]) -> Results:
    """The short summary of `pytest -rA`: `STATUS name`."""
    found: Results = {}
    for line in lines:
        _take_summary(found, line)
    return found


def parse_pytest_plain(lines: Iterable[str]) -> Results:
    """As `parse_pytest`, colours and control characters dropped; old pytests say `name STATUS`."""
    found: Results = {}
    for line in lines:
        line = _CONTROL.sub("", _COLOUR.sub("", line)).rstrip()
        words = line.split()
        if not _take_summary(found, line) and len(words) >= 2 and words[-1] in STATUSES:
            _note(found, words[0], words[1])
    return found


def parse_pytest_paths(lines: Iterable[str]) -> Results:
    """As `parse_pytest`; a parameter that is a path of the machine is cut to its last part."""
    return {_without_path(name): status for name, status in parse_pytest(lines).items()}


def parse_matplotlib(lines: Iterable[str]) -> Results:
    """As `parse_pytest`; mouse buttons are named by number."""
    return parse_pytest(
        line.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3") for line in lines
    )


def parse_seaborn(lines: Iterable[str]) -> Results:
    """`PASSED name`, `FAILED name` or `name PASSED [ 10%]`."""
    found: Results = {}
    for line in lines:
        words = line.split()
        if len(words) < 2:
            continue
        if words[0] in (FAILED, PASSED) and line.startswith(words[0]):
            _note(found, words[1], words[0])
        elif words[1] == PASSED:
            _note(found, words[0], PASSED)
    return found


def parse_sympy(lines: Iterable[str]) -> Results:
    """`test_name ok|F|E` as it goes, then `____ file.py:test_name ____` above each failure."""
    ends = {"ok": PASSED, "F": FAILED, "E": ERROR}
    found: Results = {}
    for line in lines:
        words = line.split()
        ruled = _SYMPY_FAILURE.match(line.strip())
        if ruled:
            found[ruled.group(1)] = FAILED
        elif len(words) >= 2 and words[0].startswith("test_") and words[-1] in ends:
            found[words[0]] = ends[words[-1]]
    return found


def parse_django(lines: Iterable[str]) -> Results:
    """`name ... ok`; what a test prints may come between the dots and the word."""
    found: Results = {}
    open_test: Optional[str] = None
    for line in lines:
        line = line.strip()
        if _DJANGO_VERSION in line:
            found[_DJANGO_VERSION] = PASSED
        if line.startswith("Applying ") and "...test_" in line:
            # A migration's message without line end, then the test's own line.
            line = line.split("...", 1)[1].strip()
        passed = _DJANGO_PASSED.match(line)
        if passed:
            found[passed.group(1)] = PASSED
            open_test = None
            continue
        if " ... " in line:
            open_test = line.split(" ... ", 1)[0]
        if " ... skipped" in line:
            found[line.split(" ... skipped", 1)[0]] = SKIPPED
        elif line.endswith((" ... FAIL", " ... ERROR")):
            name, _, word = line.rpartition(" ... ")
            found[name] = FAILED if word == "FAIL" else ERROR
        elif line.startswith(("FAIL:", "ERROR:")) and len(line.split()) > 1:
            found[line.split()[1]] = FAILED if line.startswith("FAIL:") else ERROR
        elif open_test is not None and re.match(r"ok\b", line):
            found[open_test] = PASSED
    return found


PARSERS: Dict[str, Callable[[Iterable[str]], Results]] = {
    "pytest": parse_pytest,
    "pytest-plain": parse_pytest_plain,
    "pytest-paths": parse_pytest_paths,
    "matplotlib": parse_matplotlib,
    "seaborn": parse_seaborn,
    "sympy": parse_sympy,
    "django": parse_django,
}


def _take_summary(found: Results, line: str) -> bool:
    """Note a line that starts with a status; whether it was one."""
    status = next((word for word in STATUSES if line.startswith(word)), None)
    if status is None:
        return False
    words = (line.replace(" - ", " ") if status == FAILED else line).split()
    if len(words) > 1 and words[0] == status:
        _note(found, words[1], status)
    return True


def _note(found: Results, name: str, status: str) -> None:
    """A test that failed stays failed: the code under test can print lines that look like a success."""
    if found.get(name) not in BROKEN or status in BROKEN:
        found[name] = status


def _without_path(name: str) -> str:
    match = _PARAMETERS.match(name)
    if match is None:
        return name
    test, option = match.groups()
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = "/" + option.split("/")[-1]
    return "{}[{}]".format(test, option)


def between_markers(text: str) -> Optional[List[str]]:
    """The lines of the test run itself; None when it did not run from start to end."""
    lines = text.splitlines()
    starts = [at for at, line in enumerate(lines) if line.strip() == START]
    ends = [at for at, line in enumerate(lines) if line.strip() == END]
    if not starts or not ends or ends[-1] < starts[0]:
        return None
    return lines[starts[0] + 1 : ends[-1]]


def status_of(name: str, results: Results) -> Optional[str]:
    """Return how one expected test ended; published names are sometimes cut off inside their parameters."""
    if name in results:
        return results[name]
    if "[" in name and not name.endswith("]"):
        near = {status for full, status in results.items() if full.startswith(name)}
        if len(near) == 1:
            return near.pop()
    return None


def judge(
    results: Results, exit_code: int, fail_to_pass: List[str], pass_to_pass: List[str]
) -> Dict[str, float]:
    """The reward: 1 when every expected test passes, else 0, with the two fractions beside it.

    A test run that failed although no test of it did is no success, whatever its log says.
    """
    repaired = sum(status_of(name, results) in (PASSED, XFAIL) for name in fail_to_pass)
    kept = sum(status_of(name, results) in (PASSED, XFAIL, SKIPPED) for name in pass_to_pass)
    consistent = exit_code == 0 or any(status in BROKEN for status in results.values())
    resolved = repaired == len(fail_to_pass) and kept == len(pass_to_pass) and consistent
    return {
        "reward": 1.0 if resolved else 0.0,
        "fail_to_pass": repaired / len(fail_to_pass) if fail_to_pass else 1.0,
        "pass_to_pass": kept / len(pass_to_pass) if pass_to_pass else 1.0,
    }


def judge_names(output_path: str, required: List[str]) -> Dict[str, float]:
    """The reward of a list of tests with their statuses: 1 when every required one passed."""
    listed = json.loads(Path(output_path).read_text(encoding="utf-8", errors="replace"))["tests"]
    passed = {test["name"] for test in listed if test["status"] == PASSED}
    count = sum(name in passed for name in required)
    return {"reward": 1.0 if count == len(required) else 0.0, "required": count / len(required)}


def judge_log(expected: Dict[str, Any], log_path: str, exit_code: int) -> Optional[Dict[str, float]]:
    """The reward of a log; None when the tests did not run from start to end."""
    lines = between_markers(Path(log_path).read_text(encoding="utf-8", errors="replace"))
    if lines is None:
        return None
    results = PARSERS[expected["parser"]](lines)
    reward = judge(results, exit_code, expected["fail_to_pass"], expected["pass_to_pass"])
    if exit_code == TIMED_OUT:
        reward["reward"] = 0.0
    print("{} tests in the log, exit code {}".format(len(results), exit_code))
    return reward


def main(arguments: List[str]) -> int:
    """`log EXPECTED LOG EXIT_CODE REWARD` or `names EXPECTED OUTPUT REWARD`; the reward is written last."""
    kind, expected_path, given = arguments[:3]
    expected = json.loads(Path(expected_path).read_text(encoding="utf-8"))
    if kind == "log":
        reward = judge_log(expected, given, int(arguments[3]))
    else:
        reward = judge_names(given, expected["required"])
    if reward is None:
        print("the log has no complete test run in it: no verdict")
        return 1
    print(json.dumps(reward))
    draft = Path(arguments[-1] + ".part")
    draft.write_text(json.dumps(reward), encoding="utf-8")
    draft.rename(arguments[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
