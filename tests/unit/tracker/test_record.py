from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.artifact_store.disk import DiskArtifacts
from valkyrie.artifact_store.logs import FileLogs
from valkyrie.aws.s3 import S3Artifacts
from valkyrie.aws.services import CloudWatchLogs
from valkyrie.aws.session import AwsAccess, AwsSession
from valkyrie.tracker.runs import kept_at


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:9"])
def test_the_pages_of_the_aws_console_are_remembered(
    endpoint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    session = AwsSession(AwsAccess(region="eu-central-1", endpoint=endpoint))
    kept = kept_at(S3Artifacts(session, "bkt", "orgs/7"), CloudWatchLogs(session, "group", 30), "r")
    assert kept and kept["artifacts"]["prefix"] == "orgs/7" and kept["logs"]["group"] == "group"
    pages = [kept[name].get("page") for name in ("artifacts", "logs")]
    if endpoint:
        assert pages == [None, None], "what is not at AWS is in no console of it"
    else:
        assert pages[0].endswith("/s3/buckets/bkt?region=eu-central-1&prefix=orgs%2F7%2Fbenchmarks%2Fr%2F")
        assert pages[1].endswith("#logsV2:log-groups/log-group/group$252Fr")


def test_folders_have_no_pages(tmp_path: Path) -> None:
    kept = kept_at(DiskArtifacts(tmp_path), FileLogs(tmp_path / "logs"), "r")
    assert kept and "page" not in kept["artifacts"] and "page" not in kept["logs"]
    assert kept_at(None, None, "r") is None
