"""An agent in a sandbox without a network speaks to its model through the door, and to nothing else."""

from __future__ import annotations

import http.server
import json
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.abilities import need_local_sandboxes
from tests.live_folders import files_below
from valkyrie.agents.scaffold import init_agent
from valkyrie.errors import MissingSecretError, UsageError
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, TrialFilter
from valkyrie.views.jobs import JobAgent, JobRequest

ASKS = """
import os, socket, sys, urllib.request
url = os.environ["VALKYRIE_MODEL_URL"]
said = urllib.request.urlopen(url + "/answer", timeout=60).read().decode()
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 2)
    said += " and the host's own port"
except OSError:
    pass
open("/app/said.txt", "w").write(said + " " + os.environ["TONE"])
"""
CONTRACT = """
name: asker
install_cmd: "true"
run_cmd: python3 /bundle/asker/ask.py {port} < {problem_statement_path}
kwargs: {port: {type: int, required: true}}
output_artifacts: [{path: said.txt, source: /app/said.txt}]
"""
TASK = """
[environment]
network_mode = "no-network"
"""


class Model(http.server.BaseHTTPRequestHandler):
    """Answers everything."""

    def do_GET(self) -> None:
        body = f"model says {self.path}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def model() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def agent(tmp_path: Path) -> str:
    folder = tmp_path / "asker"
    folder.mkdir()
    (folder / "contract.yaml").write_text(CONTRACT)
    (folder / "ask.py").write_text(ASKS)
    return str(folder)


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    folder = tmp_path / "tasks" / "one"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text(TASK)
    (folder / "instruction.md").write_text("Ask.")
    check = (
        '[ "$(cat /app/said.txt)" = "model says /v1/answer calm" ]; '
        "echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    )
    (folder / "tests" / "test.sh").write_text(check)
    return str(folder.parent)


def test_the_model_is_reached_through_the_door_alone(
    tracker: LocalTracker, model: str, agent: str, tasks: str, tmp_path: Path
) -> None:
    need_local_sandboxes(tmp_path / "probe", network="none")
    port = model.rpartition(":")[2]
    request = RunRequest(
        agent=agent,
        benchmark=tasks,
        kwargs={"port": port},
        model_url=f"{model}/v1/",
        env_vars={"TONE": "calm"},
    )
    run = tracker.wait(tracker.start(request).run.id, timeout=60)
    assert run.score.final_score == 1.0, tracker.errors(run.id)
    assert "answer" not in {path.name for path in files_below(tracker.data.root / "doors")}


def test_a_model_that_is_away_is_the_agents_to_cope_with(
    tracker: LocalTracker, agent: str, tasks: str, tmp_path: Path
) -> None:
    need_local_sandboxes(tmp_path / "probe", network="none")
    request = RunRequest(
        agent=agent,
        benchmark=tasks,
        kwargs={"port": "1"},
        model_url="http://127.0.0.1:1",
        env_vars={"TONE": "calm"},
    )
    run = tracker.wait(tracker.start(request).run.id, timeout=60)
    trials, _ = tracker.trials(run.id, TrialFilter())
    # Its output is required: an agent that left none did not do its part.
    assert (trials[0].category, trials[0].cause) == ("agent", "agent_output_missing")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://x", "is no address"),
        ("127.0.0.1:80", "is no address"),
        ("http://", "is no address"),
        ("http://x:99999", "is no address"),
        ("http://me:word@x", "must hold no password"),
    ],
)
def test_an_address_that_is_none_is_refused(tracker: LocalTracker, url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        tracker.plan(RunRequest(agent="oracle", benchmark="quickstart", model_url=url))


def test_a_gpu_is_refused_where_there_is_none(tracker: LocalTracker, tasks: str) -> None:
    (toml,) = Path(tasks).rglob("task.toml")
    toml.write_text(TASK + "gpus = 1\n")
    for provider, refused in (("local", True), ("process", True), ("docker", False)):
        plan = tracker.plan(RunRequest(agent="nop", benchmark=tasks, provider=provider))
        assert (
            any("a GPU" in problem and "--provider docker" in problem for problem in plan.problems) == refused
        )


def test_a_name_that_is_no_variable_is_refused(tracker: LocalTracker) -> None:
    with pytest.raises(UsageError, match="no name of an environment variable"):
        tracker.plan(RunRequest(agent="oracle", benchmark="quickstart", env_vars={"A B": "c"}))
    with pytest.raises(UsageError, match="--env KEY VALUE") as refused:
        tracker.plan(RunRequest(agent="oracle", benchmark="quickstart", env_vars={"KEY=s3cret": "--dry-run"}))
    assert "s3cret" not in str(refused.value)


def test_missing_keys_are_named_before_anything_starts(
    tracker: LocalTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    template = RunRequest(agent="", benchmark="quickstart")
    agents = [JobAgent("claude-code", "m"), JobAgent("codex", "m"), JobAgent("oracle")]
    with pytest.raises(MissingSecretError) as refused:
        tracker.start_job(JobRequest(agents, template))
    assert "ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN" in str(refused.value)
    assert "codex needs OPENAI_API_KEY" in str(refused.value)
    assert not list(tracker.data.root.glob("runs/*"))
    monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", "t-1234567890")
    plan = tracker.plan(RunRequest(agent="claude-code", model="m", benchmark="quickstart"))
    assert list(plan.secrets) == ["CLAUDE_CODE_OAUTH_TOKEN"]


def test_an_agent_that_may_do_without_a_key_is_told_of(
    tracker: LocalTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    request = RunRequest(agent="goose", model="m", benchmark="quickstart")
    (said,) = [notice for notice in tracker.plan(request).notices if "no key for its model" in notice]
    assert "ANTHROPIC_API_KEY, OPENAI_API_KEY or GOOGLE_API_KEY" in said
    for enough in ({"model_url": "http://127.0.0.1:1"}, {"env_vars": {"OTHER_KEY": "x"}}):
        notices = str(tracker.plan(replace(request, **enough)).notices)
        assert "no key" not in notices
        assert ("nothing answers at --model-url" in notices) == ("model_url" in enough)
    monkeypatch.setenv("OPENAI_API_KEY", "t-1234567890")
    assert "no key" not in str(tracker.plan(request).notices)


@pytest.fixture
def scripted_model(tmp_path: Path) -> Iterator[str]:
    """The model server as a user starts it, with a script that makes the file, after one refusal."""
    script = [
        {"fault": "rate_limit", "times": 1, "retry_after": 0},
        {"shell": "printf 'model says /v1/answer calm' > said.txt && nosuchprogram", "text": "I write it."},
        {"say": "Done."},
    ]
    (tmp_path / "turns.json").write_text(json.dumps(script))
    command = [sys.executable, "-m", "valkyrie", "model-server", "--script", str(tmp_path / "turns.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


def test_the_agent_that_calls_a_model_does_what_the_model_says(
    tracker: LocalTracker, scripted_model: str, tasks: str, tmp_path: Path
) -> None:
    need_local_sandboxes(tmp_path / "probe", network="none")
    folder = init_agent("caller", tmp_path, calls_model=True)
    request = RunRequest(agent=str(folder), benchmark=tasks, model="any", model_url=scripted_model)
    run = tracker.wait(tracker.start(request).run.id, timeout=120)
    assert run.score.final_score == 1.0, tracker.errors(run.id)
    (archive,) = tracker.data.run(run.id).root.rglob("agent_output.tar.gz")
    with tarfile.open(archive) as kept:
        texts = {Path(one.name).name: kept.extractfile(one) for one in kept.getmembers() if one.isfile()}
        assert set(texts) == {"messages.json", "metrics.json"}
        metrics, messages = texts["metrics.json"], texts["messages.json"]
        assert metrics is not None and json.load(metrics)["tokens"]["input"] > 0
        assert messages is not None and "exit code 127" in messages.read().decode()
