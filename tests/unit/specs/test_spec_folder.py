"""Other people's specs: with EVAL_SPECS_DIR=<folder>, every one of them is read.

A file whose path has `invalid` in it must be refused; what its name says is missing must be what is told.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from valkyrie.specs.experiment import read_experiment
from valkyrie.specs.model import Project
from valkyrie.specs.reader import examine

FOLDER = os.environ.get("EVAL_SPECS_DIR")
FILES = sorted(file for end in ("yaml", "yml") for file in Path(FOLDER).rglob(f"*.{end}")) if FOLDER else []
INTENDED = {
    "missing-graders": "no-graders",
    "missing-stimuli": "no-stimuli",
    "duplicate": "duplicate-stimulus",
}
NAMED = re.compile(r"^\s*environment:\s*[\"']?([A-Za-z0-9_.-]+)[\"']?\s*$", re.MULTILINE)


@pytest.mark.skipif(not FOLDER, reason="EVAL_SPECS_DIR names no folder")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_spec_somebody_wrote(file: Path) -> None:
    text = file.read_text()
    if "experiment" in file.name:
        assert read_experiment(file).variants
        return
    params = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "anything")
    names = {*NAMED.findall(text), "anything"}
    project = Project(file=None, folder=file.parent, environments={name: {} for name in names})
    spec, findings = examine(file, params=params, project=project)
    errors = [finding for finding in findings if finding.severity == "error"]
    if "invalid" in str(file.relative_to(Path(FOLDER or "."))):
        wanted = [code for words, code in INTENDED.items() if words in file.name]
        assert errors
        assert not wanted or [finding.code for finding in errors] == wanted
    else:
        assert errors == []
        assert spec is not None
        assert spec.stimuli
