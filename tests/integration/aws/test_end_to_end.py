"""One run with everything in AWS, one on disk alone: the same score, and no secret where it should not be."""

from __future__ import annotations

import json
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.abilities import need_local_sandboxes
from tests.aws_server import Ministack
from tests.integration.backends.installations import Installation, embedded, server
from tests.integration.conftest import until
from tests.live_folders import contents_below

pytest_plugins = ["tests.aws_server"]
pytestmark = pytest.mark.slow

PLAIN, KEYED, STORED = "planted-plain-5f0c8e1d", "planted-keyed-77ab3c90", "planted-stored-c0ffee11"
TASK = "say/hello 1"
DEAD = "http://127.0.0.1:9"
CONTRACT = """\
name: teller
install_cmd: 'true'
run_cmd: |
  echo "I know $FIRST and $SECOND and $THIRD"; mkdir -p /logs /tmp/valkyrie
  printf %s "$FIRST" > /logs/leak; printf '{"cost": {"total": 0.25}}' > /logs/metrics.json
  printf %s "$SECOND" > /tmp/valkyrie/notes.txt; cat {problem_statement_path} >> /logs/problem
  echo hello > /app/out
final_output: /logs
output_artifacts: [notes.txt]
secrets: {FIRST: devFirst, SECOND: 'devSecond#inner', THIRD: thirdSecret}
"""
FAILING = """
def handler(event, context):
    raise RuntimeError("no analysis today")
"""
NOTING = """
import json, pathlib

def handler(event, context):
    pathlib.Path({place!r}).write_text(json.dumps(event))
    return {{"statusCode": 200}}
"""


def write_inputs(folder: Path) -> None:
    """The agent, and a benchmark of one task whose id is no file name."""
    need_local_sandboxes(folder.parent / "probe", network="none")
    (folder / "teller").mkdir()
    (folder / "teller" / "contract.yaml").write_text(CONTRACT)
    task = folder / "tasks" / "say" / "hello 1"
    for place, text in {
        "task.toml": 'version = "1.0"\n[environment]\nallow_internet = false\n',
        "instruction.md": "Say hello in /app/out.\n",
        "environment/keep": "",
        "tests/test.sh": '[ "$(cat /app/out)" = hello ] && echo 1 > /logs/verifier/reward.txt\n',
    }.items():
        (task / place).parent.mkdir(parents=True, exist_ok=True)
        (task / place).write_text(text)


@pytest.fixture(params=[embedded, server], ids=["embedded", "server"])
def open_installation(
    request: pytest.FixtureRequest,
) -> Callable[[Path], AbstractContextManager[Installation]]:
    found: Callable[[Path], AbstractContextManager[Installation]] = request.param
    return found


@pytest.fixture
def cloud(
    open_installation: Callable[[Path], AbstractContextManager[Installation]],
    tmp_path: Path,
    ministack: Ministack,
) -> Iterator[tuple[Installation, str]]:
    """A person, or a server, with a bucket; and the bucket's name."""
    ministack.secret("devFirst", PLAIN)
    ministack.secret("devSecond", json.dumps({"inner": KEYED, "other": "x"}))
    bucket = ministack.bucket()
    settings = {**ministack.environment, "S3_BUCKET": bucket}
    with patch.dict(os.environ, settings), open_installation(tmp_path) as installation:
        installation.settings |= settings if installation.name == "embedded" else {}
        write_inputs(installation.folder)
        yield installation, bucket


def test_everything_in_aws(cloud: tuple[Installation, str], ministack: Ministack, tmp_path: Path) -> None:
    installation, bucket = cloud
    assert installation.ask("agent", "push", "./teller").code == 0
    noted = tmp_path / "lambda.json"
    good, bad = ministack.function(NOTING.format(place=str(noted))), ministack.function(FAILING)
    own = {"thirdSecret": STORED}  # only this person's environment has it
    words = ("--agent", "teller", "--benchmark", "./tasks")
    failed = installation.start(*words, "--lambda", bad, env=own)
    run_id = installation.start(*words, "--lambda", good, env=own)
    for one in (run_id, failed):
        assert installation.ask("run", "wait", one, "--timeout", "60", "--min-score", "1").code == 0

    def told(one: str, kind: str) -> str:
        return next(
            (hook["state"] for hook in installation.run(one)["hooks"] if hook["kind"] == kind), "none"
        )

    until(lambda: "pending" not in {told(run_id, "lambda"), told(failed, "lambda"), told(run_id, "results")})
    assert told(run_id, "lambda") == "done" and told(failed, "lambda") == "failed"
    view = installation.run(failed)
    assert view["state"] == "FINISHED" and view["score"]["final_score"] == 1.0
    assert "no analysis today" in json.dumps(view["hooks"])
    assert view["cost"] == {"total": 0.25, "reports": 1, "limit": None}
    payload = json.loads(noted.read_text())
    assert payload["benchmark_id"] == run_id and payload["benchmark_name"] == "tasks"
    assert (payload["agent"], payload["benchmark"], payload["concurrency"]) == ("teller", "tasks", 5)
    assert payload["contract"]["name"] == "teller" and payload["contract"]["secrets"]["FIRST"] == "devFirst"
    assert payload["sandbox_provider"] == "local" and payload["slice_str"] is None

    held = objects(ministack, bucket)
    assert "agents/teller.zip" in held
    ours = {key.removeprefix(f"benchmarks/{run_id}/"): body for key, body in held.items() if run_id in key}
    encoded = "say%2Fhello 1"
    assert {"teller.zip", "tasks.json", f"{encoded}/agent_output.tar.gz", f"{encoded}/notes.txt"} <= {*ours}
    with zipfile.ZipFile(BytesIO(ours["teller.zip"])) as frozen:
        assert "teller/contract.yaml" in frozen.namelist()
    with tarfile.open(fileobj=BytesIO(ours[f"{encoded}/agent_output.tar.gz"])) as output:
        assert {"leak", "problem", "metrics.json"} <= {*output.getnames()}
    kept = json.loads(ours["tasks.json"])
    assert kept["final_evaluation"]["final_score"] == 1.0 and kept["organisation"] == "default"
    assert kept["benchmark_arguments"]["contract"]["final_output"] == "/logs"
    shipped = until_logged(ministack, run_id)
    assert "I know *** and *** and ***" in shipped

    assert installation.ask("run", "outputs", run_id, "-o", "out").code == 0
    assert (
        (installation.folder / "out" / encoded / "agent_output" / "problem")
        .read_text()
        .startswith("Say hello")
    )
    link = installation.ask("run", "results", run_id, "--s3", "--json")
    assert link.code == 0 and bucket in link.out and "Signature" not in link.out
    assert "I know *** and ***" in installation.ask("run", "logs", run_id, TASK).out
    scan(installation, tmp_path, {**held, "cloudwatch": shipped.encode(), "cli": repr(view).encode()})


