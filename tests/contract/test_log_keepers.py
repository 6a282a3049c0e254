"""Logs in a folder and in CloudWatch keep the same contract."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aws_server import Ministack
from valkyrie.artifact_store.logs import FileLogs
from valkyrie.artifact_store.protocol import LogKeeper
from valkyrie.aws.services import CloudWatchLogs
from valkyrie.testing.artifact_store import LogKeeperContract

pytest_plugins = ["tests.aws_server"]


class TestFileLogs(LogKeeperContract):
    @pytest.fixture
    def keeper(self, tmp_path: Path) -> Iterator[FileLogs]:
        keeper = FileLogs(tmp_path / "kept", every=0.02)
        yield keeper
        keeper.close(1)

    def again(self, keeper: LogKeeper) -> FileLogs:
        assert keeper.place["kind"] == "files"
        return FileLogs(Path(keeper.place["folder"]), every=0.02)


class TestCloudWatchLogs(LogKeeperContract):
    @pytest.fixture
    def keeper(self, ministack: Ministack) -> Iterator[CloudWatchLogs]:
        self.session = ministack.session()
        keeper = CloudWatchLogs(self.session, f"benchmarks/{uuid.uuid4().hex}", 365, every=0.02)
        yield keeper
        keeper.close(1)

    def again(self, keeper: LogKeeper) -> CloudWatchLogs:
        place = keeper.place
        assert place["kind"] == "cloudwatch"
        return CloudWatchLogs(self.session, place["group"], place["retention_days"], every=0.02)
