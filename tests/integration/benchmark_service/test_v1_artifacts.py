"""Artifacts and quotas with the real AWS SDK against a stand-in; without the SDK, what needs none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from benchmark_service.schemas import EvalMode, StreamResultChunk
from tests.integration.benchmark_service.hosted import Aws, running
from tests.integration.benchmark_service.quizzes import Quiz, hosted, submission

UPLOAD = {"run_id": "r1", "task_id": "q1", "filename": "out.tar"}
KEY = "submission-artifacts/acme/default/r1/q1/out.tar"


class Files(Quiz):
    """Grades an uploaded file by its bytes."""

    eval_mode = EvalMode.ARTIFACT
    accepted_submission_schemas: ClassVar[Any] = {"artifact": frozenset({"quiz.artifact.v1"})}

    async def evaluate_artifact(
        self, run_id: str, task_id: str, schema_id: str, artifact: bytes, dataset: str | None = None
    ) -> Any:
        yield StreamResultChunk(type="result", data=[run_id, task_id, schema_id, artifact.decode()])


class FilesOnDisk(Quiz):
    """Grades an uploaded file by its path; a plain coroutine."""

    eval_mode = EvalMode.MATERIALIZED_ARTIFACT
    accepted_submission_schemas: ClassVar[Any] = {"artifact": frozenset({"quiz.artifact.v1"})}
    seen: ClassVar[Path]

    async def evaluate_materialized_artifact(self, *, tenant: str, artifact: Path, **_: Any) -> Any:  # type: ignore[override]
        type(self).seen = artifact
        return [tenant, artifact.read_text()]


def artifact(data: Any = KEY, **more: Any) -> dict[str, Any]:
    return submission(payload={"type": "artifact", "schema": "quiz.artifact.v1", "data": data}, **more)


@pytest.fixture
async def aws(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Aws]:
    pytest.importorskip("boto3", reason="needs the extra 'aws'")
    async with running(Aws()) as standin:
        monkeypatch.setenv("AWS_ENDPOINT_URL", standin.url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
        monkeypatch.setenv("SUBMISSION_ARTIFACT_BUCKET", "bucket")
        monkeypatch.setenv("EVALUATION_QUOTA_TABLE_NAME", "quotas")
        yield standin


async def test_no_bucket_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUBMISSION_ARTIFACT_BUCKET", raising=False)
    async with hosted(monkeypatch, Files) as service, service.caller() as caller:
        assert (await caller.post("/v1/submissions/upload-url", json=UPLOAD)).status_code == 503
        assert (await caller.post("/v1/evaluate", json=artifact())).status_code == 503
        refused = await caller.post("/v1/submissions/upload-url", json={**UPLOAD, "dataset": "private"})
        assert refused.status_code == 403


async def test_names_that_could_leave_their_folder_are_422(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch, Files) as service, service.caller() as caller:
        for field in ("run_id", "task_id", "dataset", "filename"):
            for value in ("", "..", "a/b", ".hidden", "a b", "a\n", "é", "x" * 129):
                answer = await caller.post("/v1/submissions/upload-url", json={**UPLOAD, field: value})
                assert answer.status_code == 422, (field, value)


async def test_only_the_submissions_own_artifact_is_graded(monkeypatch: pytest.MonkeyPatch) -> None:
    others = (
        "submission-artifacts/tiny/default/r1/q1/out.tar",
        "submission-artifacts/acme/hard/r1/q1/out.tar",
        "submission-artifacts/acme/default/r2/q1/out.tar",
        "submission-artifacts/acme/default/r1/q1/../q2/out.tar",
        "submission-artifacts/acme/default/r1/q1/..",
        "elsewhere/out.tar",
        {"etag": "x"},
        7,
        None,
    )
    async with hosted(monkeypatch, Files) as service, service.caller() as caller:
        for data in others:
            answer = await caller.post("/v1/evaluate", json=artifact(data))
            assert answer.status_code == 400, data
            assert answer.json()["detail"].startswith("Payload not accepted: ")


async def test_upload_submit_and_grade(monkeypatch: pytest.MonkeyPatch, aws: Aws) -> None:
    async with hosted(monkeypatch, Files) as service, service.caller() as caller:
        place = (await caller.post("/v1/submissions/upload-url", json=UPLOAD)).json()
        assert (place["key"], place["expires_in"]) == (KEY, 3600)
        assert "very-secret" not in place["url"]
        async with httpx.AsyncClient() as uploader:
            uploaded = await uploader.put(place["url"], content=b"hello")
        assert aws.objects == {KEY: b"hello"}
        body = artifact({"key": KEY, "etag": uploaded.headers["etag"]})
        answer = (await caller.post("/v1/evaluate", json=body)).json()
    assert answer["result"] == ["r1", "q1", "quiz.artifact.v1", "hello"]


async def test_missing_changed_and_too_large(monkeypatch: pytest.MonkeyPatch, aws: Aws) -> None:
    async with hosted(monkeypatch, Files) as service, service.caller() as caller:
        assert (await caller.post("/v1/evaluate", json=artifact())).status_code == 404
        aws.objects[KEY] = b"hello"
        other = artifact({"key": KEY, "etag": '"0123"'})
        assert (await caller.post("/v1/evaluate", json=other)).status_code == 409
        monkeypatch.setenv("SUBMISSION_ARTIFACT_MAX_DOWNLOAD_BYTES", "4")
        assert (await caller.post("/v1/evaluate", json=artifact())).status_code == 413
        monkeypatch.setenv("SUBMISSION_ARTIFACT_MAX_DOWNLOAD_BYTES", "lots")
        assert (await caller.post("/v1/evaluate", json=artifact())).status_code == 503
        monkeypatch.setenv("SUBMISSION_ARTIFACT_MAX_DOWNLOAD_BYTES", "5")
        assert (await caller.post("/v1/evaluate", json=artifact())).status_code == 200
        aws.replace_after_head = b"other"
        assert (await caller.post("/v1/evaluate", json=artifact())).status_code == 409


async def test_on_disk_and_gone_afterwards(monkeypatch: pytest.MonkeyPatch, aws: Aws) -> None:
    aws.objects[KEY] = b"hello"
    async with hosted(monkeypatch, FilesOnDisk) as service, service.caller() as caller:
        answer = (await caller.post("/v1/evaluate", json=artifact())).json()
    assert answer["result"] == ["acme", "hello"]
    assert not FilesOnDisk.seen.exists()


LIMITED = {"acme": {"datasets": ["default"], "evaluation_quota": {"limit": 2, "period": "week"}}}


async def test_quota_counts_each_evaluation_even_a_failed_one(
    monkeypatch: pytest.MonkeyPatch, aws: Aws
) -> None:
    async with hosted(monkeypatch, tenants=LIMITED) as service, service.caller() as caller:
        for answer in ("crash", "4"):
            assert (await caller.post("/v1/evaluate", json=submission(answer))).status_code == 200
        reached = await caller.post("/v1/evaluate", json=submission())
        assert reached.status_code == 429
        assert reached.json()["detail"].startswith(
            "Evaluation request limit of 2 per week reached; try again"
        )
        assert 1 <= int(reached.headers["retry-after"]) <= 7 * 86400
        legacy_route = await caller.post("/evaluate-response/", json={"task_id": "q1", "response": "4"})
        assert legacy_route.status_code == 429
        refused = await caller.post("/v1/evaluate", json=submission(task_id="zz"))
        assert refused.status_code == 404
    [(key, used)] = aws.counters.items()
    assert used == 2
    assert key.startswith('["Quiz","acme","evaluation","week","')
    assert {write["TableName"] for write in aws.writes} == {"quotas"}


async def test_a_broken_table_is_503_and_asked_once(monkeypatch: pytest.MonkeyPatch, aws: Aws) -> None:
    aws.broken = True
    async with hosted(monkeypatch, tenants=LIMITED) as service, service.caller() as caller:
        assert (await caller.post("/v1/evaluate", json=submission())).status_code == 503
    assert len(aws.writes) == 1
