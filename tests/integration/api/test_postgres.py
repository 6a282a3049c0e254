"""The same API on PostgreSQL, through a restart of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.api.stage import Stage, client, open_stage, read_events, serving
from tests.postgres import Postgres
from valkyrie.secrets.delivery import VARIABLE, new_key


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str) -> Iterator[Stage]:
    monkeypatch.setenv("VALKYRIE_DATABASE_URL", postgres_url)
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    monkeypatch.setenv(VARIABLE, new_key())
    made = open_stage(tmp_path / "home")
    yield made
    made.tracker_app.close()


@pytest.mark.slow
async def test_watchers_outlive_a_restart_of_the_database(stage: Stage, postgres: Postgres) -> None:
    assert stage.tracker_app.store.kind == "postgresql"
    run_id = stage.add_run(tasks=2)
    first, second = stage.lease(run_id)
    async with serving(stage) as server, client(server, stage.ours) as http:
        assert (await http.put("/v1/secrets/a/b", json={"value": "x"})).status_code == 204
        url = f"/v1/runs/{run_id}/events"
        async with asyncio.timeout(60), http.stream("GET", url, params={"trials": True}) as response:
            events = read_events(response)
            for _ in range(3):
                last = await anext(events)
            assert last.name == "run"
            stage.finish(first)
            changed = await anext(events)
            assert (changed.name, changed.data["state"]) == ("trial", "FINISHED")
            await asyncio.to_thread(postgres.stop)
            try:
                health = await http.get("/health")
                assert (health.status_code, health.json()["database"]) == (503, "unreachable")
            finally:
                await asyncio.to_thread(postgres.start)
            stage.finish(second)
            stage.conclude(run_id)
            rest = [event async for event in events]
        states = {event.data["task_id"]: event.data["state"] for event in rest if event.name == "trial"}
        assert states[second.task_id] == "FINISHED"
        assert [event.name for event in rest][-2:] == ["run", "end"]
        assert (await http.get("/health")).status_code == 200
        assert (await http.get(f"/v1/runs/{run_id}")).json()["state"] == "FINISHED"


async def test_odd_texts_are_refused_before_the_database_would(stage: Stage) -> None:
    async with serving(stage) as server, client(server, stage.ours) as http:
        for request in (
            http.get("/v1/runs", params={"label": "a\0b"}),
            http.get("/v1/runs/a%00b"),
            http.put("/v1/secrets/a%00b", json={"value": "x"}),
            http.put("/v1/secrets/ab", json={"value": "x\0"}),
            http.post("/v1/runs", json={"agent": "a", "benchmark": "b", "label": "\0"}),
        ):
            answer = await request
            assert answer.status_code == 400, answer.text
