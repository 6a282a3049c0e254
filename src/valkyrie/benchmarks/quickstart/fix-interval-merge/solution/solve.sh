#!/bin/bash
set -euo pipefail
cat > intervals.py <<'EOF'
"""Half-open integer intervals: (start, end) holds start, start + 1, …, end - 1."""


def merge(intervals):
    """Return the fewest intervals that cover exactly the same integers, sorted, as a list of tuples.

    Intervals that overlap or touch become one: (1, 3) and (3, 5) give (1, 5). Empty intervals, whose end is
    not greater than their start, cover nothing and vanish. The input may be any iterable of pairs in any
    order, and is not modified.
    """
    merged = []
    for start, end in sorted((start, end) for start, end in intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def total_length(intervals):
    """Return how many different integers the intervals cover; each counts once."""
    return sum(end - start for start, end in merge(intervals))


def gaps(intervals, start, end):
    """Return the sorted list of the longest intervals inside (start, end) that no interval covers.

    Intervals may reach beyond (start, end). Without any interval the whole of (start, end) is one gap; an
    empty (start, end) has no gaps.
    """
    free, at = [], start
    for covered_start, covered_end in merge(intervals):
        if covered_start >= end:
            break
        if covered_start > at:
            free.append((at, covered_start))
        at = max(at, covered_end)
    if at < end:
        free.append((at, end))
    return free
EOF
python3 -m unittest -q
