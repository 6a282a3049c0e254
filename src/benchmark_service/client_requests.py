"""What a client sends to open a stream: the request, and where its sandbox is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmark_service.client_http import checked_headers
from benchmark_service.schemas import EvaluateResponseRequest, SetupTaskRequest
from sandboxes.configs import DaytonaProviderConfig, SandboxProviderConfig
from sandboxes.errors import MissingSandboxConfigError

_PROVIDER_HEADERS = {
    "DAYTONA_API_KEY": ("x-api-key", "daytona_api_key"),
    "DAYTONA_API_URL": ("x-api-url", "daytona_api_url"),
    "DAYTONA_TARGET": ("x-target", "daytona_target"),
}


def instance_body(
    task_id: str, instance_id: str, provider: SandboxProviderConfig | None, dataset: str | None
) -> dict[str, Any]:
    """The request about a sandbox. The provider is in it only when the three headers cannot say it all."""
    in_headers = isinstance(provider, DaytonaProviderConfig) and provider.DAYTONA_ORGANIZATION_ID is None
    request = SetupTaskRequest(
        task_id=task_id,
        instance_id=instance_id,
        sandbox_provider=None if in_headers else provider,
        dataset=dataset,
    )
    return request.model_dump(mode="json", exclude_none=True)


def resume_body(
    task_id: str, state: dict[str, Any], provider: SandboxProviderConfig | None, dataset: str | None
) -> dict[str, Any]:
    """The request to go on from a saved state, which is the benchmark's own and travels untouched."""
    request = EvaluateResponseRequest(
        task_id=task_id, eval_resume_state={}, sandbox_provider=provider, dataset=dataset
    )
    return {**request.model_dump(mode="json", exclude_none=True), "eval_resume_state": state}


def stream_headers(own: Mapping[str, str], provider: SandboxProviderConfig | None) -> dict[str, str]:
    """A client's headers, and its sandbox provider as the three a service reads."""
    if not isinstance(provider, DaytonaProviderConfig):
        return dict(own)
    settings = provider.headers()
    others = {name: value for name, value in own.items() if name.lower() not in settings}
    return checked_headers({**others, **settings})


def provider_config_in(headers: Mapping[str, str]) -> DaytonaProviderConfig:
    """The sandbox provider that headers name."""
    lower = {name.lower(): value for name, value in headers.items()}
    values = {
        field: next((lower[name] for name in names if lower.get(name)), None)
        for field, names in _PROVIDER_HEADERS.items()
    }
    missing = [_PROVIDER_HEADERS[field][0] for field, value in values.items() if value is None]
    if missing:
        raise MissingSandboxConfigError(f"Missing required headers: {', '.join(missing)}")
    return DaytonaProviderConfig.model_validate(values)
