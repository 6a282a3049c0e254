"""Clients of AWS services; boto3 is loaded when the first one is made."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import import_module
from typing import Any

from sandboxes.installation import add_extra

__all__ = ["aws_client"]


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
