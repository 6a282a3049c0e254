"""A hosted tracker over HTTP, from `config init` to two organisations that do not see each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from tests.integration.benchmark_service.conftest import serving
from tests.integration.faulty_service import FaultyService
from tests.integration.tenants.identity import KEY, OTHER_KEY, PROJECT, Descope
from valkyrie.api.app import create_app
from valkyrie.api.capacity import ApiSettings
from valkyrie.cli.main import main
from valkyrie.client import ValkyrieClient
from valkyrie.config import values
from valkyrie.errors import AccessError, UnknownError, UserError
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.app import TrackerApp
from valkyrie.views import RunRequest, TasksRequest

pytestmark = pytest.mark.slow


@pytest.fixture
def descope(monkeypatch: pytest.MonkeyPatch) -> Iterator[Descope]:
    standin = Descope({KEY: {"T1": {"name": "Acme"}}, OTHER_KEY: {"T2": {"name": "Other"}}})
    with serving(standin.app()) as url:
        monkeypatch.setenv("AUTH_REQUIRED", "true")
        monkeypatch.setenv("DESCOPE_PROJECT_ID", PROJECT)
        monkeypatch.setenv("DESCOPE_BASE_URL", url)
        monkeypatch.delenv("DESCOPE_MANAGEMENT_KEY", raising=False)
        yield standin


@pytest.fixture
def tracker_url(descope: Descope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("S3_BUCKET", "AWS_DEFAULT_REGION", "VALKYRIE_SECRET_KEY", "VALKYRIE_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "server" / "valkyrie.yaml"))
    tracker_app = TrackerApp(DataFolder(tmp_path / "home"), server=True)
    with serving(create_app(tracker_app, ApiSettings())) as url:
        yield url
    tracker_app.close()


def test_from_init_to_secrets_of_ones_own(
    tracker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnknownError, match="config init --mode hosted"):
        asyncio.run(_me(tracker_url, KEY))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "mine" / "valkyrie.yaml"))
    monkeypatch.setenv("TRACKER_SERVICE_URL", tracker_url)
    monkeypatch.setenv("VALKYRIE_API_KEY", KEY)
    assert main(["config", "init", "--mode", "hosted"]) == 0
    assert "organisation Acme was made" in capsys.readouterr().out
    assert values.load()["mode"] == "hosted"
    assert asyncio.run(_me(tracker_url, KEY)) == ("Acme", "hosted")
    asyncio.run(_two_organisations(tracker_url))
    with pytest.raises(AccessError):
        asyncio.run(_me(tracker_url, "K-unknown"))


async def _me(url: str, key: str) -> tuple[str, str]:
    async with ValkyrieClient(url, key, patience=1) as client:
        me = await client.me()
        return me.org, me.mode


async def _two_organisations(url: str) -> None:
    async with ValkyrieClient(url, KEY) as mine, ValkyrieClient(url, OTHER_KEY) as theirs:
        assert (await theirs.init())["org_name"] == "Other"
        await mine.set_secret("openai", "my-value")
        assert [one.name for one in await mine.secrets()] == ["openai"]
        assert await theirs.secrets() == []
        with pytest.raises(UnknownError):
            await theirs.remove_secret("openai")


class Listening:
    """A service that remembers which key each request showed."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        self._app = FaultyService(["ok-1", "ok-2"]).app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            self.keys.append(Headers(scope=scope).get("x-descope-api-key"))
        await self._app(scope, receive, send)

    def heard(self) -> set[str | None]:
        found, self.keys = set(self.keys), []
        return found


def test_hosted_services_are_told_who_asks_and_no_others(
    tracker_url: str, descope: Descope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALKYRIE_ALLOW_LOCAL_WEBHOOKS", "1")
    service = Listening()
    with serving(service) as url:
        (tmp_path / "registry.json").write_text(json.dumps({"quiz": url}))
        values.set_value("service_registry", str(tmp_path / "registry.json"))
        asyncio.run(_ask_services(tracker_url, url, service, descope))
    stored = b"".join(file.read_bytes() for file in (tmp_path / "home").rglob("*") if file.is_file())
    assert KEY.encode() not in stored


async def _ask_services(tracker_url: str, url: str, service: Listening, descope: Descope) -> None:
    async with ValkyrieClient(tracker_url, KEY) as mine:
        await mine.init()
        assert (await mine.benchmark_tasks(TasksRequest("quiz"))).task_ids == ["ok-1", "ok-2"]
        assert service.heard() == {KEY}
        for given, heard in (
            (TasksRequest("quiz", headers={"x-descope-api-key": "another"}), {"another"}),
            (TasksRequest("quiz", benchmark_url=url), {None}),
            (TasksRequest(url), {None}),
        ):
            await mine.benchmark_tasks(given)
            assert service.heard() == heard, given
        started = await mine.start(RunRequest("nop", "quiz", provider="null"))
        assert service.heard() == {KEY}
        assert started.run.arguments["headers"] == ["X-Descope-Api-Key"]
        await mine.stop(started.run.id, force=True)
        resumed = await mine.resume(started.run.id)
        assert resumed.run.counts["PENDING"] == 2
    session = descope.token({"T1": {"name": "Acme"}}, email="ada@example.com")
    async with ValkyrieClient(tracker_url, session) as browser:
        await browser.benchmark_tasks(TasksRequest("quiz"))
        assert service.heard() == {None}, "a session's token is for this tracker only"
        await browser.stop(started.run.id, force=True)
        with pytest.raises(UserError, match="-H X-Descope-Api-Key VALUE"):
            await browser.resume(started.run.id)
