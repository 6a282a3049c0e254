"""Findings for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from valkyrie.evals.lint.rules import RULES, annotation, to_sarif
from valkyrie.specs.model import Finding, Severity, SourceLocation

TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
SCHEMA = {
    "type": "object",
    "required": ["version", "runs", "$schema"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/run"}},
    },
    "$defs": {
        "run": {
            "type": "object",
            "required": ["tool", "results"],
            "additionalProperties": False,
            "properties": {
                "tool": {"$ref": "#/$defs/tool"},
                "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                "results": {"type": "array", "items": {"$ref": "#/$defs/result"}},
            },
        },
        "tool": {
            "type": "object",
            "required": ["driver"],
            "additionalProperties": False,
            "properties": {
                "driver": {
                    "type": "object",
                    "required": ["name"],
                    "additionalProperties": False,
                    "properties": {
                        "name": {"type": "string"},
                        "version": {"type": "string"},
                        "rules": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/rule"}},
                    },
                }
            },
        },
        "rule": {
            "type": "object",
            # GitHub asks for more than the standard does.
            "required": ["id", "shortDescription", "fullDescription", "help"],
            "additionalProperties": False,
            "properties": {
                "id": {"type": "string"},
                "name": {"type": "string", "pattern": "^[A-Za-z]+$"},
                "shortDescription": TEXT,
                "fullDescription": TEXT,
                "help": TEXT,
                "defaultConfiguration": {"type": "object", "properties": {"level": LEVEL}},
            },
        },
        "result": {
            "type": "object",
            "required": ["message"],
            "additionalProperties": False,
            "properties": {
                "ruleId": {"type": "string"},
                "ruleIndex": {"type": "integer", "minimum": 0},
                "level": LEVEL,
                "message": TEXT,
                "locations": {"type": "array", "items": {"$ref": "#/$defs/location"}},
            },
        },
        "location": {
            "type": "object",
            "required": ["physicalLocation"],
            "properties": {
                "physicalLocation": {
                    "type": "object",
                    "required": ["artifactLocation", "region"],
                    "additionalProperties": False,
                    "properties": {
                        "artifactLocation": {
                            "type": "object",
                            "required": ["uri"],
                            "additionalProperties": False,
                            "properties": {
                                "uri": {"type": "string", "format": "uri-reference"},
                                "uriBaseId": {"const": "%SRCROOT%"},
                            },
                        },
                        "region": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {
                                "startLine": {"type": "integer", "minimum": 1},
                                "startColumn": {"type": "integer", "minimum": 1},
                            },
                        },
                    },
                }
            },
        },
    },
}
"""What we use of SARIF 2.1.0, as its own schema has it; the whole of that was checked by its Multitool."""


def checked(findings: list[Finding], root: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(to_sarif(findings, root=root, version="1.2.3")))
    jsonschema_rs.validator_for(SCHEMA, validate_formats=True).validate(document)
    run: dict[str, Any] = document["runs"][0]
    return run


def test_every_code_makes_a_valid_document(tmp_path: Path) -> None:
    findings = [
        Finding(code, rule.severity, rule.summary, SourceLocation(tmp_path / "a b" / "eval.yaml", 3, 5))
        for code, rule in RULES.items()
    ]
    run = checked(findings, tmp_path)
    assert len(run["tool"]["driver"]["rules"]) == len(RULES)
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "a%20b/eval.yaml", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 3, "startColumn": 5}


def test_nothing_found_is_a_document_too(tmp_path: Path) -> None:
    assert checked([], tmp_path)["results"] == []


def test_files_elsewhere_have_a_whole_address(tmp_path: Path) -> None:
    run = checked([Finding("yaml", "error", "no", SourceLocation(Path("/elsewhere/é.yaml")))], tmp_path)
    artifact = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "file:///elsewhere/%C3%A9.yaml"}


@pytest.mark.parametrize(
    ("severity", "level", "command"),
    [("error", "error", "error"), ("warning", "warning", "warning"), ("info", "note", "notice")],
)
def test_severities(tmp_path: Path, severity: Severity, level: str, command: str) -> None:
    finding = Finding("yaml", severity, "said", None)
    assert checked([finding], tmp_path)["results"][0]["level"] == level
    assert annotation(finding, tmp_path) == f"::{command} title=yaml::said"


def test_an_annotation_cannot_be_broken_out_of(tmp_path: Path) -> None:
    finding = Finding(
        "yaml", "error", "50% bad\n::set-output name=x::y", SourceLocation(tmp_path / "a,b:c.yaml", 2, 7)
    )
    assert annotation(finding, tmp_path) == (
        "::error file=a%2Cb%3Ac.yaml,line=2,col=7,title=yaml::50%25 bad%0A::set-output name=x::y"
    )
