"""Every eval spec of a folder named by EVAL_SPECS_DIR, run from end to end with `mock`.

Their fixtures are not needed: what a spec names and is not there is made up.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.evals.commands import Valk
from tests.integration.evals.commands import valk as valk
from valkyrie.specs.model import EvalSpec, SpecError
from valkyrie.specs.project import find_project
from valkyrie.specs.reader import read_text

FOLDER = os.environ.get("EVAL_SPECS_DIR")
JUDGES = ("prompt", "panel", "pairwise")
FIXTURES = Path(__file__).parents[2] / "unit" / "specs" / "fixtures"

pytestmark = pytest.mark.slow


def spec_files() -> list[Path]:
    folders = [FIXTURES, *([Path(FOLDER)] if FOLDER else [])]
    found = [path for folder in folders for path in folder.rglob("*.y*ml")]
    return sorted(path for path in found if "stimuli:" in path.read_text() and "invalid" not in str(path))


@pytest.mark.parametrize("file", spec_files(), ids=lambda path: path.name)
def test_it_runs_from_end_to_end(valk: Valk, tmp_path: Path, file: Path) -> None:
    home = tmp_path / "a" / "b" / "c" / "d"
    home.mkdir(parents=True)
    text = file.read_text()
    copy = home / "eval.yaml"
    copy.write_text(text)
    names = {**dict.fromkeys(re.findall(r"\$\{([A-Z_]+)\}", text), "1")}
    names["ENVIRONMENT"] = "made-up"
    (tmp_path / "a" / ".vally.yaml").write_text(
        "environments:\n" + "".join(f"  {name}: {{}}\n" for name in sorted(environments(text) | {"made-up"}))
    )
    try:
        spec = read_text(text, copy, params=names, project=find_project(home)).spec
    except SpecError as error:
        pytest.skip(f"no valid spec: {error}")
    if any(grader.type in JUDGES for one in spec.stimuli for grader in one.graders):
        pytest.skip("it asks a judge")
    make_up(spec, home)
    params = [word for name, value in names.items() for word in ("--param", f"{name}={value}")]
    ended = valk(
        "eval",
        "-e",
        copy,
        "--executor",
        "mock",
        "--runs",
        "1",
        "--output",
        "jsonl",
        *params,
        *plugins(spec, tmp_path),
    )
    assert ended.code in (0, 1), ended.err
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [one["stimulus"] for one in lines] == [one.name for one in spec.stimuli], ended.err
    faults = [one for one in lines if one["status"] == "error"]
    assert not faults, faults[0].get("error")


def environments(text: str) -> set[str]:
    """Names of environments a spec leans on."""
    return set(re.findall(r"^\s*environment:\s*([A-Za-z][\w-]*)\s*$", text, re.MULTILINE))


def plugins(spec: EvalSpec, tmp_path: Path) -> list[str]:
    """Graders of plugins we do not have: each passes."""
    from valkyrie.grade.graders import known_types

    known = set(known_types())
    foreign = {grader.type for one in spec.stimuli for grader in one.graders} - known
    flags: list[str] = []
    for number, kind in enumerate(sorted(foreign)):
        path = tmp_path / f"plugin{number}.py"
        path.write_text(
            "from valkyrie.grade.protocol import GraderResult\n\n\nclass Foreign:\n"
            f"    type = {kind!r}\n\n    def __init__(self, spec):\n        self.spec = spec\n\n"
            "    def grade(self, given):\n"
            "        return GraderResult(self.spec.label, self.type, True, 1.0, 'made up')\n"
        )
        flags += ["--grader-plugin", str(path)]
    return flags


def make_up(spec: EvalSpec, home: Path) -> None:
    for one in spec.stimuli:
        environment = one.environment
        golden = (one.golden_patch_file, one.golden_trajectory_file)
        for entry in (*environment.files, *one.grading_files, *one.attachments, *golden):
            if entry and not entry.source.exists():
                entry.source.parent.mkdir(parents=True, exist_ok=True)
                entry.source.write_text("made up\n")
        for skill in environment.skills or ():
            if not skill.folder.exists():
                skill.folder.mkdir(parents=True)
                name = skill.folder.name
                (skill.folder / "SKILL.md").write_text(
                    f"---\nname: {name}\ndescription: made up\n---\n\n# {name}\n"
                )
        if environment.git is not None:
            make_repository(home / environment.git.source, environment.git.ref or "main")


def make_repository(folder: Path, ref: str) -> None:
    if (folder / ".git").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text("made up\n")
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "made up"], ["tag", ref]):
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *who, *words], cwd=folder, check=True)
