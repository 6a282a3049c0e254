"""The verbs over HTTP for the command line: what the caller's machine adds, and steps of iterators."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.client.canned import RUN, attempt, run
from tests.unit.client.scripted_tracker import KEY, Answer, ScriptedTracker, refused, said
from valkyrie.agents.scaffold import init_agent
from valkyrie.benchmarks.scaffold import init_benchmark
from valkyrie.client import ValkyrieClient
from valkyrie.config import values
from valkyrie.config.values import secrets_path
from valkyrie.errors import MissingSecretError, UsageError, UserError
from valkyrie.secrets import SecretStore
from valkyrie.tracker import open_tracker
from valkyrie.tracker.protocol import Tracker
from valkyrie.tracker.remote import RemoteTracker
from valkyrie.views import PlanView, ResumeRequest, RetryRequest, RunRequest, TasksRequest, to_json

STARTED = said({"run": run(), "notices": ["from there"]}, 201)
REQUEST = RunRequest("oracle", "quickstart")


@pytest.fixture
def remote(tracker: ScriptedTracker) -> Iterator[RemoteTracker]:
    opened = RemoteTracker(tracker.url, client=ValkyrieClient(tracker.url, KEY, timeout=60, patience=60))
    yield opened
    opened.close()


def test_it_speaks_the_protocol(remote: RemoteTracker) -> None:
    speaks: Tracker = remote
    assert speaks is remote


def test_settings_choose_the_tracker(tracker: ScriptedTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker.on("GET", "/v1/secrets", said([{"name": "theirs"}]))
    values.set_value("tracker_url", tracker.url)
    values.set_value("api_key", KEY)
    opened = open_tracker(to_start=True)
    try:
        assert [secret.name for secret in opened.secrets()] == ["theirs"]
    finally:
        opened.close()
        opened.close()
    assert tracker.asked[0].headers["authorization"] == f"Bearer {KEY}"
    values.remove("tracker_url")
    opened = open_tracker()
    assert not isinstance(opened, RemoteTracker)
    opened.close()


def sent(tracker: ScriptedTracker, path: str = "/v1/runs") -> dict[str, object]:
    document: dict[str, object] = tracker.requests("POST", path)[-1].json
    return document


def test_folders_are_uploaded(remote: RemoteTracker, tracker: ScriptedTracker, tmp_path: Path) -> None:
    agent, benchmark = init_agent("mine", tmp_path), init_benchmark("tasks", tmp_path)
    tracker.on("POST", "/v1/runs", STARTED)
    tracker.on("HEAD", "/v1/uploads/*", Answer())
    tracker.on("GET", "/v1/agents", said([]))
    asked = set()
    for words in (("./mine", "./tasks"), ("mine", "tasks"), (str(agent), str(benchmark))):
        remote.start(RunRequest(*words))
        asked.add((str(sent(tracker)["agent"]), str(sent(tracker)["benchmark"])))
    ((uploaded, tasks),) = asked
    assert uploaded.startswith("upload:") and tasks.startswith("upload:") and uploaded != tasks
    pushed = {"name": "mine", "modified_at": 1.0, "bytes": 1, "digest": None}
    tracker.on("GET", "/v1/agents", said([pushed]))
    remote.start(RunRequest("mine", "quickstart"))
    assert (sent(tracker)["agent"], sent(tracker)["benchmark"]) == ("mine", "quickstart")


def test_paths_that_are_none(remote: RemoteTracker, tracker: ScriptedTracker) -> None:
    with pytest.raises(UsageError, match="is no folder"):
        remote.start(RunRequest("./nowhere", "quickstart"))
    with pytest.raises(UsageError, match=r"no folder \./nowhere"):
        remote.start(RunRequest("oracle", "./nowhere"))
    assert not tracker.asked


def test_the_callers_config_goes_along(remote: RemoteTracker, tracker: ScriptedTracker) -> None:
    tracker.on("POST", "/v1/runs", STARTED)
    values.set_entry(values.SERVICES, "quiz", "https://quiz.example.com/")
    values.set_entry(values.AUTH, "quiz", "Bearer its-credential")
    values.set_entry(values.SANDBOX_PROVIDERS, "daytona", "daytona-secret")
    remote.start(RunRequest("oracle", "quiz", provider="daytona"))
    assert sent(tracker) == {
        "agent": "oracle",
        "benchmark": "quiz",
        "provider": "daytona",
        "headers": {"Authorization": "Bearer its-credential"},
        "benchmark_url": "https://quiz.example.com",
        "provider_secret": "daytona-secret",
    }
    remote.start(RunRequest("oracle", "quiz", headers={"authorization": "mine"}))
    assert sent(tracker)["headers"] == {"authorization": "mine"}
    values.set_entry(values.AUTH, "quickstart", "not for a folder")
    remote.start(REQUEST)
    assert sent(tracker) == {"agent": "oracle", "benchmark": "quickstart"}
    remote.start(RunRequest("oracle", "https://quiz.example.com:8443/v"))
    assert "benchmark_url" not in sent(tracker)


def test_services_by_pattern_and_registry(
    remote: RemoteTracker, tracker: ScriptedTracker, tmp_path: Path
) -> None:
    tracker.on("POST", "/v1/benchmarks/tasks", said({"task_ids": ["b", "a"], "datasets": ["default"]}))
    (tmp_path / "registry.json").write_text(json.dumps({"known": "http://known.example.com"}))
    values.set_value("service_registry", str(tmp_path / "registry.json"))
    values.set_value("service_base_url", "svc.example.com")
    assert remote.benchmark_tasks(TasksRequest("known")).task_ids == ["b", "a"]
    assert sent(tracker, "/v1/benchmarks/tasks")["benchmark_url"] == "http://known.example.com"
    remote.benchmark_tasks(TasksRequest("other", "lite"))
    assert sent(tracker, "/v1/benchmarks/tasks") == {
        "benchmark": "other",
        "dataset": "lite",
        "benchmark_url": "https://other.svc.example.com",
    }


def test_a_folders_tasks_are_read_here(
    remote: RemoteTracker, tracker: ScriptedTracker, tmp_path: Path
) -> None:
    init_benchmark("tasks", tmp_path)
    assert len(remote.benchmark_tasks(TasksRequest("./tasks")).task_ids) == 1
    assert not tracker.asked


def test_benchmarks_of_both_sides(remote: RemoteTracker, tracker: ScriptedTracker) -> None:
    values.set_entry(values.SERVICES, "quiz", "https://mine.example.com")
    theirs = {
        "name": "quiz",
        "description": "d",
        "tasks": None,
        "url": "https://theirs",
        "source": "registry",
    }
    shipped = {"name": "quickstart", "description": "d", "tasks": 12, "url": None, "source": "shipped"}
    tracker.on("GET", "/v1/benchmarks", said([shipped, theirs]))
    assert [(one.name, one.url) for one in remote.benchmarks()] == [
        ("quickstart", None),
        ("quiz", "https://mine.example.com"),
    ]


MISSING = refused("MissingSecretError", 422, "1 secret without a value", missing={"API_KEY": "team/key"})


def test_secrets_only_the_caller_has_are_kept(
    remote: RemoteTracker, tracker: ScriptedTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    tracker.on("POST", "/v1/runs", MISSING, STARTED)
    tracker.on("GET", "/v1/me", said({"org": "Team"}))
    tracker.on("PUT", "/v1/secrets/team/key", Answer(status=204))
    notices = remote.start(REQUEST).notices
    stored = "stored team/key, encrypted, for organisation Team; --no-store-secrets refuses"
    assert notices == [stored, "from there"]
    assert tracker.requests("PUT", "/v1/secrets/team/key")[0].json == {"value": "hunter2"}
    keys = [asked.headers["idempotency-key"] for asked in tracker.requests("POST", "/v1/runs")]
    assert len(set(keys)) == 2


def test_secrets_are_not_kept_against_the_callers_will(
    remote: RemoteTracker, tracker: ScriptedTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    tracker.on("POST", "/v1/runs", MISSING)
    with pytest.raises(MissingSecretError, match="--no-store-secrets keeps it here") as caught:
        remote.start(RunRequest("oracle", "quickstart", store_secrets=False))
    assert "hunter2" not in str(caught.value)
    tracker.on("GET", f"/v1/runs/{RUN}", said(run(arguments={"store_secrets": False})))
    tracker.on("POST", f"/v1/runs/{RUN}/resume", MISSING)
    with pytest.raises(MissingSecretError, match="--no-store-secrets keeps it here"):
        remote.resume(RUN)
    assert not [asked for asked in tracker.asked if asked.method == "PUT"]


def test_a_plan_counts_on_what_would_be_kept(
    remote: RemoteTracker, tracker: ScriptedTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = PlanView("a", "d", None, "b", "default", "local", "x", {}, [], [], [], [])
    about_secrets = [
        "1 secret without a value:\n  team/key (fills API_KEY): …",
        "1 secret without a value:\n  slack-hook: …",
    ]
    missing = {"API_KEY": "team/key", "slack-hook": "slack-hook"}
    problems = [*about_secrets, "no bucket"]
    tracker.on("POST", "/v1/runs/plan", said({**to_json(plan), "problems": problems, "missing": missing}))
    assert remote.plan(REQUEST).problems == problems, "nothing of it is here"
    monkeypatch.setenv("API_KEY", "hunter2")
    SecretStore(secrets_path()).set("slack-hook", "hunter3")
    found = remote.plan(REQUEST)
    assert found.problems == ["no bucket"] and len(found.notices) == 2
    assert remote.plan(RunRequest("oracle", "quickstart", store_secrets=False)).problems == problems


def test_nothing_is_kept_for_a_run_that_would_not_start(
    remote: RemoteTracker, tracker: ScriptedTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    several = "2 things stand in the way:\n  1. …\n  2. …"
    missing = {"API_KEY": "team/key"}
    tracker.on(
        "POST", "/v1/runs", refused("MissingSecretError", 422, several, cause="preflight", missing=missing)
    )
    with pytest.raises(
        MissingSecretError, match=r"2 things stand in the way(.|\n)*this machine has team/key"
    ):
        remote.start(REQUEST)
    tracker.on(
        "POST",
        "/v1/runs",
        refused("MissingSecretError", 422, "2 secrets without a value", missing={**missing, "B": "nobodys"}),
    )
    with pytest.raises(MissingSecretError, match="this machine has team/key;"):
        remote.start(REQUEST)
    assert not [asked for asked in tracker.asked if asked.method == "PUT"]


def test_secrets_nobody_has(remote: RemoteTracker, tracker: ScriptedTracker) -> None:
    tracker.on("POST", "/v1/runs", MISSING)
    with pytest.raises(MissingSecretError, match="1 secret without a value"):
        remote.start(REQUEST)
    assert len(tracker.asked) == 1


def test_going_on_brings_what_is_not_stored(remote: RemoteTracker, tracker: ScriptedTracker) -> None:
    values.set_entry(values.SERVICES, "quiz", "https://moved.example.com")
    values.set_entry(values.AUTH, "quiz", "its-credential")
    arguments = {"headers": ["Authorization", "X-Team"], "service": {"url": "https://old.example.com"}}
    tracker.on("GET", f"/v1/runs/{RUN}", said(run(benchmark="quiz", arguments=arguments)))
    tracker.on("POST", f"/v1/runs/{RUN}/retry", STARTED)
    remote.retry(RUN, RetryRequest(headers={"X-Team": "blue"}))
    assert sent(tracker, f"/v1/runs/{RUN}/retry") == {
        "headers": {"Authorization": "its-credential", "X-Team": "blue"},
        "benchmark_url": "https://moved.example.com",
    }
    tracker.on("GET", f"/v1/runs/{RUN}", said(run(benchmark="quiz")))
    tracker.on("POST", f"/v1/runs/{RUN}/resume", STARTED)
    remote.resume(RUN, ResumeRequest(concurrency=3))
    assert sent(tracker, f"/v1/runs/{RUN}/resume") == {"concurrency": 3}


def test_a_shell_is_elsewhere(remote: RemoteTracker, tracker: ScriptedTracker) -> None:
    tracker.on("GET", f"/v1/runs/{RUN}/shell", said({"argv": ["nsenter", "--target", "12", "a b"]}))
    times = {"started_at": 1, "heartbeat_at": 1}
    executor = {"id": "e", "host": "worker-7", "pid": 1, "version": "1", "active": 0, **times}
    tracker.on("GET", "/v1/queue", said({"entries": [], "executors": [executor]}))
    with pytest.raises(UserError, match=r"on worker-7.*\n  nsenter --target 12 'a b'"):
        remote.shell(RUN, "a")


def event(version: int, state: str) -> bytes:
    return f"event: run\nid: {version}\ndata: {json.dumps(run(version, state))}\n\n".encode()


def test_following_step_by_step(remote: RemoteTracker, tracker: ScriptedTracker) -> None:
    tracker.on("GET", f"/v1/runs/{RUN}", said(run(2)))
    hold = threading.Event()
    first = Answer([event(1, "IN_PROGRESS")], hold=hold, cut=True)
    tracker.on("GET", f"/v1/runs/{RUN}/events", first, Answer([event(2, "FINISHED")]))
    views = remote.follow(RUN)
    assert next(views).version == 1
    assert remote.fetch(RUN).version == 2  # between two steps other questions can be asked
    hold.set()
    assert [view.state for view in views] == ["FINISHED"]


def test_iterators_may_be_left(remote: RemoteTracker, tracker: ScriptedTracker) -> None:
    hold = threading.Event()
    tracker.on("GET", f"/v1/runs/{RUN}/attempts", said([attempt(1, None)]))
    tracker.on("GET", f"/v1/runs/{RUN}/log", Answer([b"one", b"two"], hold=hold))
    try:
        pieces = remote.logs(RUN, "a", follow=True)
        assert next(pieces).startswith("one")
        pieces.close()  # type: ignore[attr-defined]
        abandoned = remote.logs(RUN, "a", follow=True)
        assert next(abandoned).startswith("one")
        remote.close()
        del abandoned
    finally:
        hold.set()
