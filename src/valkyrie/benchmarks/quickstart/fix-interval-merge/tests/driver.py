"""Calls the agent's module, in a process of its own; cases come as JSON, answers go as one JSON line."""

import json
import runpy
import sys


def as_tuples(value):
    return not isinstance(value, list) or all(isinstance(item, tuple) for item in value)


module = runpy.run_path(sys.argv[1])
results = []
for name, arguments in json.load(sys.stdin):
    pairs = [tuple(pair) for pair in arguments[0]]
    given = list(pairs)
    value = module[name](given, *arguments[1:])
    again = module[name](iter(pairs), *arguments[1:])
    results.append(
        {"value": value, "iterable": again, "untouched": given == pairs, "tuples": as_tuples(value)}
    )
sys.stdout.write("\n" + json.dumps(results) + "\n")
