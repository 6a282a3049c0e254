"""What callers can make a tracker connect to, hold in memory, or run on its bare machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.stage import Stage, client, open_stage, serving
from valkyrie.domain import DEFAULT_ORG
from valkyrie.errors import UserError
from valkyrie.executor.host import refuse_exposed
from valkyrie.store import runs
from valkyrie.store.layout import DataFolder
from valkyrie.targets import TargetError, check_target

PLAN: dict[str, Any] = {"agent": "oracle", "benchmark": "quickstart", "slice": "0:1"}


@pytest.fixture
async def ours(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(stage) as server, client(server, stage.ours) as made:
        yield made


@pytest.fixture
async def theirs(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(stage) as server, client(server, stage.theirs) as made:
        yield made


@asynccontextmanager
async def neighbour(visits: list[bytes]) -> AsyncIterator[str]:
    """Something else that listens on the tracker's machine, and writes down who came."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(await reader.readline())
        with contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 500 no\r\nContent-Length: 11\r\nConnection: close\r\n\r\ninner words")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_what_listens_beside_the_tracker_is_no_service_of_other_organisations(
    stage: Stage, theirs: httpx.AsyncClient
) -> None:
    """The tracker listens on loopback, behind a proxy say: its callers are not on this machine for that."""
    visits: list[bytes] = []
    source = {"kind": "service", "name": "x", "url": "http://x.invalid", "where": "custom"}
    ended = stage.finished_run(stage.their_org, benchmark_source=source)
    async with neighbour(visits) as url:
        for answer in (
            await theirs.post("/v1/benchmarks/tasks", json={"benchmark": url}),
            await theirs.post("/v1/benchmarks/tasks", json={"benchmark": "x", "benchmark_url": url}),
            await theirs.post("/v1/runs/plan", json={**PLAN, "benchmark": url}),
            await theirs.post("/v1/runs", json={**PLAN, "benchmark": "x", "benchmark_url": url}),
            await theirs.post(f"/v1/runs/{ended}/resume", json={"benchmark_url": url}),
        ):
            assert answer.status_code in (400, 422), answer.text
            assert "loopback" in answer.text and "inner words" not in answer.text
    assert visits == []


async def reachable_ways(http: httpx.AsyncClient, url: str, ended: str) -> list[tuple[int, str]]:
    """What is told of an address, by every way a caller can name one, without the address itself."""
    shown = url.removeprefix("http://")
    settings = {"DAYTONA_API_KEY": "k" * 20, "DAYTONA_API_URL": url, "DAYTONA_TARGET": "us"}
    (await http.put("/v1/secrets/cloud", json={"value": json.dumps(settings)})).raise_for_status()
    (await http.put("/v1/secrets/signing", json={"value": "s" * 32})).raise_for_status()
    answers = [
        await http.post("/v1/benchmarks/tasks", json={"benchmark": url}),
        await http.post("/v1/benchmarks/tasks", json={"benchmark": "x", "benchmark_url": url}),
        await http.post("/v1/runs/plan", json={**PLAN, "benchmark": url}),
        await http.post("/v1/runs", json={**PLAN, "webhook_url": url, "webhook_key": "signing"}),
        await http.post("/v1/runs", json={**PLAN, "agent": "nop", "model_url": url}),
        await http.post("/v1/runs", json={**PLAN, "provider": "daytona", "provider_secret": "cloud"}),
        await http.post(f"/v1/runs/{ended}/resume", json={"benchmark_url": url}),
    ]
    host = shown.rsplit(":", 1)[0].strip("[]")
    return [(one.status_code, one.text.replace(shown, "·").replace(host, "·")) for one in answers]


@pytest.mark.parametrize("who", ["ours", "theirs"])
async def test_open_and_closed_ports_of_the_network_look_the_same(stage: Stage, who: str) -> None:
    """Also to people of the default organisation: where keys are asked for, they come from elsewhere too."""
    stage.tracker_app.allow_local = False  # as `valkyrie serve` with keys
    source = {"kind": "service", "name": "x", "url": "http://x.invalid", "where": "custom"}
    org = {"ours": DEFAULT_ORG, "theirs": stage.their_org}[who]
    ended = stage.finished_run(org, benchmark_source=source)
    visits: list[bytes] = []
    key = {"ours": stage.ours, "theirs": stage.theirs}[who]
    async with serving(stage) as server, client(server, key) as http, neighbour(visits) as url:
        port = url.rsplit(":", 1)[1]
        for host in ("10.77.0.2", "127.0.0.1", "[::1]"):
            opened = await reachable_ways(http, f"http://{host}:{port}", ended)
            closed = await reachable_ways(http, f"http://{host}:1", ended)
            assert opened == closed
            for status, text in opened:
                assert status in (400, 422) and "nothing is sent there" in text, text
    assert visits == []


