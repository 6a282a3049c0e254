"""Submitted artifacts in S3, and clients of AWS services whose blocking calls stay off the event loop."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandboxes.registry import add_extra
from sandboxes.streams import uninterrupted


def aws_client(service: str) -> Any:
    """A client for `service` in AWS_REGION; AWS_ENDPOINT_URL points it elsewhere. Never retries by itself."""
    return _client(service, os.environ.get("AWS_REGION") or None, os.environ.get("AWS_ENDPOINT_URL") or None)


@lru_cache(maxsize=8)
def _client(service: str, region: str | None, endpoint: str | None) -> Any:
    try:
        boto3, config = import_module("boto3"), import_module("botocore.config")
    except ModuleNotFoundError as error:
        raise RuntimeError(f"{service} needs {error.name}: {add_extra('aws')}") from None
    # A retry of a write whose answer was lost would count one evaluation twice.
    settings = config.Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=30)
    if service == "s3":
        settings = settings.merge(config.Config(signature_version="s3v4"))
    return boto3.client(service, region_name=region, endpoint_url=endpoint, config=settings)


# Blocking calls of vendors' SDKs, kept off the event loop.

P = ParamSpec("P")
T = TypeVar("T")


async def run_blocking(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `call` in a thread. A cancelled caller is cancelled only once the call has ended.

    A thread cannot be interrupted: returning earlier would let the caller close what it still uses.
    """
    return await uninterrupted(asyncio.to_thread(call, *args, **kwargs))


# Submitted artifacts in S3: a place to upload one to, and its bytes exactly as they were uploaded.

UPLOAD_EXPIRES_S = 3600
DEFAULT_MAX_BYTES = 64 * 1024 * 1024
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class ArtifactsUnavailable(Exception):
    """The store is not configured, or cannot be used now."""


class ArtifactRefused(ValueError):
    """The submission does not name an artifact of its own tenant, dataset, run and task."""


class ArtifactMissing(Exception):
    """Nothing was uploaded under that key."""


class ArtifactChanged(Exception):
    """The object is not the one that was submitted."""


class ArtifactTooLarge(Exception):
    """The object is larger than this service downloads."""


class ArtifactRef(BaseModel):
    """`payload.data` of an artifact submission."""

    model_config = ConfigDict(extra="ignore")

    key: str = Field(max_length=1024)
    """As `/v1/submissions/upload-url` gave it."""
    etag: str | None = Field(default=None, max_length=256)
    """What the upload answered; without it, what is there when grading starts is graded."""


def artifact_key(tenant: str, dataset: str | None, run_id: str, task_id: str, filename: str) -> str:
    """Return where an artifact lies. Parts that could name another tenant's or task's folder are refused."""
    parts = (tenant, dataset or "default", run_id, task_id, filename)
    for part in parts:
        if not _SAFE.fullmatch(part):
            raise ArtifactRefused(f"{part[:130]!r} cannot be part of an artifact's key")
    return "/".join(("submission-artifacts", *parts))


def artifact_ref(data: Any, tenant: str, dataset: str | None, run_id: str, task_id: str) -> ArtifactRef:
    """The artifact a payload names: `{key, etag?}` or the bare key, under this submission's own folder."""
    try:
        ref = ArtifactRef.model_validate({"key": data} if isinstance(data, str) else data)
    except ValidationError:
        raise ArtifactRefused("data must be an artifact's key, or {key, etag}") from None
    filename = ref.key.rpartition("/")[2]
    if not _SAFE.fullmatch(filename) or ref.key != artifact_key(tenant, dataset, run_id, task_id, filename):
        raise ArtifactRefused("the key is not of this tenant, dataset, run and task")
    return ref


async def artifact_upload_url(key: str) -> str:
    """An address that takes one PUT of the object for UPLOAD_EXPIRES_S seconds."""
    bucket = _bucket()
    try:
        url = await run_blocking(_presign, bucket, key)
    except Exception as error:
        raise ArtifactsUnavailable(f"cannot sign an upload: {type(error).__name__}: {error}") from error
    return str(url)


async def download_artifact(ref: ArtifactRef) -> bytes:
    """The object's bytes, all of one version of it, at most SUBMISSION_ARTIFACT_MAX_DOWNLOAD_BYTES."""
    bucket, limit = _bucket(), _max_bytes()
    try:
        return await run_blocking(_fetch, bucket, ref, limit)
    except (ArtifactMissing, ArtifactChanged, ArtifactTooLarge):
        raise
    except Exception as error:
        raise ArtifactsUnavailable(f"cannot read the artifact: {type(error).__name__}: {error}") from error


def _max_bytes() -> int:
    """SUBMISSION_ARTIFACT_MAX_DOWNLOAD_BYTES, 64 MiB unless set."""
    text = os.environ.get("SUBMISSION_ARTIFACT_MAX_DOWNLOAD_BYTES", "").strip()
    if not text:
        return DEFAULT_MAX_BYTES
    if not text.isdecimal() or int(text) < 1:
        raise ArtifactsUnavailable(
            f"SUBMISSION_ARTIFACT_MAX_DOWNLOAD_BYTES must be a whole number, not {text!r}"
        )
    return int(text)


def _bucket() -> str:
    bucket = os.environ.get("SUBMISSION_ARTIFACT_BUCKET", "").strip()
    if not bucket:
        raise ArtifactsUnavailable("SUBMISSION_ARTIFACT_BUCKET is not set")
    return bucket


def _presign(bucket: str, key: str) -> str:
    params = {"Bucket": bucket, "Key": key}
    url: str = aws_client("s3").generate_presigned_url(
        "put_object", Params=params, ExpiresIn=UPLOAD_EXPIRES_S
    )
    return url


def _fetch(bucket: str, ref: ArtifactRef, limit: int) -> bytes:
    client = aws_client("s3")
    try:
        head = client.head_object(Bucket=bucket, Key=ref.key)
        etag = str(head["ETag"])
        if ref.etag is not None and ref.etag.strip('"') != etag.strip('"'):
            raise ArtifactChanged("The artifact was replaced after it was submitted.")
        if int(head["ContentLength"]) > limit:
            raise ArtifactTooLarge(f"The artifact is larger than {limit} bytes.")
        # Pinned: an upload between the two calls must not be graded in the place of what was checked.
        body = client.get_object(Bucket=bucket, Key=ref.key, IfMatch=etag)["Body"]
    except Exception as error:
        raise _meaning(error) from error
    try:
        data: bytes = body.read(limit + 1)
    finally:
        body.close()
    if len(data) > limit:
        raise ArtifactTooLarge(f"The artifact is larger than {limit} bytes.")
    return data


def _meaning(error: Exception) -> Exception:
    """Return what a client error of S3 says about the artifact; other errors as they are."""
    response = getattr(error, "response", None)
    code = str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
    if code in ("404", "NoSuchKey", "NotFound"):
        return ArtifactMissing("Nothing was uploaded under this key.")
    if code in ("412", "PreconditionFailed"):
        return ArtifactChanged("The artifact was replaced while it was read.")
    return error


__all__ = [
    "ArtifactChanged",
    "ArtifactMissing",
    "ArtifactRef",
    "ArtifactRefused",
    "ArtifactTooLarge",
    "ArtifactsUnavailable",
    "artifact_key",
    "artifact_ref",
    "artifact_upload_url",
    "aws_client",
    "download_artifact",
]
