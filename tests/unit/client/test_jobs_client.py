"""Verbs about jobs over HTTP: what is sent, what comes back, and what the caller's machine adds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.canned import RUN, run
from tests.unit.client.scripted_tracker import KEY, Answer, ScriptedTracker, refused, said
from valkyrie.agents.scaffold import init_agent
from valkyrie.benchmarks.scaffold import init_benchmark
from valkyrie.client import ValkyrieClient
from valkyrie.config import values
from valkyrie.errors import MissingSecretError, UnknownError, UsageError
from valkyrie.tracker.remote import RemoteTracker
from valkyrie.views import PlanView, RunRequest, to_json
from valkyrie.views.jobs import JobAgent, JobChange, JobFilter, JobRequest

JOB = "7c1e0000-0000-4000-8000-000000000001"
TEMPLATE = RunRequest("", "quickstart")
END = b"event: end\nid: 9\ndata: {}\n\n"


def job(version: int = 1, state: str = "running", **changed: Any) -> dict[str, Any]:
    return {
        "id": JOB,
        "name": "nightly",
        "state": state,
        "created_at": 1_700_000_000.0,
        "started_by": "ann",
        "concurrency": 10,
        "metadata": {},
        "source": {"type": "benchmark", "benchmark_name": "quickstart"},
        "trials": 1,
        "agent_timeout": None,
        "timeout_multiplier": 1.0,
        "ends_at": None,
        "runs": [run(version)],
        "version": version,
        **changed,
    }


STARTED = said({"job": job(), "notices": ["from there"]}, 201)


def event(version: int, state: str = "running") -> bytes:
    return f"event: job\nid: {version}\ndata: {json.dumps(job(version, state))}\n\n".encode()


@pytest.fixture
def remote(tracker: ScriptedTracker) -> Iterator[RemoteTracker]:
    opened = RemoteTracker(tracker.url, client=ValkyrieClient(tracker.url, KEY, timeout=60, patience=60))
    yield opened
    opened.close()


def sent(tracker: ScriptedTracker, path: str = "/v1/jobs") -> dict[str, Any]:
    document: dict[str, Any] = tracker.requests("POST", path)[-1].json
    return document


async def test_only_what_was_said_is_sent(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    tracker.on("POST", "/v1/jobs", STARTED)
    agents = [JobAgent("oracle"), JobAgent("codex", "gpt-x")]
    started = await client.start_job(JobRequest(agents, TEMPLATE))
    assert (started.job.id, started.job.runs[0].id, started.notices) == (JOB, RUN, ["from there"])
    assert sent(tracker) == {
        "agents": [{"agent": "oracle"}, {"agent": "codex", "model": "gpt-x"}],
        "template": {"benchmark": "quickstart"},
    }
    template = RunRequest(
        "",
        "",
        env_vars={"A": "b"},
        agent_timeout=60.0,
        default_agent_timeout=7200.0,
        model_url="https://models.example.com",
    )
    await client.start_job(
        JobRequest([JobAgent("nop")], template, ["a", "b/c"], "n", 3, {"k": "v"}, 9.5), key="my own key"
    )
    assert sent(tracker) == {
        "agents": [{"agent": "nop"}],
        "template": {
            "env_vars": {"A": "b"},
            "agent_timeout": 60.0,
            "default_agent_timeout": 7200.0,
            "model_url": "https://models.example.com",
        },
        "scenarios": ["a", "b/c"],
        "name": "n",
        "concurrency": 3,
        "metadata": {"k": "v"},
        "time_limit": 9.5,
    }
    first, second = tracker.requests("POST", "/v1/jobs")
    assert second.headers["idempotency-key"] == "my own key" != first.headers["idempotency-key"]


async def test_a_rule_to_stop_by_is_sent(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    tracker.on("POST", "/v1/jobs", STARTED)
    rule: dict[str, Any] = {"stop_when_decided": True, "margin": 0.05, "error_rate": 0.01}
    await client.start_job(JobRequest([JobAgent("a"), JobAgent("b")], TEMPLATE, **rule))
    assert {name: sent(tracker)[name] for name in rule} == rule


async def test_a_lost_start_is_asked_again_under_its_key(
    client: ValkyrieClient, tracker: ScriptedTracker
) -> None:
    tracker.on("POST", "/v1/jobs", Answer(drop=True), STARTED)
    await client.start_job(JobRequest([JobAgent("nop")], TEMPLATE))
    keys = {one.headers["idempotency-key"] for one in tracker.requests("POST", "/v1/jobs")}
    assert len(tracker.asked) == 2 and len(keys) == 1


async def test_lists_and_names(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    tracker.on("GET", "/v1/jobs", said({"jobs": [job()], "cursor": "next"}))
    page = await client.jobs(JobFilter(5.5, ("failed", "timeout"), "n & m", 7, "here"))
    assert (page.jobs[0].name, page.cursor) == ("nightly", "next")
    assert tracker.asked[-1].query == [
        ("since", "5.5"),
        ("states", "failed"),
        ("states", "timeout"),
        ("name", "n & m"),
        ("limit", "7"),
        ("cursor", "here"),
    ]
    tracker.on("GET", "/v1/jobs/my%20job%3F", said(job()))
    tracker.on("GET", "/v1/jobs/my job?", said(job()))
    assert (await client.job(" my job? ")).id == JOB
    tracker.on("GET", f"/v1/jobs/{JOB}", said(job()))
    assert (await client.job("team/nightly")).id == JOB
    assert ("name", "team/nightly") in tracker.requests("GET", "/v1/jobs")[-1].query
    tracker.on("GET", "/v1/jobs", said({"jobs": [], "cursor": None}))
    for ref, error in (("team/other", UnknownError), ("..", UnknownError), (" ", UsageError)):
        with pytest.raises(error):
            await client.job(ref)


async def test_steering(client: ValkyrieClient, tracker: ScriptedTracker) -> None:
    base = f"/v1/jobs/{JOB}"
    tracker.on("POST", f"{base}/stop", said(job(2, "cancelled")))
    for verb in ("resume", "retry"):
        tracker.on("POST", f"{base}/{verb}", said({"job": job(3), "notices": []}))
    tracker.on("DELETE", base, Answer(status=204))
    assert (await client.stop_job(JOB)).ended
    assert sent(tracker, f"{base}/stop") == {}
    await client.stop_job(JOB, force=True)
    assert sent(tracker, f"{base}/stop") == {"force": True}
    await client.resume_job(JOB)
    assert sent(tracker, f"{base}/resume") == {}
    change = JobChange([JobAgent("nop", "m")], ["all"], trials=4, headers={"X": "y"})
    await client.resume_job(JOB, change)
    assert sent(tracker, f"{base}/resume") == {
        "agents": [{"agent": "nop", "model": "m"}],
        "scenarios": ["all"],
        "trials": 4,
        "headers": {"X": "y"},
    }
    await client.retry_job(JOB, category="agent", concurrency=2)
    assert sent(tracker, f"{base}/retry") == {"category": "agent", "concurrency": 2}
    await client.delete_job(JOB)
    assert tracker.asked[-1].method == "DELETE"


async def test_a_lost_stream_goes_on_after_the_last_version(
    client: ValkyrieClient, tracker: ScriptedTracker
) -> None:
    first = Answer([event(4), b"event: colour\nid: 4\ndata: 1\n\n", b"event: jo"], cut=True)
    second = Answer([event(4), event(6)])
    third = Answer([event(7, "completed"), END])
    tracker.on("GET", f"/v1/jobs/{JOB}/events", first, refused("StoreError", 503), second, third)
    seen = [(view.version, view.state) async for view in client.job_events(JOB, after=3)]
    assert seen == [(4, "running"), (6, "running"), (7, "completed")]
    assert [asked.headers["last-event-id"] for asked in tracker.asked] == ["3", "4", "4", "6"]


def test_following_ends_with_the_job_or_when_it_is_deleted(
    remote: RemoteTracker, tracker: ScriptedTracker
) -> None:
    tracker.on("GET", f"/v1/jobs/{JOB}/events", Answer([event(1), event(2, "failed"), END]))
    assert [view.state for view in remote.follow_job(JOB)] == ["running", "failed"]
    gone = refused("UnknownError", 404)
    tracker.on("GET", f"/v1/jobs/{JOB}/events", Answer([event(1)]), gone)
    assert [view.state for view in remote.follow_job(JOB)] == ["running"]
    tracker.on("GET", f"/v1/jobs/{JOB}/events", gone)
    with pytest.raises(UnknownError):
        next(remote.follow_job(JOB))


def test_folders_are_uploaded(remote: RemoteTracker, tracker: ScriptedTracker, tmp_path: Path) -> None:
    init_agent("mine", tmp_path)
    init_benchmark("tasks", tmp_path)
    task = next(one.parent.name for one in (tmp_path / "tasks").rglob("task.toml"))
    tracker.on("POST", "/v1/jobs", STARTED)
    tracker.on("POST", f"/v1/jobs/{JOB}/resume", STARTED)
    tracker.on("GET", f"/v1/jobs/{JOB}", said(job()))
    tracker.on("HEAD", "/v1/uploads/*", Answer())
    agents = [JobAgent("./mine", "m"), JobAgent("nop")]
    remote.start_job(JobRequest(agents, RunRequest("", "./tasks")))
    whole = sent(tracker)
    uploaded, benchmark = whole["agents"][0]["agent"], whole["template"]["benchmark"]
    assert uploaded.startswith("upload:") and benchmark.startswith("upload:") and uploaded != benchmark
    assert whole["agents"][0]["model"] == "m" and whole["agents"][1] == {"agent": "nop"}
    assert whole["name"].startswith("tasks-"), "a name of the caller's words, not of digests"
    scenarios = [f"./tasks/{task}", "reverse-lines", f"./tasks@default/{task}"]
    remote.start_job(JobRequest(agents, RunRequest("", ""), scenarios, name="n"))
    same = [f"{benchmark}/{task}", "reverse-lines", f"{benchmark}@default/{task}"]
    assert (sent(tracker)["scenarios"], sent(tracker)["name"]) == (same, "n")
    assert "benchmark" not in sent(tracker)["template"]
    remote.resume_job(JOB, JobChange([JobAgent("./mine")], [f"./tasks/{task}"]))
    assert sent(tracker, f"/v1/jobs/{JOB}/resume") == {"agents": [{"agent": uploaded}], "scenarios": same[:1]}


def test_paths_that_are_none(remote: RemoteTracker, tracker: ScriptedTracker) -> None:
    for agent, benchmark, scenarios in (
        ("./nowhere", "quickstart", ()),
        ("nop", "./nowhere", ()),
        ("nop", "", ("./nowhere/task",)),
    ):
        with pytest.raises(UsageError, match="nowhere"):
            remote.start_job(JobRequest([JobAgent(agent)], RunRequest("", benchmark), scenarios))
    assert not tracker.asked


def test_the_callers_config_goes_along(remote: RemoteTracker, tracker: ScriptedTracker) -> None:
    tracker.on("POST", "/v1/jobs", STARTED)
    values.set_entry(values.SERVICES, "quiz", "https://quiz.example.com/")
    values.set_entry(values.AUTH, "quiz", "Bearer its-credential")
    values.set_entry(values.SANDBOX_PROVIDERS, "daytona", "daytona-secret")
    remote.start_job(JobRequest([JobAgent("nop")], RunRequest("", "quiz", provider="daytona")))
    assert sent(tracker)["template"] == {
        "benchmark": "quiz",
        "provider": "daytona",
        "headers": {"Authorization": "Bearer its-credential"},
        "benchmark_url": "https://quiz.example.com",
        "provider_secret": "daytona-secret",
    }
    arguments = {"headers": ["Authorization"]}
    tracker.on("GET", f"/v1/jobs/{JOB}", said(job(runs=[run(benchmark="quiz", arguments=arguments)])))
    tracker.on("POST", f"/v1/jobs/{JOB}/resume", STARTED)
    tracker.on("POST", f"/v1/jobs/{JOB}/retry", STARTED)
    remote.resume_job(JOB)
    remote.retry_job(JOB)
    for verb in ("resume", "retry"):
        assert sent(tracker, f"/v1/jobs/{JOB}/{verb}") == {
            "headers": {"Authorization": "Bearer its-credential"}
        }


def test_secrets_only_this_machine_has(
    remote: RemoteTracker, tracker: ScriptedTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "planted-4711")
    missing = refused("MissingSecretError", 422, missing={"API_KEY": "team/key"})
    tracker.on("POST", "/v1/jobs", missing, STARTED)
    tracker.on("GET", "/v1/me", said({"org_id": "default", "org": "default"}))
    tracker.on("PUT", "/v1/secrets/*", Answer(status=204))
    started = remote.start_job(JobRequest([JobAgent("nop")], TEMPLATE))
    assert "stored team/key, encrypted, for organisation default" in started.notices[-2]
    assert started.notices[-1] == "from there"
    assert [one.json for one in tracker.asked if one.method == "PUT"] == [{"value": "planted-4711"}]
    tracker.on("POST", "/v1/jobs", missing)
    with pytest.raises(MissingSecretError, match="--no-store-secrets keeps it here"):
        remote.start_job(JobRequest([JobAgent("nop")], RunRequest("", "quickstart", store_secrets=False)))
    kept_here = [run(arguments={"store_secrets": False})]
    tracker.on("GET", f"/v1/jobs/{JOB}", said(job(runs=kept_here)))
    tracker.on("POST", f"/v1/jobs/{JOB}/retry", missing)
    with pytest.raises(MissingSecretError, match="--no-store-secrets keeps it here"):
        remote.retry_job(JOB)
    assert len([one for one in tracker.asked if one.method == "PUT"]) == 1


def test_one_of_the_keys_any_of_which_will_do_is_enough(
    remote: RemoteTracker, tracker: ScriptedTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    either = {name: name for name in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN")}
    monkeypatch.setenv("ANTHROPIC_API_KEY", "planted-4711")
    monkeypatch.delenv("CLAUDE_CODE_OAUTH_TOKEN", raising=False)
    tracker.on("POST", "/v1/jobs", refused("MissingSecretError", 422, missing=either), STARTED)
    tracker.on("GET", "/v1/me", said({"org_id": "default", "org": "default"}))
    tracker.on("PUT", "/v1/secrets/*", Answer(status=204))
    started = remote.start_job(JobRequest([JobAgent("claude-code")], TEMPLATE))
    assert "stored ANTHROPIC_API_KEY" in started.notices[0]
    assert [one.path for one in tracker.asked if one.method == "PUT"] == ["/v1/secrets/ANTHROPIC_API_KEY"]
    more = refused("MissingSecretError", 422, missing={**either, "OTHER_KEY": "OTHER_KEY"})
    tracker.on("POST", "/v1/jobs", more)
    with pytest.raises(MissingSecretError, match="this machine has ANTHROPIC_API_KEY"):
        remote.start_job(JobRequest([JobAgent("claude-code")], TEMPLATE))


def test_a_plan_is_told_as_it_would_be(
    remote: RemoteTracker, tracker: ScriptedTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = "Secrets without a value: team/key"

    def plan(*problems: str, **more: Any) -> dict[str, Any]:
        words = ("nop", "d", None, "quickstart", "default", "local", "none", {}, [], [], list(problems), [])
        return {**to_json(PlanView(*words)), **more}

    plans = [plan(lacking, missing={"API_KEY": "team/key"}), plan("no such task")]
    tracker.on("POST", "/v1/jobs/plan", said({"plans": plans, "problems": [lacking, "no such task"]}))
    request = JobRequest([JobAgent("nop")], TEMPLATE)
    assert remote.plan_job(request).problems == [lacking, "no such task"]
    monkeypatch.setenv("API_KEY", "planted-4711")
    told = remote.plan_job(request)
    assert told.problems == ["no such task"] and not told.plans[0].problems
