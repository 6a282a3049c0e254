"""Commands that only look: they start nothing but our own git, open no connection, run nothing of a project.

Python's audit events show every process, connection and piece of code of the command itself; strace, where it
is installed, shows those of its children too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import valkyrie
from tests.git_repository import git
from tests.hostile.test_git_repositories import Scene

pytestmark = pytest.mark.slow
SECRET = "canary-secret-value"
WATCHER = """\
import json, os, sys

log = open(sys.argv[1], "a", buffering=1)
project = os.path.realpath(sys.argv[2])
words = json.loads(sys.argv[3])
busy = False

def told(value):
    if isinstance(value, (bytes, os.PathLike)):
        return os.fsdecode(value)
    if isinstance(value, (list, tuple)):
        return [told(one) for one in value]
    if isinstance(value, dict):
        return {told(key): told(one) for key, one in value.items()}
    return value if isinstance(value, (str, int)) or value is None else repr(value)

STARTS = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "os.fork", "os.forkpty", "os.spawn")
CONNECTS = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.bind",
            "socket.gethostbyname", "urllib.Request", "http.client.connect")

def watch(event, args):
    global busy
    if busy:
        return
    busy = True
    try:
        if event in STARTS or event in CONNECTS:
            log.write(json.dumps({"event": event, "args": told(args)}) + "\\n")
        elif event == "exec" and not args[0].co_filename.startswith("<"):
            if os.path.realpath(args[0].co_filename).startswith(project + "/"):
                log.write(json.dumps({"event": "code", "args": [args[0].co_filename]}) + "\\n")
        elif event == "open" and isinstance(args[0], str) and "/private/" in os.path.realpath(args[0]):
            log.write(json.dumps({"event": "read", "args": [args[0]]}) + "\\n")
    finally:
        busy = False

sys.addaudithook(watch)
from valkyrie.cli.main import main

for one in words:
    try:
        code = main(one)
    except SystemExit as ended:
        code = ended.code
    log.write(json.dumps({"event": "ended", "args": one, "code": code}) + "\\n")
"""
EVAL = """\
name: fx
defaults: {executor: mock, judge_model: claude-x}
stimuli:
  - name: repository
    prompt: Do it.
    environment: {git: {type: worktree, source: fx.git}, commands: ["touch CANARY"]}
    graders: [{type: prompt, config: {prompt: Good?}}, {type: run-command, config: {command: touch CANARY}}]
  - name: hidden
    prompt: Do it.
    grading_environment: {files: [{src: fx.git/secret.txt, dest: s.txt}]}
    graders: [{type: program, config: {program: ./check.sh}}]
"""
TASK = """\
version = "1.0"
[metadata]
name = "evil"
[environment]
build_timeout_sec = 60
"""
CONTRACT = "name: evil\ninstall_cmd: touch CANARY\nrun_cmd: touch CANARY; cat {problem_statement_path}\n"
LOOKING = [
    "lint",
    "lint --strict --verbose --format sarif",
    "lint -e eval.yaml",
    "lint evil tasks x.experiment.yaml",
    "eval -e eval.yaml --dry-run",
    "eval -e eval.yaml --executor agent:./evil --dry-run",
    "experiment run x.experiment.yaml --dry-run",
    "run start --agent oracle --benchmark ./tasks --host-image --dry-run",
    "run start --agent ./evil --benchmark ./tasks --host-image --dry-run",
    "job run --agent oracle --agent nop --benchmark ./tasks --host-image --dry-run",
    "export -e eval.yaml --exporter csv",
    "export -e eval.yaml --exporter harbor --output-dir exported",
    "agent list",
    "benchmark list",
    "trust --list",
    "--help",
    "eval --help",
]
TRACED = (
    "lint -e eval.yaml",
    "eval -e eval.yaml --dry-run",
    "run start --agent ./evil --benchmark ./tasks --host-image --dry-run",
    "job run --agent oracle --agent nop --benchmark ./tasks --host-image --dry-run",
)


class Stranger:
    """A stranger's project: whatever of it runs leaves a canary, and nobody may call its listener."""

    def __init__(self, folder: Path, listener: socket.socket, *, lazy: bool) -> None:
        self.scene = Scene(folder)
        self.project, self.canary = self.scene.project, self.scene.canary
        port = listener.getsockname()[1]
        self.listener = listener
        self.scene.configure(
            "remote.origin.url=REPOSITORY\nremote.origin.uploadpack=RUN\ncore.fsmonitor=RUN", lazy=lazy
        )
        code = f"open({str(self.canary)!r}, 'a').write(__file__)\n"
        for name in ("mine", "sitecustomize", "usercustomize", "conftest", "yaml", "click", "setup"):
            (self.project / f"{name}.py").write_text(code)
        for name in ("git", "bwrap", "docker", "python3"):
            (self.project / name).symlink_to(self.scene.run)
        files = {
            "eval.yaml": EVAL,
            "x.experiment.yaml": "name: x\nevals: [eval.yaml]\nvariants: {a: {}, b: {model: m}}\n",
            ".vally.yaml": "plugins: {graders: [mine.py], executors: [mine.py]}\n",
            ".env": "ANTHROPIC_BASE_URL=http://127.0.0.1:PORT\nVALKYRIE_JUDGE_URL=http://127.0.0.1:PORT\n"
            "GIT_SSH_COMMAND=CANARY\nHTTPS_PROXY=http://127.0.0.1:PORT\n",
            "evil/contract.yaml": CONTRACT,
            "evil/setup.py": code,
            "tasks/evil/task.toml": TASK,
            "tasks/evil/instruction.md": "Do it.\n",
            "tasks/evil/environment/Dockerfile": "FROM scratch\nRUN touch CANARY\n",
            "tasks/evil/environment/setup.sh": "#!/bin/sh\ntouch CANARY\n",
            "tasks/evil/tests/test.sh": "#!/bin/sh\ntouch CANARY\n",
            "tasks/evil/solution/solve.sh": "#!/bin/sh\ntouch CANARY\n",
        }
        if not lazy:
            del files[".env"]  # refused or not, plans are shown without it
        for name, text in files.items():
            (self.project / name).parent.mkdir(parents=True, exist_ok=True)
            (self.project / name).write_text(
                text.replace("CANARY", str(self.canary)).replace("PORT", str(port))
            )
        git(self.project, "init", "--quiet", "--template=")
        home = folder / "home"
        (home / "private").mkdir(parents=True)
        (home / "private/key").write_text(SECRET)
        self.environment = {
            "PATH": f".:{os.environ['PATH']}",
            "HOME": str(home),
            "VALKYRIE_HOME": str(folder / "state"),
            "VALKYRIE_CONFIG_PATH": str(folder / "state/config.yaml"),
            "ANTHROPIC_API_KEY": SECRET,
            "OPENAI_API_KEY": SECRET,
            "NO_COLOR": "1",
        }

    def check_nothing_happened(self) -> None:
        assert not self.canary.exists(), self.canary.read_text()
        self.listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            self.listener.accept()


