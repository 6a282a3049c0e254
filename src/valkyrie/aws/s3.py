"""Artifacts in an S3 bucket."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sandboxes.retry import Backoff, Retries
from valkyrie.artifact_store.disk import disk_errors, whole_file
from valkyrie.artifact_store.protocol import LINK_SECONDS, StoredArtifact, check_key, check_prefix
from valkyrie.aws.session import Act, AwsSession, explained, fault_code, sdk
from valkyrie.domain import Json
from valkyrie.errors import InfrastructureError, UserError

_METADATA = "valkyrie"
"""One field of JSON: S3's own metadata has no types and no letters beyond ASCII."""
_LONGEST_METADATA = 1_900


def connect(session: AwsSession, bucket: str, patient: bool) -> Any:
    """An obstore client; a patient one repeats a failed request for a minute."""
    endpoint = session.endpoint
    options: Json = {
        "allow_http": (endpoint or "").startswith("http://"),
        "connect_timeout": "5s",
        "read_timeout": "60s",
        "timeout": "15m",
    }
    retry: Json = {
        "max_retries": 12 if patient else 1,
        "retry_timeout": timedelta(seconds=60),
        "backoff": {
            "init_backoff": timedelta(milliseconds=200),
            "max_backoff": timedelta(seconds=5),
            "base": 2,
        },
    }
    # A name with dots fits no certificate as a host name.
    place: Json = {"endpoint": endpoint} if endpoint else {"virtual_hosted_style_request": "." not in bucket}
    return sdk("obstore.store").S3Store(
        bucket,
        region=session.region,
        client_options=options,
        retry_config=retry,
        credential_provider=session.credential,
        **place,
    )


def as_attributes(metadata: Json | None) -> dict[str, str]:
    """As a request carries it."""
    if metadata is None:
        return {}
    text = json.dumps(metadata, separators=(",", ":"))
    if len(text) > _LONGEST_METADATA:
        raise UserError(
            f"The artifact's metadata is longer than {_LONGEST_METADATA} characters.",
            cause="artifacts_config",
        )
    return {_METADATA: text}


def read_metadata(attributes: dict[str, str]) -> Json | None:
    """As it was given, when it was."""
    try:
        found = json.loads(attributes[_METADATA])
    except (KeyError, ValueError):
        return None
    return found if isinstance(found, dict) else None


# Artifacts in an S3 bucket.

T = TypeVar("T")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PIECE = 1 << 20
_PART = 5 << 20
_MOST_PARTS = 9_000
_PARTS_AT_ONCE = 3
_DELETED_AT_ONCE = 1_000
_LONGEST_LINK_S = 604_800
_READ_PATIENCE_S = 60.0
_BACKOFF = Backoff(first_s=0.5, longest_s=15.0, jitter=0.3)
_READ_ANEW = 5


class _ReplacedError(InfrastructureError):
    """The object is no longer the one whose beginning was read."""

    default_cause = "artifacts"


