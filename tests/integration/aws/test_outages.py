"""AWS goes away and comes back, at the worst moment: nothing is lost, doubled or half there."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.aws_server import REGION, ROOT_KEYS, Ministack, running_ministack
from tests.integration.aws.flaky import FlakyLine
from valkyrie.artifact_store.protocol import LogName
from valkyrie.aws.s3 import S3Artifacts
from valkyrie.aws.services import CloudWatchLogs
from valkyrie.aws.session import AwsAccess, AwsSession
from valkyrie.errors import InfrastructureError

pytestmark = pytest.mark.slow

pytest_plugins = ["tests.aws_server"]

CONTENT = os.urandom(1 << 20) * 12


@pytest.fixture
def line(ministack: Ministack) -> Iterator[FlakyLine]:
    made = FlakyLine(ministack.port)
    yield made
    made.close()


@pytest.fixture
def bucket(ministack: Ministack) -> str:
    return ministack.bucket()


@pytest.fixture
def direct(ministack: Ministack, bucket: str) -> S3Artifacts:
    """The bucket as others see it."""
    return S3Artifacts(ministack.session(), bucket)


@pytest.fixture
def flaky(line: FlakyLine, bucket: str) -> S3Artifacts:
    """The bucket over the line that is cut."""
    return S3Artifacts(session_over(line), bucket, patience=120)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "content"
    made.write_bytes(CONTENT)
    return made


def session_over(line: FlakyLine) -> AwsSession:
    return AwsSession(AwsAccess(region=REGION, endpoint=line.endpoint, keys=ROOT_KEYS))


def during(line: FlakyLine, act: Callable[[], object], outage: Callable[[], None]) -> None:
    """Begin; when the line is cut, see to something; mend it; and all is well in the end."""
    with ThreadPoolExecutor(1) as pool:
        begun: Future[object] = pool.submit(act)
        assert line.cut.wait(60)
        outage()
        line.mend()
        begun.result(60)


def test_an_upload_cut_in_the_middle(
    line: FlakyLine, flaky: S3Artifacts, direct: S3Artifacts, file: Path
) -> None:
    def outage() -> None:
        assert direct.find("big") is None and list(direct.list("")) == []

    line.up_left = 7 << 20
    during(line, lambda: flaky.put("big", file), outage)
    assert b"".join(direct.read("big")) == CONTENT


def test_an_upload_over_another_leaves_the_old_one_until_it_is_whole(
    line: FlakyLine, flaky: S3Artifacts, direct: S3Artifacts, file: Path
) -> None:
    direct.put_text("big", "old")

    def outage() -> None:
        assert b"".join(direct.read("big")) == b"old"

    line.up_left = 7 << 20
    during(line, lambda: flaky.put("big", file), outage)
    assert b"".join(direct.read("big")) == CONTENT


def test_a_download_cut_in_the_middle_goes_on_where_it_was(
    line: FlakyLine, flaky: S3Artifacts, direct: S3Artifacts, file: Path, tmp_path: Path
) -> None:
    direct.put("big", file)
    target = tmp_path / "got"

    def outage() -> None:
        assert not target.exists()

    line.down_left = 5 << 20
    during(line, lambda: flaky.get("big", target), outage)
    assert target.read_bytes() == CONTENT
    assert sorted(one.name for one in tmp_path.iterdir()) == ["content", "got"]


def test_an_object_replaced_while_it_is_read_is_never_a_mixture(
    line: FlakyLine, flaky: S3Artifacts, direct: S3Artifacts, file: Path, tmp_path: Path
) -> None:
    direct.put("big", file)
    target = tmp_path / "got"
    line.down_left = 5 << 20
    during(line, lambda: flaky.get("big", target), lambda: direct.put_text("big", "another"))
    assert target.read_bytes() == b"another"

    direct.put("big", file)
    line.down_left = 5 << 20
    with pytest.raises(InfrastructureError, match="replaced while it was read"):
        during(line, lambda: b"".join(flaky.read("big")), lambda: direct.put_text("big", "another"))


def test_a_list_cut_in_the_middle_has_no_gap(
    line: FlakyLine, flaky: S3Artifacts, direct: S3Artifacts
) -> None:
    keys = [f"k/{number:03}" for number in range(60)]
    for key in keys:
        direct.put_text(key, "x")
    line.down_left = 3_000
    listed: list[str] = []
    during(line, lambda: listed.extend(one.key for one in flaky.list("k/")), lambda: None)
    assert listed == keys


def test_patience_ends(line: FlakyLine, bucket: str) -> None:
    line.close()
    store = S3Artifacts(session_over(line), bucket, patience=0.5)
    with pytest.raises(InfrastructureError) as caught:
        store.copy("a", "b")
    assert caught.value.cause == "artifacts"


def test_who_waits_is_let_go_when_the_program_ends(line: FlakyLine, bucket: str) -> None:
    line.close()
    store = S3Artifacts(session_over(line), bucket, patience=3600)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.copy, "a", "b")
        store.close()
        with pytest.raises(InfrastructureError):
            waiting.result(60)


def test_a_log_whose_answer_was_lost_is_not_written_twice(
    line: FlakyLine, ministack: Ministack, tmp_path: Path
) -> None:
    group, name, file = f"benchmarks/{uuid.uuid4().hex}", LogName("r", "t", 0, 1, 1.5), tmp_path / "log"
    there = CloudWatchLogs(ministack.session(), group, 30)
    keeper = CloudWatchLogs(session_over(line), group, 30, every=0.02)
    file.write_text("one\n")
    keeper.follow(name, file)
    until(lambda: "".join(there.read(name)) == "one\n")
    line.down_left = 0
    with file.open("a") as log:
        log.write("two\n")
    assert line.cut.wait(60)
    until(lambda: keeper.problem is not None)
    assert "".join(there.read(name)) == "one\ntwo\n"
    with file.open("a") as log:
        log.write("three\n")
    line.mend()
    keeper.ended(name)
    keeper.close(60)
    assert "".join(there.read(name)) == "one\ntwo\nthree\n"


def test_logs_wait_in_their_files(line: FlakyLine, ministack: Ministack, tmp_path: Path) -> None:
    group = f"benchmarks/{uuid.uuid4().hex}"
    there = CloudWatchLogs(ministack.session(), group, 30)
    keeper = CloudWatchLogs(session_over(line), group, 30, every=0.02)
    line.up_left = 0
    names = [LogName("r", f"t{number}", 0, 1, 1.5) for number in range(5)]
    for name in names:
        (tmp_path / name.task_id).write_text(f"{name.task_id}\n" * 1000)
        keeper.follow(name, tmp_path / name.task_id)
        keeper.ended(name)
    until(lambda: keeper.problem is not None)
    line.mend()
    keeper.close(60)
    assert keeper.problem is None
    for name in names:
        assert "".join(there.read(name)) == f"{name.task_id}\n" * 1000


def test_the_end_does_not_wait_for_an_outage(line: FlakyLine, tmp_path: Path) -> None:
    line.close()
    keeper = CloudWatchLogs(session_over(line), "benchmarks", 30, every=0.02)
    (tmp_path / "log").write_text("x\n")
    keeper.follow(LogName("r", "t", 0, 1, 1.5), tmp_path / "log")
    until(lambda: keeper.problem is not None)
    keeper.close(0.1)
    until(lambda: not any(thread.name == "logs" for thread in threading.enumerate()))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1.0, 20.0])
def test_stopped_and_started_again(seconds: float, tmp_path: Path, file: Path) -> None:
    """The server itself goes, and comes back with what it had."""
    with running_ministack(tmp_path / "ministack") as server, ThreadPoolExecutor(3) as pool:
        store = S3Artifacts(server.session(), server.bucket())
        logs = CloudWatchLogs(server.session(), "benchmarks", 30, every=0.05)
        name, log = LogName("r", "t", 0, 1, 1.5), tmp_path / "log"
        store.put("before", file)
        log.write_text("before\n")
        logs.follow(name, log)
        until(lambda: "".join(logs.read(name)) == "before\n")
        server.stop()
        put = pool.submit(store.put, "during", file)
        got = pool.submit(store.get, "before", tmp_path / "got")
        with log.open("a") as more:
            more.write("during\n")
        time.sleep(seconds)
        assert not put.done() and not got.done()
        server.start()
        put.result(90), got.result(90)
        assert (tmp_path / "got").read_bytes() == CONTENT
        assert b"".join(store.read("during")) == CONTENT
        logs.ended(name)
        logs.close(60)
        assert "".join(logs.read(name)) == "before\nduring\n"


def until(holds: Callable[[], bool], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
