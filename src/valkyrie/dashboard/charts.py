"""Charts as SVG text, made on the server.

Shapes carry classes, never inline styles: the pages' content security policy allows neither inline styles nor
scripts, and the style sheet knows light and dark. All text that comes from outside is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

STATES = ("FINISHED", "EVALUATING", "IN_PROGRESS", "BUILDING", "PENDING", "STOPPED", "SKIPPED", "ERROR")
"""In the order a bar shows them."""
PHASES = ("build", "setup", "install", "agent", "collect", "grade")
_ROW = 30
_LABEL = 200
_PLOT = 420
_AXIS = 26


class ScoreRow(NamedTuple):
    """A named score with its interval, as a row of a forest plot."""

    name: str
    value: float | None
    interval: tuple[float, float] | None
    text: str
    """The score as everything else prints it."""


class CostPoint(NamedTuple):
    """One agent's score and what it cost."""

    name: str
    cost: float
    score: float


def _svg(
    width: float,
    height: float,
    title: str,
    parts: Iterable[Markup],
    kind: str = "chart",
    *,
    stretched: bool = False,
) -> Markup:
    size = {"width": f"{width:g}", "height": f"{height:g}"}
    return _shape(
        "svg",
        _shape("title", title),
        *parts,
        kind=kind,
        role="img",
        viewBox=f"0 0 {width:g} {height:g}",
        xmlns="http://www.w3.org/2000/svg",
        **({"preserveAspectRatio": "none"} if stretched else size),
    )


def _shape(name: str, *inside: str, kind: str = "", **attributes: object) -> Markup:
    """Return an element; whatever is not markup already is escaped."""
    given = {**({"class": kind} if kind else {}), **attributes}
    words = Markup("").join(
        Markup(' {}="{}"').format(
            key.replace("_", "-"), f"{value:.2f}" if isinstance(value, float) else value
        )
        for key, value in given.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, words, Markup("").join(inside))


def _text(x: float, y: float, words: str, kind: str = "label", anchor: str = "start") -> Markup:
    return _shape("text", words, kind=kind, x=float(x), y=float(y), text_anchor=anchor)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return _shape("line", kind=kind, x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2))


def _rectangle(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> Markup:
    told = [_shape("title", title)] if title else []
    return _shape("rect", *told, kind=kind, x=float(x), y=float(y), width=float(width), height=float(height))


def _path(places: Iterable[tuple[float, float]], kind: str) -> Markup:
    return _shape("polyline", kind=kind, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places))


def _amount(value: float, *, fraction: bool) -> str:
    return f"{100 * value:.0f} %" if fraction else f"{value:.3g}"


def shorten(text: str, most: int) -> str:
    """Return a text of at most so many characters, cut in its middle: names differ at both ends."""
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def state_bar(counts: Mapping[str, int], passed: int = 0, *, long: bool = False) -> Markup:
    """Draw how many trials are in each state; of the finished ones, those that passed come first."""
    width, height = (1000, 12) if long else (160, 8)
    total = sum(counts.get(state, 0) for state in STATES)
    finished = counts.get("FINISHED", 0)
    pieces = [("passed", min(passed, finished)), ("FINISHED", finished - min(passed, finished))]
    pieces += [(state, counts.get(state, 0)) for state in STATES[1:]]
    parts, at = [_rectangle(0, 0, width, height, "s-none")], 0.0
    for state, count in pieces:
        if count and total:
            length = width * count / total
            parts.append(_rectangle(at, 0, length, height, f"s-{state}"))
            at += length
    told = ", ".join(f"{count} {_word(state)}" for state, count in pieces if count) or "no trials"
    return _svg(width, height, told, parts, "bar long" if long else "bar", stretched=long)


def _word(state: str) -> str:
    return {"FINISHED": "graded without a pass"}.get(state, state.lower().replace("_", " "))


def forest(rows: Sequence[ScoreRow], *, fraction: bool) -> Markup:
    """Draw scores with their 95 % intervals below each other, on one axis."""
    ends = [end for row in rows for end in (row.interval or ())]
    ends += [row.value for row in rows if row.value is not None]
    low, high = (0.0, 1.0) if fraction else (min(ends, default=0.0), max(ends, default=1.0))
    if high <= low:
        low, high = low - 1.0, high + 1.0
    bottom = _ROW * len(rows)

    def across(value: float) -> float:
        return _LABEL + _PLOT * (min(max(value, low), high) - low) / (high - low)

    parts = []
    for tick in range(5):
        value = low + (high - low) * tick / 4
        parts.append(_line(across(value), 0, across(value), bottom, "grid"))
        parts.append(_text(across(value), bottom + 18, _amount(value, fraction=fraction), "tick", "middle"))
    for place, row in enumerate(rows):
        middle = _ROW * place + _ROW / 2
        parts.append(_text(0, middle + 4, shorten(row.name, 28)))
        if row.interval is not None:
            left, right = across(row.interval[0]), across(row.interval[1])
            parts.append(_line(left, middle, right, middle, "whisker"))
            parts += [_line(end, middle - 5, end, middle + 5, "whisker") for end in (left, right)]
        if row.value is not None:
            parts.append(_shape("circle", kind="point", cx=across(row.value), cy=middle, r=5))
        parts.append(_text(_LABEL + _PLOT + 12, middle + 4, row.text, "value"))
    return _svg(_LABEL + _PLOT + 130, bottom + _AXIS, "Scores with 95 % intervals", parts)