def test_the_same_on_disk_alone(
    open_installation: Callable[[Path], AbstractContextManager[Installation]], tmp_path: Path
) -> None:
    secrets = {"devFirst": PLAIN, "devSecond": KEYED, "thirdSecret": STORED}
    with open_installation(tmp_path) as installation:
        write_inputs(installation.folder)
        words = ["--agent", "./teller", "--benchmark", "./tasks", "-s", "SECOND", "devSecond"]
        refused = installation.ask("run", "start", *words)
        assert refused.code == 1 and "devFirst" in refused.err and "thirdSecret" in refused.err
        run_id = installation.finish(*words, env=secrets)
        view = installation.run(run_id)
        assert view["state"] == "FINISHED" and view["score"]["final_score"] == 1.0, view
        assert installation.ask("run", "outputs", run_id, "-o", "out").code == 0
        assert "I know *** and *** and ***" in installation.ask("run", "logs", run_id, TASK).out
        scan(installation, tmp_path, {"cli": repr(view).encode()})


def test_what_stands_in_the_way_comes_in_one_list(
    cloud: tuple[Installation, str], ministack: Ministack
) -> None:
    installation, bucket = cloud
    ministack.client("s3").delete_bucket(Bucket=bucket)
    words = ("--agent", "./teller", "--benchmark", DEAD, "-k", "speed", "9", "--lambda", "nowhere")
    for more in ((), ("--dry-run",)):
        said = installation.ask("run", "start", *words, *more)
        assert said.code == 1 and said.err.startswith("Error: 5 things stand in the way:"), said.err
        for what in ("no parameter", DEAD, "thirdSecret", "nowhere", bucket):
            assert what in said.err, said.err
    assert installation.ask("run", "list", "--json").json["total"] == 0


def objects(ministack: Ministack, bucket: str) -> dict[str, bytes]:
    client = ministack.client("s3")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
    return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}


def until_logged(ministack: Ministack, run_id: str) -> str:
    client = ministack.client("logs")
    texts: list[str] = []

    def look() -> bool:
        texts.clear()
        try:
            streams = client.describe_log_streams(logGroupName=f"benchmarks/{run_id}")["logStreams"]
        except client.exceptions.ResourceNotFoundException:
            return False
        for stream in streams:
            found: Any = client.get_log_events(
                logGroupName=f"benchmarks/{run_id}", logStreamName=stream["logStreamName"], startFromHead=True
            )
            texts.extend(event["message"] for event in found["events"])
        return any("I know" in text for text in texts)

    until(look, timeout=30)
    return "\n".join(texts)


def scan(installation: Installation, root: Path, more: dict[str, bytes]) -> None:
    """None of the planted values is in the database, a log, an artifact or an answer, in any common form."""
    if installation.name != "embedded":
        secrets = installation.ask("secret", "list", "--json")
        assert "thirdSecret" in secrets.out  # kept for the organisation, encrypted
    inputs = {installation.folder / "teller", installation.folder / "tasks"}
    files = {
        str(path): content
        for path, content in contents_below(root)
        if not any(path.is_relative_to(folder) for folder in inputs)
    }
    assert any("valkyrie.db" in name for name in files)
    for value in (PLAIN, KEYED, STORED, installation.settings.get("VALKYRIE_API_KEY", PLAIN)):
        for name, content in {**files, **more}.items():
            assert value.encode() not in plain(name, content), f"{value[:12]}… is in {name}"


def plain(name: str, content: bytes) -> bytes:
    """What is in an archive, unpacked."""
    if name.endswith(".tar.gz"):
        with tarfile.open(fileobj=BytesIO(content)) as tar:
            return b"\n".join(file.read() for one in tar if (file := tar.extractfile(one)))
    if name.endswith(".zip"):
        with zipfile.ZipFile(BytesIO(content)) as archive:
            return b"\n".join(archive.read(one) for one in archive.namelist())
    return content
