"""`--report-to` of a runner's commands: the run shows beside others, or the way out is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmark_runner import BenchmarkRunner, GenerationResult, Task, make_cli
from tests.integration.api.stage import Stage, serving_aside
from tests.integration.evals.runner_folder import write_run
from valkyrie.domain import Identity
from valkyrie.views import RunFilter


class Capitals(BenchmarkRunner):
    """Only its name matters here."""

    NAME = "capitals"

    def load_tasks(self, dataset_file: Path) -> list[Task]:
        raise NotImplementedError

    async def generate(self, task: Task, model: str, *_: Any, **__: Any) -> GenerationResult:
        raise NotImplementedError


def score(results: Path, url: str) -> Result:
    words = ["score", "--run-id", "run-1", "--results-dir", str(results), "--report-to", url]
    return CliRunner().invoke(make_cli(Capitals), [*words, "--service-url", "http://127.0.0.1:9"])


def test_a_scored_run_is_reported(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKYRIE_API_KEY", stage.ours)
    write_run(tmp_path / "results")
    with serving_aside(stage) as url:
        said = score(tmp_path / "results", url)
        [run] = stage.tracker_app.tracker(Identity()).list(RunFilter()).runs
        assert (said.exit_code, f"Reported to {url} as run {run.id}" in said.output) == (0, True), said.output
        assert (run.benchmark, run.agent, run.model) == ("capitals", "capitals-runner", "some-model")


def test_a_refused_report_names_the_way_out(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALKYRIE_API_KEY", "valk_nobody")
    artifacts = write_run(tmp_path / "results")
    with serving_aside(stage) as url:
        said = score(tmp_path / "results", url)
    assert said.exit_code == 1 and "does not know this key" in said.output
    assert f"valk ingest {artifacts.root}" in said.output and "valk_nobody" not in said.output
