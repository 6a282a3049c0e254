"""How a model is to be asked, put together from command-line options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from sandboxes.registry import add_packages

if TYPE_CHECKING:
    from collections.abc import Mapping

SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "reasoning_effort")
"""Fields that are passed on only where they were given: a model's own defaults are not ours to know."""


class ProviderConfig(BaseModel):
    """Settings of the way a provider is spoken to."""

    model_config = ConfigDict(extra="allow")

    stream_completions: bool = True


class LLMConfig(BaseModel):
    """Sampling, endpoint and key; the fields of model-library's class of that name."""

    model_config = ConfigDict(extra="forbid")

    max_tokens: int | None = Field(default=None, gt=0)
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    reasoning_effort: str | None = None
    custom_endpoint: str | None = None
    custom_api_key: SecretStr | None = None
    native: bool = True
    """The provider's own API; False: Chat Completions, which most servers speak."""
    provider_config: ProviderConfig = Field(default_factory=ProviderConfig)

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling fields that were given."""
        return {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}

    def recorded(self) -> dict[str, Any]:
        """Return what tells two configs apart, without the key and without credentials in the endpoint."""
        endpoint = without_credentials(self.custom_endpoint) if self.custom_endpoint else None
        return {**self.sampling, "custom_endpoint": endpoint, "native": self.native}

    def to_model_library(self) -> Any:
        """The same for model-library, where that is installed."""
        try:
            from model_library.base import LLMConfig as Theirs  # type: ignore[import-not-found,unused-ignore]
            from model_library.providers.openai import OpenAIConfig  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise RuntimeError(
                f"model-library is not installed: `{add_packages(['model-library'])}`, or ask the model with "
                "benchmark_runner.ChatModel"
            ) from error
        given: dict[str, Any] = {**self.sampling, "native": self.native}
        if self.custom_endpoint:
            given["custom_endpoint"] = self.custom_endpoint
        if self.custom_api_key:
            given["custom_api_key"] = self.custom_api_key
        if not self.native:
            given["provider_config"] = OpenAIConfig(
                stream_completions=self.provider_config.stream_completions
            )
        return Theirs(**given)


def build_llm_config(
    *,
    custom_endpoint: str | None = None,
    custom_api_key: str | SecretStr | None = None,
    chat_completions: bool = False,
    disable_streaming: bool = False,
    **sampling: Any,
) -> LLMConfig:
    """A config from the options of `run`; ValueError for streaming switched off where it cannot be."""
    if disable_streaming and not chat_completions:
        raise ValueError("--disable-streaming needs --chat-completions")
    values: dict[str, Any] = _given(
        {**sampling, "custom_endpoint": custom_endpoint, "custom_api_key": custom_api_key}
    )
    return LLMConfig(
        **values,
        native=not chat_completions,
        provider_config=ProviderConfig(stream_completions=not disable_streaming),
    )


def without_credentials(url: str) -> str:
    """A URL fit to be shown and kept."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def without_logins(text: str) -> str:
    """A text whose URLs name no user and no password."""
    return re.sub(r"""://[^/\s@?#"'<>]+@""", "://***@", text)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
