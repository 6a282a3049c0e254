"""Agents and benchmarks on their way: packed, sent once, taken back whole."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from benchmark_runner.agent_bundle.bundle import pack
from tests.unit.client.scripted_tracker import Answer, ScriptedTracker, refused, said
from valkyrie.agents.scaffold import init_agent
from valkyrie.benchmarks.scaffold import init_benchmark
from valkyrie.client import ValkyrieClient
from valkyrie.errors import BundleError, InfrastructureError, UnknownError, UsageError, UserError

AGENT = {"name": "mine", "modified_at": 1.0, "bytes": 10, "digest": "d" * 64, "origin": None}


class Uploads:
    """The tracker's side of uploads: it knows what it was sent."""

    def __init__(self, tracker: ScriptedTracker) -> None:
        self._tracker = tracker

    def expect(self, digest: str, *, known: bool) -> None:
        self._tracker.on("HEAD", f"/v1/uploads/{digest}", Answer(status=200 if known else 404))
        self._tracker.on("PUT", f"/v1/uploads/{digest}", said({"ref": f"upload:{digest}"}))


async def test_an_agent_is_sent_once(
    client: ValkyrieClient, tracker: ScriptedTracker, tmp_path: Path
) -> None:
    folder = init_agent("mine", tmp_path)
    pack(folder, "mine", tmp_path / "expected.zip")
    digest = hashlib.sha256((tmp_path / "expected.zip").read_bytes()).hexdigest()
    Uploads(tracker).expect(digest, known=False)
    assert await client.upload_agent(folder) == f"upload:{digest}"
    sent = tracker.requests("PUT", f"/v1/uploads/{digest}")[0]
    assert hashlib.sha256(sent.body).hexdigest() == digest
    assert sent.headers["content-length"] == str(len(sent.body)) and "transfer-encoding" not in sent.headers
    Uploads(tracker).expect(digest, known=True)
    assert await client.upload_agent(tmp_path / "expected.zip") == f"upload:{digest}"
    assert len(tracker.requests("PUT", f"/v1/uploads/{digest}")) == 1


async def test_a_lost_upload_is_sent_again_whole(
    client: ValkyrieClient, tracker: ScriptedTracker, tmp_path: Path
) -> None:
    (tmp_path / "big.zip").write_bytes(bytes(range(256)) * 4096)
    tracker.on("PUT", "/v1/agents/big", Answer(drop=True), said(AGENT))
    await client.push_archive(tmp_path / "big.zip", "big", origin="https://example.com/x@1")
    first, second = tracker.asked
    assert first.body == second.body and len(first.body) == 1 << 20
    assert second.query == [("origin", "https://example.com/x@1")]


async def test_a_benchmark_is_packed(
    client: ValkyrieClient, tracker: ScriptedTracker, tmp_path: Path
) -> None:
    from valkyrie.benchmarks.task_dir.upload import pack_upload

    folder = init_benchmark("tasks", tmp_path)
    digest = pack_upload(folder, tmp_path / "expected.zip")
    Uploads(tracker).expect(digest, known=False)
    assert await client.upload_benchmark(folder) == f"upload:{digest}"


async def test_what_is_no_agent_is_not_sent(
    client: ValkyrieClient, tracker: ScriptedTracker, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(UserError):
            await client.upload_agent(source)
    with pytest.raises(UsageError, match="no folder"):
        await client.push_agent(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="catalogue"):
        await client.push_agent(init_agent("fine", tmp_path), "oracle")
    with pytest.raises(UsageError, match="no folder"):
        await client.upload_benchmark(tmp_path / "nowhere")
    assert not tracker.asked


async def test_too_large_for_the_tracker(
    client: ValkyrieClient, tracker: ScriptedTracker, tmp_path: Path
) -> None:
    tracker.on("PUT", "/v1/agents/mine", refused("UsageError", 413, "At most 1,000 bytes."))
    with pytest.raises(UsageError, match=r"At most 1,000"):
        await client.push_agent(init_agent("mine", tmp_path))


async def test_a_tracker_that_hangs_up_on_a_large_file(tracker: ScriptedTracker, tmp_path: Path) -> None:
    (tmp_path / "big.zip").write_bytes(b"x" * (1 << 20))
    tracker.on("PUT", "/v1/agents/big", Answer(drop=True))
    async with ValkyrieClient(tracker.url, patience=0.2) as client:
        with pytest.raises(InfrastructureError, match=r"1,048,576 bytes.*VALKYRIE_UPLOAD_LIMIT"):
            await client.push_archive(tmp_path / "big.zip", "big")


async def test_an_agent_comes_back(client: ValkyrieClient, tracker: ScriptedTracker, tmp_path: Path) -> None:
    pack(init_agent("mine", tmp_path), "mine", tmp_path / "mine.zip")
    whole = (tmp_path / "mine.zip").read_bytes()
    tracker.on("GET", "/v1/agents/mine/archive", Answer([whole[:100]], cut=True), Answer([whole]))
    folder = await client.download_agent("mine", tmp_path / "copies")
    assert (folder / "contract.yaml").read_text() == (tmp_path / "mine" / "contract.yaml").read_text()
    with pytest.raises(BundleError, match="exists already"):
        await client.download_agent("mine", tmp_path / "copies")
    tracker.on("GET", "/v1/agents/mine/archive", Answer(b"no zip"))
    with pytest.raises(BundleError, match="no usable zip"):
        await client.download_agent("mine", tmp_path / "others")
    assert not (tmp_path / "others" / "mine").exists()


async def test_names_no_agent_has(client: ValkyrieClient, tracker: ScriptedTracker, tmp_path: Path) -> None:
    tracker.on("GET", "/v1/agents", said([AGENT]))
    with pytest.raises(UnknownError, match="Pushed: mine"):
        await client.download_agent("../../x", tmp_path)
    with pytest.raises(UnknownError, match="no pushed agent is called 'a/b'"):
        await client.remove_agent("a/b")
    assert {asked.method for asked in tracker.asked} == {"GET"}
