"""One row for each rule of each built-in grader: what it is given, and what it must say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.grade.rows_done import DONE
from tests.unit.grade.rows_left import LEFT
from tests.unit.grade.rows_said import SAID
from tests.unit.grade.sample_transcripts import Row, outcome, result_of
from valkyrie.specs.model import GraderSpec

ROWS = [*SAID, *LEFT, *DONE]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("graded")
    root = top / "workspace"
    for name, content in {
        "go.mod": b"module demo\ngo 1.22\n",
        "src/main.go": b"package main\n",
        "src/deep/er/inner.txt": b"deep",
        "src/deep/inner.txt": b"deep",
        ".gitignore": b"target\n",
        ".github/workflows/ci.yml": b"jobs: {}\n",
        "latin.txt": b"caf\xe9",
        "data/out.json": b'{"n": 3}',
        "custom_metrics.json": b'{"cost": 2.5, "clean": true, "mode": "fast", "runs": [1]}',
        "data/metrics.json": b'{"values": {"cost": 7}, "cost": 1}',
        "../outside/secret.txt": b"secret",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "escape").symlink_to(top / "outside")
    (root / "escape.txt").symlink_to(top / "outside/secret.txt")
    (root / "alias.mod").symlink_to("go.mod")
    (root / "broken").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    return root


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_rule(row: Row, workspace: Path) -> None:
    given = {"workspace": workspace, **row.given}
    result = await result_of(GraderSpec(row.type, row.config, turn=row.turn), row.transcript, **given)
    assert outcome(result) == row.expected, result.evidence
    assert result.evidence
    assert (result.name, result.type) == (row.type, row.type)


def test_every_built_in_has_rows() -> None:
    from valkyrie.grade.protocol import WHERE

    judged = {"prompt", "panel"}
    assert {row.type for row in ROWS} == set(WHERE) - judged
