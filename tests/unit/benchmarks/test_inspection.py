"""What a task's files tell of what it is open to, and what they do not tell of careful ones."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.unit.benchmarks.task_folders import WriteTask
from valkyrie.benchmarks.audit import inspect
from valkyrie.benchmarks.task_dir.task import TaskDirectory

ANSWER = "the long answer that nobody could guess by chance\n" * 3


def found(folder: Path) -> list[str]:
    return [str(finding.weakness) for finding in inspect(TaskDirectory(folder.name, folder))]


@pytest.mark.parametrize(
    ("script", "weakness"),
    [
        ("cd /app\nmake test && echo 1 > $VERIFIER_DIR/reward.txt", "execution"),
        ("if npm test; then echo 1 > reward.txt; fi", "execution"),
        ("cd /app && python3 -m pytest -q\n[ $? = 0 ] && echo 1 > reward.txt", "execution"),
        ("pytest\n", "execution"),
        ("echo 1 > /logs/verifier/reward.txt", "vacuous"),
        ("""echo '{"reward": 1.0}' > /logs/verifier/reward.json""", "vacuous"),
        ("diff a b || true\nif [ $? = 0 ]; then echo 1 > reward.txt; fi", "vacuous"),
        ("grep -q PASSED /app/test.log && echo 1 > /logs/verifier/reward.txt", "trust"),
        (
            'prompt="Is this right? $(cat /app/answer.txt)"\ncurl -d "$prompt" https://judge/v1/chat/completions',
            "judge",
        ),
    ],
)
def test_scripts_that_are_open(write_task: WriteTask, script: str, weakness: str) -> None:
    assert found(write_task("t", {"tests/test.sh": script})) == [weakness]


@pytest.mark.parametrize(
    "script",
    [
        "# no make test, pytest or || true here\nreward=0\necho $reward > /logs/verifier/reward.txt",
        "/usr/bin/pytest --noconftest -c /dev/null --rootdir=/tests /tests/test_it.py",
        "pytest /tests/test_outputs.py -rA\nif [ $? -eq 0 ]; then\n  echo 1 > /logs/verifier/reward.txt\nfi",
        "make -f /tests/Makefile check",
        "set -e\ncmp /tests/a /app/a\necho 1 > /logs/verifier/reward.txt",
        "cmp -s /tests/a /app/a && echo 1 > /logs/verifier/reward.txt",
        "cmp -s /tests/a /app/a &&\n  echo 1 > /logs/verifier/reward.txt",
        "if cmp -s /tests/a /app/a; then\n  echo 1 > /logs/verifier/reward.txt\nfi",
        "echo 1 > /logs/verifier/reward.txt\ncmp -s /tests/a /app/a || echo 0 > /logs/verifier/reward.txt",
        "rm -f /tmp/x || true\ncmp -s a b",
        "/usr/bin/python3 -I -m unittest /tests/t.py",
        "grep -q OK /logs/verifier/out.txt && echo 1 > /logs/verifier/reward.txt",
    ],
)
def test_careful_scripts(write_task: WriteTask, script: str) -> None:
    assert found(write_task("t", {"tests/test.sh": script})) == []


def test_answers_in_the_environment(write_task: WriteTask) -> None:
    careful = {"tests/test.sh": "cmp -s a b && echo 1 > reward.txt", "tests/result.csv": ANSWER}
    assert found(write_task("same", {**careful, "environment/old.csv": ANSWER})) == ["answers"]
    assert found(write_task("within", {**careful, "environment/old.csv": f"x\n{ANSWER}y\n"})) == ["answers"]
    assert found(write_task("named", {**careful, "environment/answers/a.txt": "x"})) == ["answers"]
    assert found(write_task("input", {**careful, "environment/result.csv": ANSWER})) == []
    written = {"solution/solve.sh": f"cat > out.txt <<'EOF'\n{ANSWER}EOF\n"}
    assert found(write_task("solution", {**written, "environment/x": ANSWER}))[:1] == ["answers"]


def test_answers_in_a_repository_and_in_a_layer(write_task: WriteTask) -> None:
    task = write_task("git", {"tests/test.sh": "cmp -s a b", "tests/result.csv": ANSWER})
    place = task / "environment" / "repo" / ".git" / "objects" / "ab"
    place.mkdir(parents=True)
    place.joinpath("cdef").write_bytes(zlib.compress(b"blob 1\0" + ANSWER.encode()))
    assert found(task) == ["answers"]
    dockerfile = "FROM debian\nCOPY . /app\nRUN cat x && rm -rf /app/solution\n"
    layered = write_task("layer", {"tests/test.sh": "cmp -s a b", "environment/Dockerfile": dockerfile})
    assert found(layered) == ["answers"]


@pytest.mark.parametrize(
    "files",
    [
        {"environment/setup.sh": "echo 'agent ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/agent"},
        {"environment/setup.sh": "chmod -R 777 /logs/verifier"},
        {"environment/setup.sh": "cp /bin/cat x; chmod u+s x"},
        {"environment/docker-compose.yaml": "volumes: [/var/run/docker.sock:/var/run/docker.sock]"},
        {"task.toml": '[environment.env]\nMY_KEY = "x"\n[verifier.env]\nMY_KEY = "x"\n'},
        {"tests/get.sh": "curl -o x https://example.com/data/expected.json"},
    ],
)
def test_permissions(write_task: WriteTask, files: dict[str, str]) -> None:
    assert found(write_task("t", {"tests/test.sh": "cmp -s a b", **files})) == ["permissions"]


def test_what_cannot_be_reached_is_no_permission(write_task: WriteTask) -> None:
    closed = '[environment]\nnetwork_mode = "no-network"\n'
    script = "curl -o x https://example.com/data/expected.json\ncmp -s x y"
    assert found(write_task("t", {"task.toml": closed, "tests/test.sh": script})) == []
