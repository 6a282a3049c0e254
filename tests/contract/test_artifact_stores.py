"""Artifacts on disk and in S3 keep the same contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.aws_server import Ministack
from valkyrie.artifact_store.disk import DiskArtifacts
from valkyrie.artifact_store.protocol import ArtifactStore
from valkyrie.aws.s3 import S3Artifacts
from valkyrie.testing.artifact_store import ArtifactStoreContract

pytest_plugins = ["tests.aws_server"]


class TestDiskArtifacts(ArtifactStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> DiskArtifacts:
        return DiskArtifacts(tmp_path / "kept")

    def again(self, store: ArtifactStore) -> DiskArtifacts:
        assert store.place["kind"] == "disk"
        return DiskArtifacts(Path(store.place["folder"]))


class TestS3Artifacts(ArtifactStoreContract):
    """Below a prefix, in a bucket that holds other people's things too."""

    has_links = True

    @pytest.fixture
    def store(self, ministack: Ministack) -> Iterator[S3Artifacts]:
        bucket = ministack.bucket()
        others = S3Artifacts(ministack.session(), bucket)
        for key in ("beside", "team/one2/x", "team/on"):
            others.put_text(key, "not ours")
        yield S3Artifacts(ministack.session(), bucket, "/team/one/")
        assert next(others.list("")).key == "beside"
        assert {"team/one2/x", "team/on"} <= {artifact.key for artifact in others.list("team/")}

    @pytest.fixture(autouse=True)
    def _use_ministack(self, ministack: Ministack) -> None:
        self.ministack = ministack

    def again(self, store: ArtifactStore) -> S3Artifacts:
        assert store.place["kind"] == "s3"
        return S3Artifacts(self.ministack.session(), store.place["bucket"], store.place["prefix"])

    def test_links_download_without_credentials(self, store: S3Artifacts) -> None:
        store.put_text("a b/ü%?.txt", "hello")
        link = store.link("a b/ü%?.txt", 60)
        assert link and httpx.get(link).text == "hello"
        assert httpx.get(link.partition("?")[0]).status_code == 403
