"""What both common JUnit schemas (Apache Ant's and Jenkins xUnit's) allow, as a check that fails loudly."""

from __future__ import annotations

import re
from xml.etree import ElementTree

WHOLE = re.compile(r"[0-9]+")
DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")
MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")
TOKEN = re.compile(r"\S+( \S+)*")
ANY = re.compile(r"(?s).*")

SUITE = {
    "name": TOKEN, "package": TOKEN, "id": WHOLE, "timestamp": MOMENT, "hostname": TOKEN, "tests": WHOLE,
    "failures": WHOLE, "errors": WHOLE, "skipped": WHOLE, "time": DECIMAL,
}  # fmt: skip
CASE = {"name": TOKEN, "classname": TOKEN, "time": DECIMAL}
TOLD = {"message": ANY, "type": TOKEN}


def checked(text: str) -> ElementTree.Element:
    """The document's root; AssertionError where a schema says no, or a count does not add up."""
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites" and not root.attrib
    for number, suite in enumerate(root):
        _suite(suite)
        assert suite.get("id") == str(number)
    return root


def _suite(suite: ElementTree.Element) -> None:
    assert suite.tag == "testsuite"
    _attributes(suite, SUITE)
    properties, *cases, out, err = suite
    assert [properties.tag, out.tag, err.tag] == ["properties", "system-out", "system-err"]
    assert not len(out) and not len(err) and not out.attrib and not err.attrib
    for one in properties:
        assert one.tag == "property"
        _attributes(one, {"name": TOKEN, "value": ANY})
    for case in cases:
        _case(case)
    counts = {
        tag: sum(case.find(tag) is not None for case in cases) for tag in ("failure", "error", "skipped")
    }
    told = {"failure": suite.get("failures"), "error": suite.get("errors"), "skipped": suite.get("skipped")}
    assert {tag: str(count) for tag, count in counts.items()} == told
    assert suite.get("tests") == str(len(cases))


def _case(case: ElementTree.Element) -> None:
    assert case.tag == "testcase"
    _attributes(case, CASE)
    assert len(case) <= 1
    for one in case:
        assert one.tag in ("failure", "error", "skipped") and not len(one)
        _attributes(one, {"message": ANY} if one.tag == "skipped" else TOLD)


def _attributes(element: ElementTree.Element, wanted: dict[str, re.Pattern[str]]) -> None:
    assert set(element.attrib) == set(wanted), element.attrib
    for name, pattern in wanted.items():
        assert pattern.fullmatch(element.attrib[name]), (element.tag, name, element.attrib[name])
