"""The client of one bucket, and what objects carry besides their bytes."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from valkyrie.aws.sdk import sdk
from valkyrie.aws.session import AwsSession
from valkyrie.errors import UserError
from valkyrie.nouns import Json

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
