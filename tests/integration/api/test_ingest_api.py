"""Results sent to a tracker: stored once, for the caller's organisation alone, or refused whole."""

from __future__ import annotations

import asyncio
import io
import json
import re
import stat
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmark_runner import tracker_report
from benchmark_runner.schemas import EvalStatus
from benchmark_runner.tracker_report import ReportError, report_run
from tests.integration.api.stage import Stage, client, serving
from tests.integration.evals.runner_folder import write_run, write_task
from tests.live_folders import contents_below
from valkyrie.api.capacity import ApiSettings
from valkyrie.api.server import ApiServer
from valkyrie.client import ValkyrieClient
from valkyrie.errors import UserError
from valkyrie.views import RunFilter

RECORD = {"type": "trial-result", "stimulus": "greet", "status": "success", "eval": "greetings", "model": "m"}
GRADED = {**RECORD, "gradeResult": {"passed": True, "score": 1.0, "details": []}, "trajectory": None}


def zipped(
    files: dict[str, bytes | str], *, top: str = "ingest", kinds: dict[str, int] | None = None
) -> bytes:
    """An archive, of whatever is asked for."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(f"{top}/{name}", (2025, 1, 15, 10, 30, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = ((kinds or {}).get(name, stat.S_IFREG) | 0o644) << 16
            archive.writestr(entry, content)
    return held.getvalue()


def left_behind(stage: Stage) -> list[Path]:
    """What is in the folders of runs and of archives that come in."""
    root = stage.tracker_app.data.root
    return [*(root / "runs").iterdir(), *(root / "incoming").glob("*")]


async def test_a_folder_is_sent_and_stored_once(
    stage: Stage, server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    artifacts = write_run(Path("results"))
    (Path("results") / "run-1" / ".env").write_text("KEY=s3cr3t")
    async with (
        ValkyrieClient(server.url, stage.ours) as ours,
        ValkyrieClient(server.url, stage.theirs) as theirs,
    ):
        [would] = await ours.ingest([Path("results")], dry_run=True)
        assert would.status == "would be stored" and (await ours.list()).total == 0
        [first] = await ours.ingest([Path("results")], label="sent")
        assert (first.status, first.trials, first.file) == ("stored", 3, "results/run-1/run_config.json")
        [again] = await ours.ingest([Path("results")])
        assert (again.status, again.run_id) == ("known", first.run_id)
        run = await ours.fetch(first.run_id)
        assert (run.benchmark, run.agent, run.label, run.started_by) == (
            "capitals",
            "capitals-runner",
            "sent",
            "ada@example.org",
        )
        log = "".join([piece async for piece in ours.logs(run.id, "france")])
        assert "answer (success): Paris" in log and "from results/run-1/run_config.json" in log
        trials, _ = await ours.trials(run.id)
        wrote = artifacts.eval_path("france").stat().st_mtime
        found = next(trial for trial in trials if trial.task_id == "france")
        assert found.finished_at == pytest.approx(wrote, abs=2.0)

        [elsewhere] = await theirs.ingest([Path("results")])
        assert elsewhere.status == "stored" and elsewhere.run_id != first.run_id
        assert [one.id for one in (await ours.list(RunFilter())).runs] == [first.run_id]

        write_task(artifacts, "chad", "N'Djamena", result=True)
        with pytest.raises(UserError, match=r"results/run-1/run_config.json: .* other results.*--replace"):
            await ours.ingest([Path("results")])
        [replaced] = await ours.ingest([Path("results")], replace=True)
        assert (replaced.status, replaced.run_id) == ("replaced", first.run_id)
    assert len(left_behind(stage)) == 2
    kept = contents_below(stage.tracker_app.data.root)
    assert not any(b"s3cr3t" in content for _, content in kept), "only what belongs to the run is sent"


async def test_results_of_evals_are_sent_with_the_files_they_name(
    stage: Stage, server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("r", "2025-01-15T10-30-00-005Z")
    (folder / "art").mkdir(parents=True)
    (folder / "art" / "kept.txt").write_text("kept")
    (folder / "other.txt").write_text("not named by any record")
    Path("secret").write_text("s3cr3t")
    (folder / "art" / "link").symlink_to(tmp_path / "secret")
    lines = [{**GRADED, "artifactDir": "art"}, {**GRADED, "stimulus": "up", "sessionLog": "../../secret"}]
    (folder / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    async with ValkyrieClient(server.url, stage.ours) as ours:
        [run] = await ours.ingest([Path("r")])
        assert (run.status, run.trials, run.file) == ("stored", 2, str(folder / "results.jsonl"))
        written = await ours.outputs(run.run_id, tmp_path / "out")
        stored = await ours.fetch(run.run_id)
    assert stored.started_at == pytest.approx(1736937000.005)
    names = [path.name for one in written for path in one.rglob("*") if path.is_file()]
    assert "kept.txt" in names and "other.txt" not in names and "link" not in names
    kept = contents_below(stage.tracker_app.data.root)
    assert not any(b"s3cr3t" in content for _, content in kept)


async def test_many_at_once_store_one(stage: Stage, server: ApiServer, tmp_path: Path) -> None:
    write_run(tmp_path / "results")
    async with ValkyrieClient(server.url, stage.ours) as ours:
        found = await asyncio.gather(*(ours.ingest([tmp_path / "results"]) for _ in range(6)))
        [run_id] = {one.run_id for [one] in found}
        assert [one.id for one in (await ours.list()).runs] == [run_id]
        assert len(await ours.outputs(run_id, tmp_path / "out")) == 3
    assert [path.name for path in left_behind(stage)] == [run_id]


class AnswerLost(httpx.AsyncHTTPTransport):
    """The first answer gets lost on the way; the request did arrive."""

    lost = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if request.method == "PUT" and not self.lost:
            self.lost = True
            await response.aread()
            raise httpx.ReadError("the connection broke off")
        return response


async def test_an_answer_that_gets_lost(stage: Stage, server: ApiServer, tmp_path: Path) -> None:
    write_run(tmp_path / "results")
    transport = AnswerLost()
    async with ValkyrieClient(server.url, stage.ours, transport=transport) as ours:
        [run] = await ours.ingest([tmp_path / "results"])
        assert transport.lost and run.status == "known"
        assert (await ours.list()).total == 1


async def test_a_runner_reports(
    stage: Stage, server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALKYRIE_API_KEY", stage.ours)
    monkeypatch.setenv("TRACKER_SERVICE_URL", "http://127.0.0.1:9")
    artifacts = write_run(tmp_path / "results")
    (artifacts.log_dir("france") / "link").symlink_to("/etc/passwd")
    run_id = await report_run(server.url + "/", artifacts)
    assert await report_run(server.url, artifacts) == run_id
    write_task(artifacts, "chad", status=EvalStatus.ERROR, error="the service is gone")
    assert await report_run(server.url, artifacts) == run_id, "what it has become since"
    async with ValkyrieClient(server.url, stage.ours) as ours:
        assert (await ours.fetch(run_id)).counts["ERROR"] == 1
        logs = "".join([piece async for piece in ours.logs(run_id, "france")])
        assert "What is the capital of france?" in logs


@pytest.mark.parametrize(
    ("url", "key", "why"),
    [
        ("{url}", "valk_wrong", "does not know this key; set VALKYRIE_API_KEY"),
        ("{url}", "two words", "characters no key has"),
        ("{url}/elsewhere", "{key}", "refused it: There is nothing at this address"),
        ("http://ann:pass-4711@127.0.0.1:9", "{key}", "holds no user or password"),
        ("tracker.example", "{key}", "a tracker's address looks like"),
        ("http://127.0.0.1:1", "{key}", "cannot reach the tracker at http://127.0.0.1:1"),
    ],
)
async def test_a_report_that_fails(
    stage: Stage,
    server: ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    key: str,
    why: str,
) -> None:
    monkeypatch.setattr(tracker_report, "BACKOFF", replace(tracker_report.BACKOFF, attempts=1))
    monkeypatch.setenv("VALKYRIE_API_KEY", key.format(key=stage.ours))
    artifacts = write_run(tmp_path / "results")
    before = {path: path.read_bytes() for path in artifacts.root.rglob("*") if path.is_file()}
    with pytest.raises(ReportError, match=why) as caught:
        await report_run(url.format(url=server.url), artifacts)
    assert stage.ours not in str(caught.value) and "pass-4711" not in str(caught.value)
    assert {path: path.read_bytes() for path in artifacts.root.rglob("*") if path.is_file()} == before


def _config(**more: Any) -> str:
    return json.dumps({"run_id": "r", "model": "m", "tasks": ["t"], "benchmark": "b", **more})


EVAL = json.dumps({"task_id": "t", "status": "evaluated", "result": True})
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "no zip": (lambda: b"hello", "The archive is no usable zip archive"),
    "nothing in it": (
        lambda: zipped({"a.txt": "x"}),
        "The archive has no results.jsonl and no run_config.json",
    ),
    "way up": (lambda: zipped({"../../results.jsonl": json.dumps(GRADED)}), "no plain relative path"),
    "link": (
        lambda: zipped({"run_config.json": "/etc/passwd"}, kinds={"run_config.json": stat.S_IFLNK}),
        "is a link or special file",
    ),
    "bomb": (lambda: zipped({"results.jsonl": b" " * 3_000_000}), "unpacks to too much"),
    "much": (
        lambda: zipped({"results.jsonl": b" " * 1_500_000}),
        "These results have 1 MiB besides artifacts and logs; 0 are taken",
    ),
    "record": (lambda: zipped({"a/results.jsonl": "{oops"}), "^a/results.jsonl: Line 1 is not JSON"),
    "config": (lambda: zipped({"r/run_config.json": "[]"}), "^r/run_config.json is not what a runner writes"),
    "name": (
        lambda: zipped({"run_config.json": _config(model="m" * 2000), "t/eval.json": EVAL}),
        "^run_config.json: 'mmm.*at most 1,000 characters",
    ),
    "half of it": (
        lambda: zipped({"a/run_config.json": _config(), "a/t/eval.json": EVAL, "b/run_config.json": "{}"}),
        "^b/run_config.json is not what a runner writes",
    ),
    "two of one": (
        lambda: zipped(
            {f"{place}/run_config.json": _config() for place in "ab"}
            | {"a/t/eval.json": EVAL, "b/t/eval.json": EVAL.replace("true", "false")}
        ),
        "a/run_config.json and b/run_config.json are both",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_what_is_refused_leaves_nothing(
    stage: Stage, ours: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("AGENT_ARCHIVE_MAX_EXPANDED_BYTES", "2000000")
    monkeypatch.setattr("valkyrie.ingest.sources.MOST_RECORDS", 1_000_000)
    pack, why = HOSTILE[kind]
    answer = await ours.put("/v1/ingest", content=pack())
    message = answer.json()["error"]["message"]
    assert (answer.status_code, bool(re.search(why, message))) == (422, True), message
    assert str(stage.tracker_app.data.root) not in message
    assert (await ours.get("/v1/runs")).json()["total"] == 0
    assert left_behind(stage) == []


async def test_a_zip_made_by_hand(stage: Stage, ours: httpx.AsyncClient) -> None:
    body = zipped({"run_config.json": _config(), "t/eval.json": EVAL}, top="my-run")
    [run] = (await ours.put("/v1/ingest", params={"label": "by hand"}, content=body)).json()
    assert (run["status"], run["file"], run["name"]) == ("stored", "run_config.json", "b [m] r")


async def test_strangers_and_giants(stage: Stage) -> None:
    async with serving(stage, ApiSettings(upload_limit=1000)) as server:
        async with client(server, None) as stranger:
            assert (await stranger.put("/v1/ingest", content=b"x" * 5000)).status_code in (401, 413)
        async with client(server, stage.ours) as ours:
            assert (await ours.put("/v1/ingest", content=b"x" * 5000)).status_code == 413
            assert (await ours.put("/v1/ingest", params={"labl": "x"}, content=b"")).status_code == 400
            assert (await ours.put("/v1/ingest", params={"label": "x" * 2000})).status_code == 400
