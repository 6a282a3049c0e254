"""Findings for machines: SARIF 2.1.0, and annotations of a GitHub workflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from valkyrie.lint.codes import RULES
from valkyrie.nouns import Json
from valkyrie.plain_text import safe
from valkyrie.specs.model import Finding

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def to_sarif(findings: Sequence[Finding], *, root: Path, version: str) -> Json:
    """One run of the linter; files below `root` are named relative to it."""
    codes = sorted({finding.code for finding in findings})
    index = {code: at for at, code in enumerate(codes)}
    driver = {"name": "valkyrie", "version": version, "rules": [_rule(code) for code in codes]}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, index[finding.code], root) for finding in findings],
            }
        ],
    }


def _rule(code: str) -> Json:
    rule = RULES.get(code)
    if rule is None:
        return {"id": code}
    said = {"text": rule.summary}
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in code.split("-")),
        "shortDescription": said,
        "fullDescription": said,
        "help": {"text": f"{rule.summary} docs/reference/lint.md says how to mend it."},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, at: int, root: Path) -> Json:
    result: Json = {
        "ruleId": finding.code,
        "ruleIndex": at,
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.message},
    }
    if finding.place:
        place = finding.place
        location = {
            "artifactLocation": _artifact(place.file, root),
            "region": {"startLine": max(1, place.line), "startColumn": max(1, place.column)},
        }
        result["locations"] = [{"physicalLocation": location}]
    return result


def _artifact(file: Path, root: Path) -> Json:
    whole = file.absolute()
    if whole.is_relative_to(root):
        return {"uri": quote(whole.relative_to(root).as_posix()), "uriBaseId": "%SRCROOT%"}
    return {"uri": whole.as_uri()}


def annotation(finding: Finding, root: Path) -> str:
    """One line that GitHub shows beside the code."""
    fields = {"title": finding.code}
    if finding.place:
        file = finding.place.file.absolute()
        shown = file.relative_to(root) if file.is_relative_to(root) else file
        fields = {
            "file": shown.as_posix(),
            "line": str(finding.place.line),
            "col": str(finding.place.column),
            **fields,
        }
    said = ",".join(f"{name}={_escape(safe(value), ':,')}" for name, value in fields.items())
    return f"::{_COMMANDS[finding.severity]} {said}::{_escape(safe(finding.message, keep_lines=True))}"


def _escape(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
