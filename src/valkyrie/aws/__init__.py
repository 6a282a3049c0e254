"""AWS, where people want it: artifacts, secrets, logs and functions. The SDKs load with the first call.

Names load on first use, so that who uses no AWS loads none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "valkyrie.aws.s3": ["S3Artifacts"],
        "valkyrie.aws.services": [
            *("CloudWatchLogs", "LambdaFailedError", "SecretsManagerSource"),
            *("check_function", "invoke_function", "lambda_payload"),
        ],
        "valkyrie.aws.session": ["AwsAccess", "AwsKeys", "AwsSession"],
    },
)

if TYPE_CHECKING:
    from valkyrie.aws.s3 import *  # noqa: F403
    from valkyrie.aws.services import *  # noqa: F403
    from valkyrie.aws.session import *  # noqa: F403
