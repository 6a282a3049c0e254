#!/bin/bash
set -euo pipefail
cat > plan.py <<'EOF'
"""Print names in an order in which each comes after what it needs."""

import heapq
import re
import sys

RULE = re.compile(r"\s*([A-Za-z0-9._/-]+)\s*:((?:\s+|[A-Za-z0-9._/-]+)*)")


class Refused(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def read_rules(path):
    needs = {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
    except (OSError, ValueError) as error:
        raise Refused(2, f"cannot read {path}: {error}") from None
    for number, line in enumerate(lines, 1):
        line = line.partition("#")[0]
        if not line.strip():
            continue
        name, colon, rest = line.partition(":")
        names = [name.strip(), *rest.split()]
        if not colon or not all(re.fullmatch(r"[A-Za-z0-9._/-]+", item) for item in names):
            raise Refused(2, f"line {number} is not a rule: {line.strip()}")
        needs.setdefault(names[0], set()).update(names[1:])
    return needs


def reachable(needs, targets):
    found, waiting = set(targets), list(targets)
    while waiting:
        for name in needs.get(waiting.pop(), ()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def find_cycle(needs, left):
    """A circle among `left`, where everything needs something that is left."""
    path, place = [], {}
    name = min(left)
    while name not in place:
        place[name] = len(path)
        path.append(name)
        name = min(needs[name] & left)
    circle = path[place[name]:]
    start = circle.index(min(circle))
    return [*circle[start:], *circle[:start], circle[start]]


def plan(needs, targets):
    wanted = reachable(needs, targets or needs)
    unknown = wanted - needs.keys()
    if unknown:
        raise Refused(2, f"unknown: {min(unknown)}")
    missing = {name: len(needs[name]) for name in wanted}
    users = {name: [] for name in wanted}
    for name in wanted:
        for needed in needs[name]:
            users[needed].append(name)
    ready = [name for name in wanted if not missing[name]]
    heapq.heapify(ready)
    order = []
    while ready:
        name = heapq.heappop(ready)
        order.append(name)
        for user in users[name]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    if len(order) < len(wanted):
        raise Refused(1, "cycle: " + " -> ".join(find_cycle(needs, wanted - set(order))))
    return order


def main(argv):
    if not argv:
        raise Refused(2, "usage: plan.py FILE [TARGET ...]")
    return plan(read_rules(argv[0]), argv[1:])


try:
    names = main(sys.argv[1:])
except Refused as error:
    print(error, file=sys.stderr)
    sys.exit(error.code)
sys.stdout.write("".join(f"{name}\n" for name in names))
EOF
python3 plan.py example.rules
