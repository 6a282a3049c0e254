"""Grades /app/intervals.py with cases the visible tests do not show."""

import json
import random

from checks import APP, FILES, PYTHON, Checks, run, same

DRIVER = FILES["driver.py"].decode()
VISIBLE = [
    ["merge", [[[1, 4], [2, 6]]]],
    ["merge", [[[1, 3], [3, 5]]]],
    ["merge", [[[1, 9], [2, 3]]]],
    ["total_length", [[[0, 4], [2, 6]]]],
    ["gaps", [[[2, 4], [6, 7]], 0, 10]],
]
"""What the tests try that the agent saw."""
FIXED = [
    ["merge", [[]]],
    ["merge", [[[1, 3], [3, 5]]]],
    ["merge", [[[5, 9], [1, 2], [2, 4]]]],
    ["merge", [[[1, 10], [2, 3], [4, 5]]]],
    ["merge", [[[1, 10], [2, 3], [9, 12], [12, 12]]]],
    ["merge", [[[4, 4], [7, 3]]]],
    ["merge", [[[-5, -1], [-1, 0], [2, 3]]]],
    ["merge", [[[3, 3], [1, 2], [2, 2], [4, 5]]]],
    ["total_length", [[]]],
    ["total_length", [[[0, 4], [2, 6], [6, 7], [10, 9]]]],
    ["gaps", [[], 3, 8]],
    ["gaps", [[], 8, 8]],
    ["gaps", [[[1, 2]], 9, 5]],
    ["gaps", [[[0, 20]], 5, 10]],
    ["gaps", [[[0, 6], [9, 30]], 5, 10]],
    ["gaps", [[[6, 7], [8, 9]], 5, 10]],
    ["gaps", [[[20, 30], [1, 2]], 5, 10]],
    ["gaps", [[[7, 7]], 5, 10]],
    ["gaps", [[[5, 10]], 5, 10]],
]


def covered(intervals):
    return {number for start, end in intervals for number in range(start, end)}


def runs(numbers):
    found = []
    for number in sorted(numbers):
        if found and found[-1][1] == number:
            found[-1][1] = number + 1
        else:
            found.append([number, number + 1])
    return found


def expected(name, arguments):
    if name == "merge":
        return runs(covered(arguments[0]))
    if name == "total_length":
        return len(covered(arguments[0]))
    return runs(set(range(arguments[1], arguments[2])) - covered(arguments[0]))


def random_cases():
    rng = random.Random(20)  # noqa: S311
    for _ in range(200):
        intervals = [[rng.randint(-9, 9), rng.randint(-9, 9)] for _ in range(rng.randint(0, 6))]
        name = rng.choice(["merge", "total_length", "gaps"])
        yield [name, [intervals, *(rng.randint(-9, 9) for _ in range(2))] if name == "gaps" else [intervals]]


def answers(cases):
    ran = run([*PYTHON, "-c", DRIVER, APP / "intervals.py"], stdin=json.dumps(cases))
    same(ran.code, 0, f"exit code ({ran.stderr[-300:]})")
    return json.loads(ran.stdout.splitlines()[-1])


checks = Checks()
GROUPS = {
    "the visible tests": VISIBLE,
    "cases from the docstrings": FIXED,
    "random cases": list(random_cases()),
}
for title, cases in GROUPS.items():
    with checks.check(title):
        results = answers(cases)
        same(len(results), len(cases), "number of answers")
        for (name, arguments), result in zip(cases, results, strict=True):
            shown = ", ".join(map(str, arguments))
            same(result["value"], expected(name, arguments), f"{name}({shown})")
            same(result["tuples"], True, f"{name}({shown}) is made of tuples")
            same(result["untouched"], True, f"{name} leaves its input alone")
            same(result["iterable"], result["value"], f"{name} of an iterator over {arguments[0]}")
checks.reward()
