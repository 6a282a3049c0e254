"""Grades /app/plan.py on rules of its own."""

import random
import re
from itertools import pairwise

from checks import APP, PYTHON, Checks, run, same, scratch

RIGHT = {
    "the example": ("app: lib/core  ui     # it\nui: lib/core\nlib/core:\n", [], "lib/core ui app"),
    "smallest first": ("b:\na:\nc: a\nB:\n_:\n", [], "B _ a b c"),
    "what was freed may come before what waits": ("z: a\na:\nb: z\nm:\n", [], "a m z b"),
    "rules add up": ("x: a\n x :b\na:\nb:\nx:\n", [], "a b x"),
    "the same need twice": ("x: a a a\nx: a\na:\n", [], "a x"),
    "targets": ("app: lib\nlib:\ndoc: app\ntool:\n", ["app"], "lib app"),
    "several targets": ("app: lib\nlib:\ndoc: lib\ntool:\n", ["tool", "doc", "tool"], "lib doc tool"),
    "trouble elsewhere does not matter": ("a: b\nb:\nc: d\nd: c\ne: nowhere\n", ["a"], "b a"),
    "nothing at all": ("# empty\n\n", [], ""),
    "no newline at the end, tabs": ("a:\tb\tc\nb:\nc:", [], "b c a"),
    "numbers are text": ("10:\n9:\n1:\n", [], "1 10 9"),
    "text after a hash": ("a: b # c\nb:#x: y\n", [], "b a"),
}
CYCLES = {
    "two names": ("a: b\nb: a\n", []),
    "itself": ("a:\nb: b\n", []),
    "behind a tail": ("a: q\nq: r\nr: m\nm: q\nz:\n", ["a"]),
    "reached from a target": ("start: x\nx: y\ny: z\nz: x ok\nok:\nfree:\n", ["start"]),
}
UNKNOWN = {
    "a need without a rule": ("a: zeta beta\n", [], "beta"),
    "an unknown target": ("a:\n", ["a", "nope"], "nope"),
    "unknown and a circle": ("a: b\nb: a ghost\n", [], "ghost"),
}
BAD_LINES = {
    "no colon": "a:\nb c\n",
    "no name": "a:\n: b\n",
    "two colons": "a:\nb: c: d\n",
    "odd characters": "a:\nb$: a\n",
}


def plan(text, *targets):
    with scratch() as folder:
        rules = folder / "rules"
        rules.write_text(text)
        return run([*PYTHON, APP / "plan.py", rules, *targets], timeout=30)


def check_cycle(ran, text):
    same((ran.code, ran.stdout), (1, ""), "exit code and output")
    shown = re.search(r"^cycle: (.+)$", ran.stderr, re.MULTILINE)
    assert shown, f"no circle in {ran.stderr!r}"
    names = shown[1].split(" -> ")
    needs = dict(line.partition(":")[::2] for line in text.splitlines())
    assert len(names) > 1 and names[0] == names[-1] == min(names), f"{names} does not start with the smallest"
    same(len(set(names)), len(names) - 1, "different names in the circle")
    for name, needed in pairwise(names):
        assert needed in needs[name].split(), f"{name} does not need {needed}"


def random_rules(seed):
    rng = random.Random(seed)  # noqa: S311
    names = [f"n{number}" for number in range(40)]
    rng.shuffle(names)
    needs = {}
    for place, name in enumerate(names):
        needs[name] = rng.sample(names[:place], min(place, rng.randint(0, 3)))
    order, done = [], set()
    while len(order) < len(names):
        name = min(name for name in names if name not in done and done.issuperset(needs[name]))
        done.add(name)
        order.append(name)
    lines = [f"{name}: {' '.join(needed)}\n" for name, needed in needs.items()]
    rng.shuffle(lines)
    return "".join(lines), order


def long_chain(length):
    names = [f"step{number:06}" for number in range(length)]
    text = "".join(f"{name}: {needed}\n" for name, needed in pairwise(names))
    return f"{text}{names[-1]}:\n", names[::-1]


checks = Checks()
for title, (text, targets, order) in RIGHT.items():
    with checks.check(title):
        ran = plan(text, *targets)
        same((ran.code, ran.stdout.split("\n")), (0, [*order.split(), ""]), "exit code and order")
with checks.check("random rules"):
    for seed in range(3):
        text, order = random_rules(seed)
        same(plan(text).stdout.split(), order, "order")
with checks.check("a very long chain"):
    text, order = long_chain(20_000)
    same(plan(text).stdout.split() == order, True, "the order is right")
with checks.check("a very long circle"):
    text = long_chain(20_000)[0] + "step019999: step000000\n"
    ran = plan(text)
    same((ran.code, ran.stdout, ran.stderr.count(" -> ")), (1, "", 20_000), "exit code, output, length")
for title, (text, targets) in CYCLES.items():
    with checks.check(f"circle: {title}"):
        check_cycle(plan(text, *targets), text)
for title, (text, targets, name) in UNKNOWN.items():
    with checks.check(f"unknown: {title}"):
        ran = plan(text, *targets)
        same((ran.code, ran.stdout), (2, ""), "exit code and output")
        assert f"unknown: {name}" in ran.stderr.splitlines(), f"message is {ran.stderr!r}"
for title, text in BAD_LINES.items():
    with checks.check(f"bad line: {title}"):
        ran = plan(text)
        same((ran.code, ran.stdout), (2, ""), "exit code and output")
        assert "2" in ran.stderr and "Traceback" not in ran.stderr, f"message is {ran.stderr!r}"
with checks.check("no such file"):
    ran = run([*PYTHON, APP / "plan.py", APP / "missing.rules"])
    same((ran.code, ran.stdout), (2, ""), "exit code and output")
    assert (APP / "plan.py").is_file() and "Traceback" not in ran.stderr
checks.reward()
