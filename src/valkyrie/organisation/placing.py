"""Where artifacts and logs are kept: of new runs, and of one that remembers its place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie import config
from valkyrie.errors import StoreError, UserError
from valkyrie.nouns import Json

if TYPE_CHECKING:
    from valkyrie.agents.library import Library
    from valkyrie.aws.session import AwsSession
    from valkyrie.keeping.protocol import ArtifactStore, LogKeeper

DEFAULT_LOG_GROUP, DEFAULT_RETENTION = "benchmarks", 365


@dataclass(frozen=True, slots=True)
class Placing:
    """Where new runs keep things. Logs go to CloudWatch when artifacts go to S3 and there is a log group,
    and beside the artifacts when these are in a folder."""

    session: AwsSession | None
    bucket: str | None = None
    prefix: str = ""
    folder: Path | None = None
    log_group: str | None = None
    retention_days: int = DEFAULT_RETENTION

    def artifacts(self) -> ArtifactStore | None:
        """The bucket, else the folder, else nothing."""
        if self.bucket and self.session:
            from valkyrie.aws.s3 import S3Artifacts

            return S3Artifacts(self.session, self.bucket, self.prefix)
        if self.folder:
            from valkyrie.keeping.disk import DiskArtifacts

            return DiskArtifacts(self.folder)
        return None

    def logs(self) -> LogKeeper | None:
        """CloudWatch, or files beside the artifacts, or nothing."""
        if self.folder and not self.bucket:
            from valkyrie.keeping.files import FileLogs

            return FileLogs(self.folder / "logs")
        if not (self.bucket and self.session and self.log_group):
            return None
        from valkyrie.aws.logs import CloudWatchLogs

        return CloudWatchLogs(self.session, self.log_group, self.retention_days)


def own_placing(session: AwsSession | None, prefix: str = "") -> Placing:
    """As this machine's config says, below a prefix."""
    bucket, folder = config.effective("S3_BUCKET").value, config.effective("artifacts_folder").value
    group = str(config.effective("LOG_GROUP").value)
    root = Path(str(folder)) if folder else None
    return Placing(
        session,
        bucket=str(bucket) if bucket else None,
        prefix=prefix,
        folder=root / prefix if root and prefix else root,
        log_group=None if group == config.NO_LOGS else "/".join(filter(None, (group, prefix))),
        retention_days=int(config.effective("LOG_RETENTION_POLICY").value or DEFAULT_RETENTION),
    )


def open_library(artifacts: ArtifactStore | None, folder: Path, cache: Path) -> Library:
    """Pushed agents: with the artifacts, else in a folder of this machine."""
    from valkyrie.agents.library import AgentLibrary, StoredLibrary

    return AgentLibrary(folder) if artifacts is None else StoredLibrary(artifacts, cache)


def open_artifacts(place: Json, session: AwsSession | None) -> ArtifactStore:
    """The store a run remembers."""
    if place.get("kind") == "disk":
        from valkyrie.keeping.disk import DiskArtifacts

        return DiskArtifacts(Path(place["folder"]))
    if place.get("kind") == "s3":
        from valkyrie.aws.s3 import S3Artifacts

        where = f"s3://{place['bucket']}"
        return S3Artifacts(_there(place, session, where), place["bucket"], place.get("prefix") or "")
    raise _strange(place)


def open_logs(place: Json, session: AwsSession | None) -> LogKeeper:
    """The log keeper a run remembers."""
    if place.get("kind") == "files":
        from valkyrie.keeping.files import FileLogs

        return FileLogs(Path(place["folder"]))
    if place.get("kind") != "cloudwatch":
        raise _strange(place)
    from valkyrie.aws.logs import CloudWatchLogs

    group = str(place["group"])
    days = int(place.get("retention_days") or DEFAULT_RETENTION)
    return CloudWatchLogs(_there(place, session, f"log group {group}"), group, days)


def _there(place: Json, session: AwsSession | None, where: str) -> AwsSession:
    """The same way in, to the region of the place: the organisation may have moved since."""
    if session is None:
        raise UserError(
            f"Kept at {where}, and no AWS credentials are configured any more to reach it.",
            cause="artifacts_config",
        )
    region = place.get("region")
    if not region or region == session.access.region:
        return session
    from valkyrie.organisation.own_aws import session_for

    return session_for(replace(session.access, region=str(region)))


def _strange(place: Json) -> StoreError:
    return StoreError(
        f"A run is kept at a place of a kind this program does not know: {place.get('kind')!r}."
    )
