#!/bin/bash
set -euo pipefail
cat > duration.py <<'EOF'
"""Durations such as 1h30m: parse, format, add up."""

import argparse
import json
import re
import sys

UNITS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
PATTERN = re.compile(r"\s*" + "".join(rf"(?:([0-9]+){unit}\s*)?" for unit in UNITS))
sys.set_int_max_str_digits(0)


def seconds_of(text):
    match = PATTERN.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"not a duration: {text!r}" if text.isprintable() else f"not a duration: {text}")
    return sum(int(number) * size for number, size in zip(match.groups(), UNITS.values()) if number)


def canonical(seconds):
    parts = []
    for unit, size in UNITS.items():
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def whole_number(text):
    if not re.fullmatch("[0-9]+", text):
        raise ValueError(f"not a whole number of seconds: {text!r}")
    return int(text)


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    parse = commands.add_parser("parse", help="print the number of seconds")
    parse.add_argument("--json", action="store_true")
    parse.add_argument("duration")
    commands.add_parser("format", help="print the canonical form").add_argument("seconds")
    commands.add_parser("sum", help="print the canonical sum").add_argument("duration", nargs="+")
    # argparse takes -5m for an option; what begins with a dash and is none of ours is an argument.
    options = {"--json", "-h", "--help"}
    head, rest = argv[:1], argv[1:]
    flags = [item for item in rest if item in options]
    values = [item for item in rest if item not in options]
    return parser.parse_args([*head, *flags, *(["--", *values] if values else [])])


def main(argv):
    args = arguments(argv)
    try:
        if args.command == "format":
            return canonical(whole_number(args.seconds))
        if args.command == "sum":
            return canonical(sum(map(seconds_of, args.duration)))
        seconds = seconds_of(args.duration)
        return json.dumps({"seconds": seconds, "canonical": canonical(seconds)}) if args.json else str(seconds)
    except ValueError as error:
        print(f"duration.py: {error}", file=sys.stderr)
        raise SystemExit(2) from None


print(main(sys.argv[1:]))
EOF
python3 duration.py parse 1h30m