async def test_a_network_the_operator_names_can_be_reached(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALKYRIE_TRACKER_ALLOWED_NETWORKS", "127.0.0.0/8")
    visits: list[bytes] = []
    async with serving(stage) as server, client(server, stage.theirs) as theirs, neighbour(visits) as url:
        await theirs.post("/v1/benchmarks/tasks", json={"benchmark": url})
    assert visits


async def test_a_name_that_leads_elsewhere_by_the_time_of_the_connection_gains_nothing(
    stage: Stage, ours: httpx.AsyncClient, theirs: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns a name decides what it leads to, each time it is asked."""
    looked: list[str] = []
    real = socket.getaddrinfo

    def lookup(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host != "rebound.example":
            return real(host, port, *rest, **more)
        looked.append(host)
        return real("93.184.216.34" if len(looked) == 1 else "127.0.0.1", port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    visits: list[bytes] = []
    async with neighbour(visits) as url:
        named = url.replace("127.0.0.1", "rebound.example")
        answer = await theirs.post("/v1/benchmarks/tasks", json={"benchmark": named})
        assert answer.status_code >= 400 and "loopback" in answer.text, answer.text
        assert len(looked) > 1 and visits == []
        await ours.post("/v1/benchmarks/tasks", json={"benchmark": named})
        assert visits, "those who may name this machine may do it by any name"
    source = {"kind": "service", "name": "x", "url": "http://x.invalid", "where": "custom"}
    ended = stage.finished_run(stage.their_org, benchmark_source=source)
    looked.clear()
    assert (await theirs.post(f"/v1/runs/{ended}/resume", json={"benchmark_url": named})).status_code == 200
    with stage.tracker_app.store.reading() as connection:
        kept = runs.get(connection, ended).benchmark_source
    assert (kept["url"], kept["reach"]) == (named, "outside"), "executors are told how far it may lead"


async def test_the_operators_own_people_may_use_a_service_beside_it(ours: httpx.AsyncClient) -> None:
    visits: list[bytes] = []
    async with neighbour(visits) as url:
        await ours.post("/v1/benchmarks/tasks", json={"benchmark": url})
    assert visits


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254", "http://[::ffff:169.254.169.254]", "http://169.254.170.2/v2"]
)
async def test_nobody_has_a_benchmark_at_a_clouds_metadata(
    ours: httpx.AsyncClient, theirs: httpx.AsyncClient, url: str
) -> None:
    for http in (ours, theirs):
        answer = await http.post("/v1/benchmarks/tasks", json={"benchmark": "x", "benchmark_url": url})
        assert answer.status_code in (400, 422)
        assert "nothing is sent there" in answer.text and "ALLOW_LOCAL" not in answer.text


def test_allowing_loopback_allows_no_more() -> None:
    check_target("http://127.0.0.1:1", allow_local=True, only_loopback=True)
    for url in ("http://169.254.169.254", "http://169.254.1.1", "http://[fe80::1]"):
        with pytest.raises(TargetError):
            check_target(url, allow_local=True, only_loopback=True)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/api", "http://169.254.169.254/api", "file:///etc/passwd"]
)
async def test_a_sandbox_provider_is_not_on_the_trackers_machine(theirs: httpx.AsyncClient, url: str) -> None:
    settings = {"DAYTONA_API_KEY": "k" * 20, "DAYTONA_API_URL": url, "DAYTONA_TARGET": "us"}
    await theirs.put("/v1/secrets/cloud", json={"value": json.dumps(settings)})
    wanted = {**PLAN, "provider": "daytona", "provider_secret": "cloud"}
    answer = await theirs.post("/v1/runs", json=wanted)
    assert answer.status_code in (400, 422), answer.text
    assert "DAYTONA_API_URL" in answer.text


@pytest.mark.parametrize("trials", [100_001, 1 << 53])
async def test_a_run_has_not_more_trials_than_memory_holds(theirs: httpx.AsyncClient, trials: int) -> None:
    answer = await asyncio.wait_for(theirs.post("/v1/runs/plan", json={**PLAN, "trials": trials}), 20)
    assert (answer.status_code, "fewer --trials" in answer.text) == (400, True), answer.text


@pytest.mark.parametrize("name", ["label", "model", "dataset", "slice", "webhook", "lambda_function"])
async def test_texts_have_a_length(theirs: httpx.AsyncClient, name: str) -> None:
    answer = await theirs.post("/v1/runs", json={**PLAN, name: "x" * 500_000})
    assert (answer.status_code, "characters" in answer.text) == (400, True), answer.text[:300]


async def test_a_label_has_a_length_later_too(stage: Stage, theirs: httpx.AsyncClient) -> None:
    run_id = stage.add_run(stage.their_org)
    answer = await theirs.patch(f"/v1/runs/{run_id}", json={"label": "x" * 500_000})
    assert answer.status_code == 400, answer.text[:300]


@pytest.mark.parametrize("said", [None, "", "0", "false", "no"])
async def test_nobody_runs_on_the_bare_machine_unless_the_operator_says_yes(
    theirs: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    monkeypatch.delenv("VALKYRIE_ALLOW_UNISOLATED", raising=False)
    if said is not None:
        monkeypatch.setenv("VALKYRIE_ALLOW_UNISOLATED", said)
    answer = await theirs.post("/v1/runs/plan", json={**PLAN, "provider": "process"})
    assert (answer.status_code, "isolates nothing" in answer.text) == (400, True), answer.text


def test_an_executor_does_not_start_where_agents_would_see_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    refuse_exposed(DataFolder(tmp_path))
    (tmp_path / "home").symlink_to("/usr/share")
    for root in (Path("/usr/local/valkyrie"), Path("/lib/valkyrie"), tmp_path / "home" / "valkyrie"):
        with pytest.raises(UserError, match="VALKYRIE_HOME"):
            refuse_exposed(DataFolder(root))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", "/usr/local/etc/valkyrie/valkyrie.yaml")
    with pytest.raises(UserError, match="VALKYRIE_CONFIG_PATH"):
        refuse_exposed(DataFolder(tmp_path))


def test_what_is_kept_is_private_in_a_folder_that_is_not(tmp_path: Path) -> None:
    """As a service manager makes it, or a volume is mounted."""
    tmp_path.chmod(0o755)
    stage = open_stage(tmp_path)
    stage.tracker_app.close()
    readable = [path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o077]
    assert [name for name in readable if not name.endswith(".lock")] == []
    assert {"agents", "cache", "orgs", "runs"} <= {path.name for path in tmp_path.iterdir()}


async def test_a_length_told_in_two_ways_is_refused(stage: Stage) -> None:
    """A proxy that believes the other way sees a second request where we see none, or none where we do."""
    async with serving(stage) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/runs/plan HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: {stage.ours}\r\n"
        hidden = f"GET /v1/me HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: {stage.ours}\r\n\r\n"
        ways = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        writer.write((head + ways + hidden).encode())
        async with asyncio.timeout(60):
            answers = await reader.read()
        writer.close()
    assert answers.startswith(b"HTTP/1.1 400") and b"not by both" in answers
    assert answers.count(b"HTTP/1.1") == 1 and b"org_id" not in answers


async def test_sandboxes_stay_on_the_machine_for_its_own_people_only(
    ours: httpx.AsyncClient, theirs: httpx.AsyncClient
) -> None:
    asked = {**PLAN, "keep_sandbox": True}
    assert (await ours.post("/v1/runs/plan", json=asked)).status_code == 200
    refused = await theirs.post("/v1/runs/plan", json=asked)
    assert (refused.status_code, "--keep-sandbox" in refused.text) == (400, True), refused.text


async def test_strangers_are_not_told_where_the_database_is(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    place = str(stage.tracker_app.data.database)
    async with serving(stage) as server, client(server, "vk_000000000000_" + "A" * 43) as stranger:
        stage.tracker_app.store.close()
        stage.tracker_app.data.database.write_bytes(b"no database" * 1000)
        answer = await stranger.get("/v1/runs")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "StoreError"), answer.text
    assert place not in answer.text
    assert place in caplog.text
