"""`benchmark-job run`: what the words of the command line ask for."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest
from click.shell_completion import ShellComplete

from tests.unit.cli.command_result import CommandResult
from tests.unit.cli.filled_store import FilledStore
from tests.unit.cli.recorded_tracker import RecordedTracker
from valkyrie.cli.main import root
from valkyrie.views.jobs import JobAgent, JobRequest

Valk = Callable[..., CommandResult]


NULL = ("--benchmark", "valkyrie.testing.null:NullBenchmark", "--dataset", "2", "--provider", "null")


@pytest.fixture(autouse=True)
def empty_store(filled: FilledStore) -> None:
    """Nothing is in the store, and no real executor is started."""


def asked(tracker: RecordedTracker) -> JobRequest:
    request = tracker.asked("start_job", "plan_job")[0]
    assert isinstance(request, JobRequest)
    return request


def test_every_option_reaches_the_tracker(valk: Valk, tracker: RecordedTracker) -> None:
    done = valk(
        *("benchmark-job", "run", "--agent", "codex:gpt-5", "--agent", "nop", "--scenarios", "a", "lib@x/b"),
        *("-n", "mine", "--env-vars", "A=1", "B=2=3", "--secrets", "KEY=vault-key", "--timeout", "60"),
        *("--n-attempts", "4", "--n-concurrent-trials", "7", "--timeout-multiplier", "1.5"),
        *("--metadata", "team=blue", "--metadata", "why=test it", "--time-limit", "3600"),
        *("--provider", "null", "-k", "size", "big", "--priority", "0", "--max-cost", "$5", "-l", "x"),
        *("--model-url", "http://127.0.0.1:1/v1", "--host-image", "--max-attempts", "2", "-i", "50"),
        *("--verify", "shared", "--family", "repo"),
        *("--stop-when-decided", "--margin", "5", "--error-rate", "0.01"),
    )
    assert done.code == 2 and "no task is called 'a' in quickstart" in done.err
    request = asked(tracker)
    assert (request.stop_when_decided, request.margin, request.error_rate) == (True, 0.05, 0.01)
    assert request.template.family == "repo"
    assert request.agents == [JobAgent("codex", "gpt-5"), JobAgent("nop")]
    assert request.scenarios == ("a", "lib@x/b")
    assert (request.name, request.concurrency, request.time_limit) == ("mine", 7, 3600)
    assert request.metadata == {"team": "blue", "why": "test it"}
    common = request.template
    assert (common.agent, common.model, common.benchmark) == ("", None, "")
    assert common.env_vars == {"A": "1", "B": "2=3"} and common.secrets == {"KEY": "vault-key"}
    assert (common.agent_timeout, common.default_agent_timeout) == (60, 7200)
    assert (common.trials, common.timeout_multiplier, common.concurrency) == (4, 1.5, 7)
    assert (common.provider, common.kwargs, common.priority) == ("null", {"size": "big"}, 0)
    assert (common.max_cost, common.label, common.model_url) == (5, "x", "http://127.0.0.1:1/v1")
    assert (common.host_image, common.max_attempts, common.intervals) == (True, 2, (50,))
    assert common.verify == "shared"


def test_defaults_are_those_of_the_reference(valk: Valk, tracker: RecordedTracker) -> None:
    assert valk("bmj", "run", "--agent", "nop", "--benchmark", "quickstart").code == 0
    request = asked(tracker)
    assert (request.template.benchmark, request.template.trials, request.concurrency) == ("quickstart", 1, 10)
    assert request.template.timeout_multiplier == 1.0
    assert (request.template.agent_timeout, request.template.default_agent_timeout) == (None, 7200)


def test_what_was_started_is_told_with_the_next_commands(valk: Valk, filled: FilledStore) -> None:
    agents = ("--agent", "nop:gpt-5", "--agent", "nop")
    done = valk("job", "run", *agents, *NULL, "--n-attempts", "2", "--model-url", "http://127.0.0.1:1/v1")
    assert "nop:gpt-5, nop" in done.out
    assert "8 (2 agents × 2 tasks × 2 trials)" in done.out
    assert "the task's own, else 7200 s" in done.out
    (job,) = valk("job", "list", "--json").json["jobs"]
    job_id = job["id"][:8]
    assert f"valk job fetch {job_id} --connect" in done.out
    for verb in ("fetch", "results", "logs", "stop"):
        assert f"valk job {verb} {job_id}" in done.out
    assert "Note: " in done.err and "127.0.0.1:1" in done.err and len(filled.run_ids()) == 2


def test_json_and_yaml_are_one_document(valk: Valk) -> None:
    import yaml

    words = ("job", "run", "--agent", "nop", *NULL)
    document = valk(*words, "--json").json
    assert document["kind"] == "job" and document["event"] == "launch"
    assert document["job_spec"]["orchestrator_config"]["n_concurrent_trials"] == 10
    for again in (valk(*words, "-o", "json").json, yaml.safe_load(valk(*words, "-o", "yaml").out)):
        assert again.keys() == document.keys() and again["job_spec"] == document["job_spec"]
    clash = valk(*words, "-o", "yaml", "--json")
    assert clash.code == 2 and "exclude each other" in clash.json_error["error_message"]


def test_a_dry_run_starts_nothing(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    words = ("job", "run", "--agent", "nop", "--agent", "nop:gpt-5", *NULL, "--dry-run")
    done = valk(*words)
    assert done.code == 0 and "nothing was started" in done.out and "nop:gpt-5" in done.out
    words = (*words, "--secrets", "OPENAI_API_KEY=none-such")
    done = valk(*words)
    assert done.code == 1 and "none-such (fills OPENAI_API_KEY)" in done.out
    assert valk(*words, "--json").json["would_start"] is False
    assert not tracker.asked("start_job") and filled.run_ids() == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--agent", "nop"], "either --benchmark or --scenarios"),
        (["--agent", "nop", "--benchmark", "q", "--scenarios", "a"], "either --benchmark or --scenarios"),
        (["--benchmark", "q"], "--agent"),
        (["--agent", "nop:", "--benchmark", "q"], "no model after it"),
        (["--agent", "nop", "--agent", "nop", "--benchmark", "q"], "given twice"),
        (["--agent", "nop", "--scenarios", "a", "--slice", ":1"], "already names the tasks"),
        (["--agent", "nop", "--benchmark", "q", "--env-vars", "A"], "KEY=VALUE"),
        (["--agent", "nop", "--benchmark", "q", "--secrets", "A"], "ENV=SECRET"),
        (["--agent", "nop", "--benchmark", "q", "--timeout", "0"], "x>0"),
        (["--agent", "nop", "--benchmark", "q", "--n-attempts", "0"], "x>=1"),
        (["--agent", "nop", "--benchmark", "q", "-n", " "], "--job-name is empty"),
        (["--agent", "nop", "--benchmark", "q", "-o", "xml"], "'xml' is not one of"),
    ],
)
def test_wrong_words_start_nothing(
    valk: Valk, tracker: RecordedTracker, words: list[str], complaint: str
) -> None:
    done = valk("job", "run", *words)
    assert done.code == 2 and complaint in done.err
    assert not tracker.asked()


def test_an_error_is_json_where_json_was_asked_for(valk: Valk) -> None:
    done = valk("job", "summary", "nothing-like-it", "-o", "json")
    assert done.code == 2 and done.json_error["command"] == "benchmark-job fetch"


def test_follow_watches_to_the_end(valk: Valk, filled: FilledStore) -> None:
    filled.executor.on_wake = filled.end_runs
    done = valk("job", "run", "--agent", "nop", *NULL, "-n", "mine", "--follow")
    assert done.code == 0 and "job mine  completed  2/2" in done.out
    filled.executor.on_wake = lambda: [
        filled.change_run(run_id, state="ERROR", finished_at=1.0, error="no score")
        for run_id in filled.run_ids()
    ]
    assert valk("job", "run", "--agent", "nop", *NULL, "-f").code == 1


def test_aliases_work_show_once_and_complete(valk: Valk, filled: FilledStore) -> None:
    filled.add_job_of_two()
    shown = valk("--help").out
    assert shown.count("benchmark-job") == 1 and "benchmark-job, job, bmj" in shown
    for word in ("benchmark-job", "job", "bmj"):
        assert "Usage" in valk(word, "list", "--help").out
    complete = ShellComplete(root, {}, "valk", "_VALK_COMPLETE")
    assert [item.value for item in complete.get_completions([], "bmj")] == ["bmj"]
    assert [item.value for item in complete.get_completions([], "jo")] == ["job"]
    assert [item.value for item in complete.get_completions(["job"], "wa")] == ["wait"]
    assert [item.value for item in complete.get_completions(["bmj", "watch"], "nigh")] == ["nightly"]
    assert isinstance(root.get_command(click.Context(root), "job"), click.Group)


@pytest.mark.parametrize(
    "words",
    [
        ("--margin", "5"),
        ("--error-rate", "0.01"),
        ("--stop-when-decided", "--margin", "0"),
        ("--stop-when-decided", "--margin", "100"),
        ("--stop-when-decided", "--error-rate", "0.5"),
        ("--stop-when-decided", "--margin", "nan"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(
    valk: Valk, tracker: RecordedTracker, words: tuple[str, ...]
) -> None:
    done = valk("job", "run", "--agent", "a", "--agent", "b", "--benchmark", "quickstart", *words)
    assert done.code == 2 and "--" in done.err
    assert not tracker.asked("start_job")


def test_several_benchmarks_and_parameters_of_one_agent(valk: Valk, tracker: RecordedTracker) -> None:
    words = ("--agent", "codex", "--agent", "nop", "--model", "gpt-5", "--benchmark", "a", "--benchmark", "b")
    kwargs = (
        "--agent-kwarg",
        "codex",
        "effort=high",
        "--agent-kwarg",
        "nop:gpt-5",
        "x",
        "1",
        "-k",
        "all",
        "2",
    )
    assert "unknown benchmark 'a'" in valk("job", "start", *words, *kwargs, "--task-ids", "t1,t2", "t3").err
    request = asked(tracker)
    assert request.benchmarks == ("a", "b") and request.template.benchmark == ""
    assert request.template.task_ids == ["t1", "t2", "t3"] and request.template.kwargs == {"all": "2"}
    assert [(one.said, one.kwargs) for one in request.agents] == [
        ("codex:gpt-5", {"effort": "high"}),
        ("nop:gpt-5", {"x": "1"}),
    ]
    said = valk("job", "start", *words, "--agent-kwarg", "goose", "a=b")
    assert said.code == 2 and "no agent of the job is called 'goose'" in said.err
    said = valk("job", "start", *words, "--agent-kwarg", "nop")
    assert said.code == 2 and "is not of the form AGENT KEY=VALUE" in said.err


def test_tasks_alone_find_their_benchmark(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    first, second, third, *_ = valk("benchmark", "tasks", "quickstart").out.split()
    words = ("--agent", "nop", "--task-ids", f"{first},{second}", third, "--provider", "process")
    assert valk("job", "start", *words).code == 0
    request = asked(tracker)
    assert request.scenarios == (first, second, third) and request.template.task_ids is None
    (run_id,) = filled.run_ids()
    assert filled.run_row(run_id).benchmark == "quickstart" and filled.run_row(run_id).n_pending == 3


def test_results_and_verdict_of_a_job(valk: Valk, filled: FilledStore) -> None:
    filled.add_job_of_two()
    assert valk("job", "results", "nightly", "--path", "-").json["runs"][0]["name"] == "codex:gpt-5"
    said = valk("job", "wait", "nightly")
    assert said.code == 1 and "Not passed: nop: 1 error open" in said.err
