from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from valkyrie.dashboard import charts
from valkyrie.dashboard.charts import CostPoint, ScoreRow

HOSTILE = "<b onclick='x'>&\"n"


def _parsed(svg: str) -> ET.Element:
    return ET.fromstring(str(svg))


def _texts(svg: str) -> list[str]:
    return [one.text or "" for one in _parsed(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("fraction", [True, False])
def test_names_are_text_in_every_chart(fraction: bool) -> None:
    rows = [ScoreRow(HOSTILE, 0.5, (0.25, 0.75), "50.0 %"), ScoreRow("b", None, None, "—")]
    points = [CostPoint(HOSTILE, 1.0, 0.5), CostPoint("b", 2.0, 0.25)]
    for svg in (
        charts.forest(rows, fraction=fraction),
        charts.score_against_cost(points, fraction=fraction),
        charts.pass_curves({HOSTILE: [0.5, 0.75], "b": [0.25]}),
    ):
        assert HOSTILE in _texts(svg)
        assert "<b" not in svg


def test_a_bar_is_as_long_as_its_parts() -> None:
    svg = charts.state_bar({"FINISHED": 3, "ERROR": 1, "PENDING": 4}, passed=2)
    shapes = {
        str(one.get("class")): float(one.get("width") or 0)
        for one in _parsed(svg).iter("{http://www.w3.org/2000/svg}rect")
    }
    assert shapes == {"s-none": 160, "s-passed": 40, "s-FINISHED": 20, "s-ERROR": 20, "s-PENDING": 80}
    assert "no trials" in charts.state_bar({})


def test_the_front_has_those_that_no_other_one_beats_in_both() -> None:
    cheap, middle, beaten, best = (
        CostPoint("cheap", 1, 0.2),
        CostPoint("middle", 2, 0.5),
        CostPoint("beaten", 3, 0.4),
        CostPoint("best", 4, 0.9),
    )
    assert charts.pareto_front([best, beaten, cheap, middle]) == [cheap, middle, best]


def test_phases_share_one_scale() -> None:
    svg = charts.phases({"build": 1.0, "agent": 2.0, "odd": 9.0}, longest=4.0, width=400)
    widths = [float(one.get("width") or 0) for one in _parsed(svg).iter("{http://www.w3.org/2000/svg}rect")]
    assert widths == [100, 200]
    assert charts.phases({}, longest=0.0)


@pytest.mark.parametrize(
    ("text", "most", "short"), [("short", 10, "short"), ("abcdefghijklmnop", 9, "abcde…nop"), ("ab", 2, "ab")]
)
def test_long_names_are_cut_in_the_middle(text: str, most: int, short: str) -> None:
    assert charts.shorten(text, most) == short
    assert len(charts.shorten(text, most)) <= most
