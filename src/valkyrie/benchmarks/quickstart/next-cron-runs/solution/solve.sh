#!/bin/bash
set -euo pipefail
cat > nextrun.py <<'EOF'
"""Print when a cron expression fires next."""

import re
import sys
from datetime import datetime, timedelta

MONTHS = {name: n for n, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}
DAYS = {name: n for n, name in enumerate("sun mon tue wed thu fri sat".split())}
FIELDS = [(0, 59, {}), (0, 23, {}), (1, 31, {}), (1, 12, MONTHS), (0, 7, DAYS)]
ITEM = re.compile(r"(?:(\*)|([0-9]+|[a-z]{3})(?:-([0-9]+|[a-z]{3}))?)(?:/([0-9]+))?")
YEARS = 30


def value(text, low, high, names):
    number = names[text] if text in names else int(text)
    if not low <= number <= high:
        raise ValueError(f"{text} is not within {low}-{high}")
    return number


def parse_field(text, low, high, names):
    chosen = set()
    for item in text.lower().split(","):
        match = ITEM.fullmatch(item)
        if match is None:
            raise ValueError(f"cannot read {item!r}")
        star, first, last, step = match.groups()
        if step is not None and (int(step) == 0 or (not star and last is None)):
            raise ValueError(f"bad step in {item!r}")
        start, end = low, high
        if not star:
            start = value(first, low, high, names)
            end = value(last, low, high, names) if last is not None else start
        if start > end:
            raise ValueError(f"{item!r} runs backwards")
        chosen.update(range(start, end + 1, int(step or 1)))
    return chosen


def parse(expression):
    texts = expression.split()
    if len(texts) != 5:
        raise ValueError("an expression has five fields")
    minutes, hours, days, months, weekdays = (
        parse_field(text, *field) for text, field in zip(texts, FIELDS)
    )
    weekdays = {day % 7 for day in weekdays}
    either = not texts[2].startswith("*") and not texts[4].startswith("*")

    def day_fits(day):
        by_month, by_week = day.day in days, (day.weekday() + 1) % 7 in weekdays
        return day.month in months and ((by_month or by_week) if either else (by_month and by_week))

    return sorted(minutes), sorted(hours), day_fits


def moments(expression, start):
    minutes, hours, day_fits = expression
    day = start.replace(hour=0, minute=0)
    end = start.replace(year=start.year + YEARS, day=min(start.day, 28))
    while day <= end:
        if day_fits(day):
            for hour in hours:
                for minute in minutes:
                    moment = day.replace(hour=hour, minute=minute)
                    if moment > start:
                        yield moment
        day += timedelta(days=1)


def main(argv):
    if len(argv) not in (2, 3):
        raise ValueError("usage: nextrun.py EXPRESSION START [COUNT]")
    expression = parse(argv[0])
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}", argv[1]):
        raise ValueError(f"not a moment: {argv[1]}")
    start = datetime.strptime(argv[1], "%Y-%m-%dT%H:%M")
    if len(argv) == 3 and not re.fullmatch("[0-9]*[1-9][0-9]*", argv[2]):
        raise ValueError(f"not a positive count: {argv[2]}")
    wanted = int(argv[2]) if len(argv) == 3 else 1
    for moment in moments(expression, start):
        print(moment.strftime("%Y-%m-%dT%H:%M"))
        wanted -= 1
        if wanted == 0:
            return 0
    print("nextrun.py: no more moments within 30 years", file=sys.stderr)
    return 3


try:
    sys.exit(main(sys.argv[1:]))
except ValueError as error:
    print(f"nextrun.py: {error}", file=sys.stderr)
    sys.exit(2)
EOF
python3 nextrun.py '*/20 9-10 * * mon-fri' 2026-05-01T10:40 2