@pytest.fixture(params=["whole", "lazy"])
def stranger(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stranger]:
    """One whose repository can be used, so that commands get to their end, and one that would fetch."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Stranger(tmp_path / "scene", listener, lazy=request.param == "lazy")
        yield made
        made.check_nothing_happened()


def is_our_git(words: list[str], environment: dict[str, str], project: Path) -> bool:
    return (
        Path(words[0]).name == "git"
        and Path(words[0]).is_absolute()
        and not words[0].startswith(f"{project}/")
        and environment.get("GIT_CONFIG_GLOBAL") == os.devnull
        and environment.get("GIT_CONFIG_NOSYSTEM") == "1"
        and environment.get("GIT_ALLOW_PROTOCOL") in ("none", "file")
        and not Path(environment["GIT_DIR"]).is_relative_to(project)
        and SECRET not in environment.values()
    )


def test_commands_that_look_start_only_our_git(stranger: Stranger, tmp_path: Path) -> None:
    watcher, log = tmp_path / "watcher.py", tmp_path / "log"
    watcher.write_text(WATCHER)
    words = json.dumps([one.split() for one in LOOKING])
    subprocess.run(
        [sys.executable, str(watcher), str(log), str(stranger.project), words],
        cwd=stranger.project,
        env=stranger.environment,
        capture_output=True,
        timeout=200,
        check=True,
    )
    events: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    ended = {" ".join(one["args"]): one["code"] for one in events if one["event"] == "ended"}
    assert list(ended) == LOOKING
    whole = not (stranger.project / ".env").exists()
    refused = {words: code for words, code in ended.items() if code != 0 and "--strict" not in words}
    assert not refused if whole else all(code in (1, 2) for code in refused.values()), ended
    started: list[dict[str, Any]] = []
    for one in events:
        if one["event"] != "ended":
            assert one["event"] in ("subprocess.Popen", "os.posix_spawn"), one
            started.append(one)
            continue
        for each in started:
            executable, given, _, environment = each["args"]
            assert is_our_git([executable, *given[1:]], environment or {}, stranger.project), (one, each)
        started.clear()
    assert any(one["event"] == "subprocess.Popen" and "git" in one["args"][0] for one in events)


def test_no_system_call_says_otherwise(stranger: Stranger, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None or subprocess.run([strace, "-qq", "true"], capture_output=True).returncode != 0:
        pytest.skip("strace is not installed, or may not trace here")
    source = Path(valkyrie.__file__).parents[1]
    code = (
        f"import sys; sys.path[:0] = [{str(source)!r}]; from valkyrie.cli.main import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    for number, words in enumerate(TRACED):
        log = tmp_path / f"calls-{number}"
        traced = [strace, "-f", "-qq", "-s", "4096", "-e", "trace=execve,connect,sendto,bind", "-o", str(log)]
        subprocess.run(
            [*traced, sys.executable, "-P", "-c", code, *words.split()],
            cwd=stranger.project,
            env=stranger.environment,
            capture_output=True,
            timeout=200,
        )
        calls = log.read_text()
        started = re.findall(r'execve\("([^"]+)", .* /\* (\d+) vars? \*/\) = 0', calls)
        assert started[0][0] == sys.executable
        assert len(started) > 1 or "eval" not in words
        others = [one for one in started[1:] if Path(one[0]).name != "git"]
        assert not others
        assert not [one for one, _ in started[1:] if one.startswith(str(stranger.project))]
        assert not re.search(r"sa_family=AF_INET6?\b", calls), calls