_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640.0, 260.0, 60.0, 220.0, 20.0
_RIGHT = _WIDTH - 150


def _scale(low: float, high: float, *, fraction: bool) -> list[Markup]:
    """Draw lines across a chart, with numbers at their left."""
    parts = []
    for tick in range(5):
        y = _BOTTOM - (_BOTTOM - _TOP) * tick / 4
        parts.append(_line(_LEFT, y, _WIDTH - 130, y, "grid"))
        said = _amount(low + (high - low) * tick / 4, fraction=fraction)
        parts.append(_text(_LEFT - 8, y + 4, said, "tick", "end"))
    return parts


def score_against_cost(points: Sequence[CostPoint], *, fraction: bool) -> Markup:
    """Draw what each agent scored against what it cost, with the agents nobody beats in both."""
    most = max((point.cost for point in points), default=0.0) or 1.0
    scores = [point.score for point in points]
    low, high = (0.0, 1.0) if fraction else (min([0.0, *scores]), max([*scores, 0.0]))

    def place(point: CostPoint) -> tuple[float, float]:
        rise = (point.score - low) / ((high - low) or 1.0)
        return _LEFT + (_RIGHT - _LEFT) * point.cost / most, _BOTTOM - (_BOTTOM - _TOP) * rise

    front = pareto_front(points)
    parts = [
        *_scale(low, high, fraction=fraction),
        _text(_LEFT, _BOTTOM + 20, "$ 0", "tick", "middle"),
        _text(_RIGHT, _BOTTOM + 20, f"$ {most:.2f}", "tick", "middle"),
        _path(map(place, front), "front"),
    ]
    for point in points:
        x, y = place(point)
        parts.append(_shape("circle", kind="point" if point in front else "point beaten", cx=x, cy=y, r=5))
        parts.append(_text(x + 9, y + 4, shorten(point.name, 24)))
    return _svg(_WIDTH, _HEIGHT, "Score against cost", parts)


def pareto_front(points: Sequence[CostPoint]) -> list[CostPoint]:
    """Return those for which no other one is both cheaper and better, cheapest first."""
    front: list[CostPoint] = []
    for point in sorted(points, key=lambda one: (one.cost, -one.score)):
        if not front or point.score > front[-1].score:
            front.append(point)
    return front


def pass_curves(curves: Mapping[str, Sequence[float]]) -> Markup:
    """Draw pass@k of each agent over k."""
    longest = max((len(values) for values in curves.values()), default=1)

    def across(k: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (k / max(1, longest - 1))

    parts = _scale(0.0, 1.0, fraction=True)
    for k in range(0, longest, max(1, math.ceil(longest / 8))):
        parts.append(_text(across(k), _BOTTOM + 20, f"k = {k + 1}", "tick", "middle"))
    for number, (name, values) in enumerate(curves.items()):
        places = [(across(k), _BOTTOM - (_BOTTOM - _TOP) * value) for k, value in enumerate(values)]
        parts.append(_path(places, f"curve c{number % 6}"))
        if places:
            parts.append(_text(places[-1][0] + 9, places[-1][1] + 4, shorten(name, 20)))
    return _svg(_WIDTH, _HEIGHT, "pass@k", parts)


def phases(timing: Mapping[str, float], longest: float, width: int = 420) -> Markup:
    """Draw how long each phase of an attempt took; `longest` is the whole width."""
    at, parts, told = 0.0, [], []
    for phase in PHASES:
        seconds = timing.get(phase) or 0.0
        if seconds <= 0 or longest <= 0:
            continue
        length = width * seconds / longest
        parts.append(_rectangle(at, 0, max(length, 0.5), 12, f"p-{phase}", f"{phase}: {seconds:.2f} s"))
        at += length
        told.append(f"{phase} {seconds:.1f} s")
    return _svg(width, 12, ", ".join(told) or "no times", parts, "bar")
