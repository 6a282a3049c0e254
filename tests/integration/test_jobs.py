"""Jobs through the command line, against a real executor process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import until
from tests.integration.scripted import open_gate
from valkyrie.cli.main import main
from valkyrie.executor.client import ExecutorClient
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.local import LocalTracker

pytestmark = pytest.mark.slow

BENCHMARK = "tests.integration.scripted:ScriptedBenchmark"
AGENT = "tests.integration.scripted:ScriptedAgent"

Valk = Callable[..., tuple[int, str, str]]


@pytest.fixture
def valk(tracker: LocalTracker, capsys: pytest.CaptureFixture[str]) -> Valk:
    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def run(valk: Valk, dataset: str, *words: str) -> tuple[int, str, str]:
    return valk(
        *("job", "run", "--benchmark", BENCHMARK, "--dataset", dataset, "--provider", "null", "-n", "mine"),
        *words,
    )


def summary(valk: Valk) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(valk("job", "summary", "mine", "-o", "json")[1])
    return found


def executions(document: dict[str, Any]) -> dict[str, int]:
    return {
        one["scenario_run_id"]: one["attempts"]
        for outcome in document["benchmark_outcomes"]
        for one in outcome["scenario_outcomes"]
    }


def test_two_agents_side_by_side(valk: Valk, tmp_path: Path) -> None:
    code, said, problem = run(
        valk, "ok*2,score=0,score=0.5,ungraded", "--agent", f"{AGENT}:red", "--agent", f"{AGENT}:blue:1",
        "--n-attempts", "2", "--metadata", "team=x", "--env-vars", "A=1", "--follow",
    )  # fmt: skip
    assert code == 0, problem
    assert "20 (2 agents × 5 tasks × 2 trials)" in said
    document = summary(valk)
    assert [one["model_name"] for one in document["benchmark_outcomes"]] == ["red", "blue:1"]
    for outcome in document["benchmark_outcomes"]:
        assert (outcome["n_completed"], outcome["n_failed"]) == (8, 2)
    assert document["metadata"] == {"team": "x"}
    config = document["job_spec"]["agent_configs"][0]
    assert config["agent_environment"]["environment_variables"] == {"A": "1"}
    assert document["statistics"][0]["scores"]["infrastructure_excluded"]["mean"] == pytest.approx(0.625)
    assert document["comparisons"][0]["verdict"] in ("same", "unclear")
    table = valk("job", "summary", "mine")[1]
    assert table.count("4 (40.0 %)") == 2 and table.count("2 (20.0 %)") == 6
    assert "mine" in valk("job", "list", "--status", "completed")[1]
    code, said, _ = valk("job", "logs", "mine", "-o", "kept", "--scenario", "ok-0")
    assert code == 0 and "4 scenarios" in said
    logs = sorted(
        path.relative_to(tmp_path / "kept").parts[1:] for path in Path("kept").absolute().rglob("attempt.log")
    )
    assert logs == sorted(
        (f"scripted_{model}", task, "attempt.log")
        for model in ("red", "blue_1")
        for task in ("ok-0", "ok-0-1")
    )
    assert "working on ok-0" in next(Path("kept").rglob("attempt.log")).read_text()


def test_a_job_grows_and_reruns_nothing(valk: Valk) -> None:
    assert run(valk, "ok*2", "--agent", f"{AGENT}:red", "--follow")[0] == 0
    before = executions(summary(valk))
    code, _, problem = valk(
        *("job", "resume", "mine", "--agent", f"{AGENT}:blue", "--n-attempts", "2", "--follow"),
        *("--n-concurrent-trials", "3"),
    )
    assert code == 0, problem
    document = summary(valk)
    after = executions(document)
    assert len(after) == 8 and set(after.values()) == {1} and before.items() <= after.items()
    assert document["job_spec"]["orchestrator_config"]["n_concurrent_trials"] == 3


def test_a_job_of_a_slice_grows_beyond_it(valk: Valk) -> None:
    assert run(valk, "ok*4", "--agent", AGENT, "--slice", ":1", "--follow")[0] == 0
    for words, tasks in (
        (("ok-2", "--n-attempts", "2"), {"ok-0", "ok-2"}),
        (("all",), {"ok-0", "ok-1", "ok-2", "ok-3"}),
    ):
        code, _, problem = valk("job", "resume", "mine", "--follow", "--scenarios", *words)
        assert code == 0, problem
        document = summary(valk)
        outcomes = document["benchmark_outcomes"][0]["scenario_outcomes"]
        assert sorted((one["scenario_name"], one["trial"]) for one in outcomes) == sorted(
            (task, trial) for task in tasks for trial in (0, 1)
        )
        assert document["runs"][0]["score"]["interval_method"] == "Gaffke over tasks"


def test_cancel_then_resume(valk: Valk, tracker: LocalTracker) -> None:
    assert run(valk, "held*4", "--agent", AGENT, "--n-concurrent-trials", "2")[0] == 0
    until(lambda: tracker.fetch_job("mine").runs[0].counts["IN_PROGRESS"])
    code, _, problem = valk("job", "cancel", "mine", "--force", "--yes")
    assert code == 0, problem
    assert valk("job", "watch", "mine")[0] == 1
    assert summary(valk)["state"] == "cancelled"
    open_gate()
    assert valk("job", "resume", "mine", "--n-concurrent-trials", "4", "--follow")[0] == 0
    assert summary(valk)["benchmark_outcomes"][0]["n_completed"] == 4
    assert valk("job", "delete", "mine", "--yes")[0] == 0
    assert valk("job", "summary", "mine")[0] == 2


def test_scenarios_by_name(valk: Valk) -> None:
    words = ("job", "run", "--agent", "nop", "--provider", "null", "--dry-run", "--json", "--scenarios")
    code, said, problem = valk(*words, "order-build-steps", "quickstart/dedupe-contacts-csv")
    assert code == 0, problem + said
    plan = json.loads(said)["plans"][0]
    assert [task for task, _, _ in plan["trials"]] == ["order-build-steps", "dedupe-contacts-csv"]
    code, _, problem = valk(*words, "order-build-step")
    assert code == 2 and "order-build-steps" in problem


@pytest.mark.slow
def test_resume_after_the_executor_was_killed(valk: Valk, tracker: LocalTracker, tmp_path: Path) -> None:
    agents = ("--agent", f"{AGENT}:a", "--agent", f"{AGENT}:b")
    assert run(valk, "ok*2,held*4", *agents, "--n-concurrent-trials", "4")[0] == 0
    until(lambda: any(view.done for view in tracker.fetch_job("mine").runs))
    status = ExecutorClient(DataFolder(tmp_path / "home")).status()
    assert status is not None
    os.kill(status["pid"], signal.SIGKILL)
    open_gate()
    before = {name for name, state in states(summary(valk)).items() if state == "COMPLETED"}
    code, _, problem = valk("job", "resume", "mine", "--follow")
    assert code == 0, problem
    document = summary(valk)
    assert set(states(document).values()) == {"COMPLETED"} and len(states(document)) == 12
    assert before and all(executions(document)[name] == 1 for name in before)


def states(document: dict[str, Any]) -> dict[str, str]:
    return {
        one["scenario_run_id"]: one["state"]
        for outcome in document["benchmark_outcomes"]
        for one in outcome["scenario_outcomes"]
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_oracle_and_nop_on_quickstart(valk: Valk) -> None:
    code, said, problem = valk(
        *("job", "run", "--agent", "oracle", "--agent", "nop", "--benchmark", "quickstart"),
        *("--n-attempts", "4", "-n", "mine", "--follow"),
    )
    assert code == 0, problem
    assert "96 (2 agents × 12 tasks × 4 trials)" in said and "96/96" in said
    document = summary(valk)
    oracle, nop = document["statistics"]
    assert [(one["planned"], one["graded"], one["passed"]) for one in (oracle, nop)] == [
        (48, 48, 48),
        (48, 48, 0),
    ]
    assert oracle["repeats"]["pass_at"] == [1.0] * 4 and nop["repeats"]["pass_all"] == [0.0] * 4
    assert oracle["repeats"]["flaky"] == nop["repeats"]["flaky"] == []
    [comparison] = document["comparisons"]
    assert (comparison["verdict"], comparison["difference"], comparison["tasks"]) == ("better", 1.0, 12)
    assert comparison["p_value"] == pytest.approx(2 * 0.5**12)
    assert comparison["sentence"].startswith("oracle beats nop by 100.0 points")
