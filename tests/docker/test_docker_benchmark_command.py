"""The `benchmark` command's tasks in containers of their images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmark_runner.sandbox.cli import cli
from benchmark_runner.sandbox.manifest import write_yaml
from tests.docker_engine import IMAGE, PrivateEngine

pytestmark = pytest.mark.slow

MANIFEST: dict[str, Any] = {
    "benchmark": "sums",
    "service": {"url": "http://127.0.0.1:1"},
    "dataset": {"name": "default"},
    "agent": {
        "install_cmd": "touch /installed",
        "run_cmd": "case {task_id} in slow) sleep 60;; esac; "
        'test -e /installed && mkdir -p /out/{task_id} && echo "{\\"status\\": \\"success\\", '
        '\\"data\\": \\"$(( $(cat {problem_statement_path}) ))\\"}" > /out/{task_id}/generation.json',
        "final_output": "/out",
    },
    "eval": {"payload_schema": "sums.text.v1"},
    "tasks": [
        {"id": "small", "question": "1 + 2", "timeout": 30, "image": IMAGE},
        {
            "id": "large",
            "question": "20 * 20",
            "image": IMAGE,
            "resources": {"vcpu": 1, "memory": 1, "disk": 1},
        },
        {"id": "slow", "question": "1", "timeout": 1, "image": IMAGE},
    ],
}


def test_tasks_run_in_their_images(
    engine: PrivateEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_yaml(tmp_path / "sums.yaml", MANIFEST)
    assert CliRunner().invoke(cli, ["add", "sums.yaml"]).exit_code == 0
    words = "run sums --model m --run-id r1 --network none --skip-eval --provider docker".split()
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    found = {
        name: json.loads((tmp_path / f"results/sums/r1/{name}/generation.json").read_text())
        for name in ("small", "large", "slow")
    }
    assert (found["small"]["data"], found["large"]["data"]) == ("3", "400")
    assert found["slow"]["status"] == "max_time"
    assert engine.left() == []