class S3Artifacts:
    """Objects below a prefix of a bucket. An outage is waited out for `patience` seconds when writing."""

    def __init__(
        self, session: AwsSession, bucket: str, prefix: str = "", *, patience: float = 300.0
    ) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise UserError(f"{bucket[:80]!r} is not the name of a bucket.", cause="artifacts_config")
        self._session = session
        self._bucket = bucket
        below = check_prefix(prefix.strip("/"))
        self._top = f"{below}/" if below else ""
        self._patience = patience
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        self._stores: dict[bool, Any] = {}

    def __repr__(self) -> str:
        return f"S3Artifacts(s3://{self._bucket}/{self._top})"

    @property
    def place(self) -> Json:
        return {
            "kind": "s3",
            "bucket": self._bucket,
            "prefix": self._top.rstrip("/"),
            "region": self._session.region,
        }

    def put(self, key: str, file: Path, metadata: Json | None = None) -> None:
        with disk_errors(f"read {file}"):
            size = file.stat().st_size
            file.open("rb").close()
        self._put(key, file, metadata, size)

    def put_text(self, key: str, text: str) -> None:
        data = text.encode()
        kind = "application/json" if key.endswith(".json") else "text/plain; charset=utf-8"
        self._put(key, data, None, len(data), {"Content-Type": kind})

    def read(self, key: str) -> Iterator[bytes]:
        path, act = self._path(key), self._act("read", "s3:GetObject", key)
        retries = self._retries(writing=False)
        position, tag = 0, None
        while True:
            try:
                with explained(act), _noticing_another(self.url(key)):
                    answer = self._opened_at(path, position, tag)
                    size, tag = answer.meta["size"], answer.meta["e_tag"]
                    for piece in answer.stream(min_chunk_size=_PIECE):
                        position += len(piece)
                        retries.reset()
                        yield bytes(piece)
                    if position < size:
                        raise InfrastructureError(f"{self.url(key)} broke off.", cause="artifacts")
                    return
            except _ReplacedError:
                raise
            except InfrastructureError as error:
                retries.block(error, self._given_up.wait)

    def get(self, key: str, file: Path) -> None:
        for left in reversed(range(_READ_ANEW)):
            try:
                with disk_errors(f"write {file}"), whole_file(file) as target:
                    for piece in self.read(key):
                        target.write(piece)
                return
            except _ReplacedError:
                if not left:
                    raise

    def find(self, key: str) -> StoredArtifact | None:
        path, obstore = self._path(key), sdk("obstore")

        def look() -> StoredArtifact | None:
            try:
                answer = obstore.get(self._store(), path, options={"head": True})
            except FileNotFoundError:
                return None
            return self._artifact(answer.meta, read_metadata(answer.attributes))

        return self._ask(self._act("look at", "s3:GetObject and s3:ListBucket", key), look)

    def list(self, prefix: str) -> Iterator[StoredArtifact]:
        below = self._top + check_prefix(prefix)
        act = self._act("list", f"s3:ListBucket on arn:aws:s3:::{self._bucket}, and s3:GetObject", prefix)
        retries = self._retries(writing=False)
        last: str | None = None
        while True:
            try:
                with explained(act):
                    for entry in self._listed(below.rstrip("/"), last):
                        last = entry["path"]
                        retries.reset()
                        yield self._artifact(entry)
                return
            except InfrastructureError as error:
                retries.block(error, self._given_up.wait)

    def copy(self, source: str, target: str) -> None:
        before, after, obstore = self._path(source), self._path(target), sdk("obstore")
        act = self._act("copy", "s3:GetObject and s3:PutObject", source)
        self._ask(act, lambda: obstore.copy(self._store(), before, after), writing=True)

    def delete(self, prefix: str) -> None:
        check_key(prefix.removesuffix("/"))
        if not prefix.endswith("/"):
            self._delete([self._path(prefix)])
            return
        batch: list[str] = []
        for artifact in self.list(prefix):
            batch.append(self._top + artifact.key)
            if len(batch) == _DELETED_AT_ONCE:
                self._delete(batch)
                batch = []
        self._delete(batch)

    def url(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._path(key)}"

    def link(self, key: str, seconds: int = LINK_SECONDS) -> str | None:
        path, obstore = self._path(key), sdk("obstore")
        lasting = timedelta(seconds=max(1, min(seconds, _LONGEST_LINK_S)))
        act = self._act("sign a link to", "s3:GetObject", key)
        link: str = self._ask(act, lambda: obstore.sign(self._store(), "GET", path, lasting))
        return link

    def console_url(self, prefix: str) -> str | None:
        if self._session.endpoint:
            return None
        region, below = self._session.region, quote(self._top + prefix, safe="")
        return f"https://{region}.console.aws.amazon.com/s3/buckets/{self._bucket}?region={region}&prefix={below}"

    def check(self) -> None:
        probe = S3Artifacts(self._session, self._bucket, self._top, patience=0)
        key = f"probe/{uuid.uuid4().hex}"
        probe.put_text(key, key)
        try:
            same = b"".join(probe.read(key)) == key.encode()
            listed = any(artifact.key == key for artifact in probe.list("probe/"))
        finally:
            probe.delete(key)
        if not same or not listed:
            raise InfrastructureError(
                f"{self!r} does not give back what was just put there.", cause="artifacts"
            )

    def close(self) -> None:
        self._given_up.set()

    def _put(
        self,
        key: str,
        data: Path | bytes,
        metadata: Json | None,
        size: int,
        more: dict[str, str] | None = None,
    ) -> None:
        path, obstore = self._path(key), sdk("obstore")
        attributes = {**(more or {}), **as_attributes(metadata)}

        def upload() -> None:
            obstore.put(
                self._store(patient=self._patience > 0),
                path,
                data,
                attributes=attributes or None,
                chunk_size=max(_PART, -(-size // _MOST_PARTS)),
                max_concurrency=_PARTS_AT_ONCE,
            )

        self._ask(self._act("write", "s3:PutObject", key), upload, writing=True)

    def _opened_at(self, path: str, position: int, tag: str | None) -> Any:
        options: Json = {"range": {"offset": position}, "if_match": tag} if position else {}
        return sdk("obstore").get(self._store(), path, options=options)

    def _listed(self, below: str, after: str | None) -> Iterator[Any]:
        pages = sdk("obstore").list(self._store(), below or None, offset=after, chunk_size=1_000)
        for page in pages:
            yield from page

    def _delete(self, paths: Sequence[str]) -> None:
        if paths:
            obstore, act = sdk("obstore"), self._act("remove", "s3:DeleteObject", "")
            self._ask(act, lambda: obstore.delete(self._store(), paths), writing=True)

    def _artifact(self, meta: Any, metadata: Json | None = None) -> StoredArtifact:
        key = meta["path"].removeprefix(self._top)
        return StoredArtifact(key, meta["size"], meta["last_modified"].timestamp(), metadata)

    def _path(self, key: str) -> str:
        check_key(key)
        return check_key(self._top + key)

    def _act(self, verb: str, permission: str, key: str) -> Act:
        on = f"{permission} on arn:aws:s3:::{self._bucket}/{self._top}*"
        return Act(
            f"{verb} s3://{self._bucket}/{self._top}{key}",
            on,
            unreachable="artifacts",
            refused="artifacts_config",
        )

    def _retries(self, *, writing: bool) -> Retries:
        within = self._patience if writing else min(self._patience, _READ_PATIENCE_S)
        return Retries(replace(_BACKOFF, within_s=within))

    def _ask(self, act: Act, ask: Callable[[], T], *, writing: bool = False) -> T:
        """Return what `ask` gives, asked again while AWS cannot be reached."""
        retries = self._retries(writing=writing)
        while True:
            try:
                with explained(act):
                    return ask()
            except InfrastructureError as error:
                retries.block(error, self._given_up.wait)

    def _store(self, *, patient: bool = False) -> Any:
        """The client; a patient one repeats the request at hand, so that an upload need not begin anew."""
        # What is wrong with the credentials is told better here than by the client.
        self._session.credential()
        with self._lock:
            if patient not in self._stores:
                self._stores[patient] = connect(self._session, self._bucket, patient)
            return self._stores[patient]


@contextmanager
def _noticing_another(url: str) -> Iterator[None]:
    """The rest is asked for of the very object that was begun; refused, it is another one by now."""
    try:
        yield
    except Exception as error:
        if fault_code(error) in ("PreconditionFailed", "412", "InvalidRange", "416"):
            raise _ReplacedError(f"{url} was replaced while it was read.") from None
        raise
