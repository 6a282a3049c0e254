"""The `benchmark` command on the live example service and real sandboxes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmark_runner.sandbox.cli import cli
from benchmark_service import auth
from tests.integration.benchmark_runner.runner_project import QUESTIONS, Live
from tests.integration.benchmark_runner_sandbox.agents import agent
from tests.integration.benchmark_service.conftest import serving
from tests.integration.benchmark_service.hosted import Descope
from tests.integration.benchmark_service.quizzes import require_auth

ROOT = Path(__file__).parents[3]
ANSWERER = ROOT / "examples" / "agents" / "trivia-answerer"
SPIDER, PLANET, GOLD = list(QUESTIONS)[:3]
RUN = ("run", "--model", "m", "--run-id", "r1", "--network", "none")


def benchmark(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, (done.exit_code, done.output)
    return done.stdout if "--json" in words else done.output


@pytest.fixture
def hosted(service: Live, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """The service where callers show an access key, which the environment has."""
    descope = Descope({"acme-key": ["acme"]})
    auth.clear_auth_cache()
    auth.clear_allowlist_cache()
    with serving(descope.app()) as descope.url:
        require_auth(monkeypatch, descope, {"acme": {"datasets": ["default"]}})
        monkeypatch.setenv("VALS_AUTH_KEY", "acme-key")
        yield service
    auth.clear_auth_cache()
    auth.clear_allowlist_cache()


def test_an_agent_of_the_platform_runs_as_it_is(service: Live) -> None:
    direct = ("--contract", str(ANSWERER), "--service-url", service.url)
    said = benchmark(*RUN, *direct, SPIDER, GOLD)
    assert "Starting r1: 2 tasks" in said and "Final score: 100" in said
    assert "Resuming r1: 2 tasks" in benchmark(*RUN, *direct, SPIDER, GOLD)
    assert "(cached)" in benchmark("score", "--run-id", "r1", "--direct")
    told = json.loads(benchmark("eval", "--run-id", "r1", "--direct", "--force", "--json", SPIDER))
    assert told["complete"] and told["score"]["final_score"] == 100
    refused = benchmark(*RUN, *direct, "--image", "other", SPIDER, code=1)
    assert "started otherwise" in refused and "--force-resume" in refused


def test_from_a_manifest_to_a_score(hosted: Live, place: Path) -> None:
    folder = agent(place, defaults={"depth": 2})
    made = benchmark(
        *("manifest", "--service-url", hosted.url, "--dataset", "default", "--contract", str(folder)),
        *("--benchmark", "trivia", "--output", "out/trivia.yaml"),
    )
    assert "12 tasks" in made and "add out/trivia.yaml" in made
    added = benchmark("add", "out/trivia.yaml")
    assert "Installed trivia" in added and hosted.url in added
    assert "no pin changes" in benchmark("add", "out/trivia.yaml")
    agent(place, program="print('else')")
    benchmark(
        *("manifest", "--service-url", hosted.url, "--dataset", "default", "--contract", str(folder)),
        *("--benchmark", "trivia", "--required-env", "QUIZ_KEY", "--output", "other.yaml"),
    )
    assert "12 tasks" in benchmark("list")
    hosted.forget()

    said = benchmark(*RUN, "--skip-eval", "trivia", SPIDER)
    assert "Starting r1: 12 tasks" in said and "Processing 1/12" in said and hosted.asked == []
    config = json.loads(Path("results/trivia/r1/run_config.json").read_text())
    assert (config["benchmark"], config["payload_schema"]) == ("trivia", "trivia.text.v1")
    assert "Evaluating r1: 1 tasks" in benchmark("eval", "--run-id", "r1", "trivia", SPIDER)
    assert "Run is incomplete" in benchmark("score", "--run-id", "r1", "trivia", code=1)
    assert "Final score: 8.33 (incomplete run)" in benchmark("score", "--run-id", "r1", "--force", "trivia")

    replaced = benchmark("add", "other.yaml")
    assert "agent.bundle: " in replaced and "agent.required_env: " in replaced and "QUIZ_KEY" in replaced
    assert "needs QUIZ_KEY" in benchmark(*RUN, "trivia", GOLD, code=1)


def test_a_name_that_is_not_installed(service: Live) -> None:
    said = benchmark(*RUN, "trivai", code=1)
    assert "No benchmark trivai is installed" in said and "--contract" in said
    assert "No benchmarks are installed" in benchmark("list")
    assert "Name an installed BENCHMARK" in benchmark(*RUN, code=2)
    assert "SERVICE_URL" in benchmark(*RUN, "--contract", str(ANSWERER), SPIDER, code=2)
    assert "no benchmark's name" in benchmark("eval", "--run-id", "r1", "../x", code=1)


def test_errors_come_without_a_traceback(service: Live, place: Path) -> None:
    direct = ("--contract", str(ANSWERER), "--service-url", service.url)
    assert "Task ID not found: unknown-task" in benchmark(*RUN, *direct, "unknown-task", code=1)
    assert not Path("results/r1").exists()
    (place / "broken").mkdir()
    assert "has no contract.yaml" in benchmark(*RUN, "--contract", "broken", code=1)
    assert "DAYTONA_API_KEY" in benchmark(*RUN, *direct, "--provider", "daytona", SPIDER, code=1)
    (place / "m.yaml").write_text("benchmark: x")
    assert "not a benchmark's manifest" in benchmark("add", "m.yaml", code=1)
    refused = benchmark(
        *("manifest", "--service-url", service.url, "--dataset", "default", "--contract", str(ANSWERER)),
        *("--benchmark", "x", "--output", "x.yaml"),
        code=1,
    )
    assert "access key" in refused and not Path("x.yaml").exists()
