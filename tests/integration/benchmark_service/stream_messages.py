"""Paths of a service's streams, and what is sent over them."""

from __future__ import annotations

from typing import Any

from sandboxes.types import DaytonaProviderConfig

SETUP = "/ws/setup-task"
EVALUATE = "/ws/evaluate-instance"
RESUME = "/ws/evaluate-response"
RESULT = {"type": "result", "data": {"resolved": True}}
DAYTONA = DaytonaProviderConfig(DAYTONA_API_KEY="dtn-secret", DAYTONA_API_URL="url", DAYTONA_TARGET="us")


def message(text: str) -> dict[str, str]:
    return {"type": "message", "data": text}


def error(text: str, **extra: Any) -> dict[str, Any]:
    return {"type": "error", "data": text, **extra}
