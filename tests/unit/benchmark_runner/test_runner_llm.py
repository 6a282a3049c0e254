"""How a model is to be asked."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from benchmark_runner import LLMConfig, build_llm_config


def test_nothing_given_is_nothing_set() -> None:
    config = build_llm_config(
        max_tokens=None, temperature=None, top_p=None, top_k=None, reasoning_effort=None
    )
    assert config.sampling == {}
    assert (config.native, config.provider_config.stream_completions) == (True, True)
    assert config.custom_endpoint is None and config.custom_api_key is None


def test_zero_is_given() -> None:
    config = build_llm_config(temperature=0.0, top_p=0.0, top_k=0)
    assert config.sampling == {"temperature": 0.0, "top_p": 0.0, "top_k": 0}


def test_everything_given() -> None:
    config = build_llm_config(
        max_tokens=10,
        temperature=1.0,
        top_p=0.5,
        top_k=3,
        reasoning_effort="high",
        custom_endpoint="http://m.test/v1",
        custom_api_key="sk-1",
        chat_completions=True,
        disable_streaming=True,
    )
    assert config.sampling == {
        "max_tokens": 10, "temperature": 1.0, "top_p": 0.5, "top_k": 3, "reasoning_effort": "high",
    }  # fmt: skip
    assert (config.native, config.provider_config.stream_completions) == (False, False)
    assert isinstance(config.custom_api_key, SecretStr)
    assert config.custom_api_key.get_secret_value() == "sk-1"


def test_streaming_is_switched_off_for_chat_completions_only() -> None:
    with pytest.raises(ValueError, match="--disable-streaming needs --chat-completions"):
        build_llm_config(disable_streaming=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"temperature": float("inf")},
        {"temperature": float("nan")},
        {"top_p": 1.1},
        {"top_k": -1},
        {"colour": "red"},
    ],
)
def test_what_no_model_takes(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        build_llm_config(**wrong)


def test_what_is_kept_of_it_holds_no_secret() -> None:
    config = build_llm_config(
        temperature=0.5, custom_endpoint="http://user:pw@m.test/v1?key=s3cret#x", custom_api_key="sk-very"
    )
    assert config.recorded() == {
        "temperature": 0.5, "custom_endpoint": "http://m.test/v1", "native": True,
    }  # fmt: skip
    assert "sk-very" not in repr(config) + str(config) + config.model_dump_json()


def test_without_model_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_library", None)
    with pytest.raises(RuntimeError, match="model-library is not installed"):
        LLMConfig().to_model_library()


def test_the_same_for_model_library(monkeypatch: pytest.MonkeyPatch) -> None:
    base, openai = ModuleType("model_library.base"), ModuleType("model_library.providers.openai")
    base.LLMConfig = SimpleNamespace  # type: ignore[attr-defined]
    openai.OpenAIConfig = SimpleNamespace  # type: ignore[attr-defined]
    for module in (ModuleType("model_library"), base, ModuleType("model_library.providers"), openai):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert vars(build_llm_config(temperature=0.5).to_model_library()) == {"temperature": 0.5, "native": True}
    config = build_llm_config(custom_endpoint="http://m", custom_api_key="k", chat_completions=True)
    theirs = config.to_model_library()
    assert (theirs.native, theirs.custom_endpoint) == (False, "http://m")
    assert theirs.custom_api_key.get_secret_value() == "k"
    assert theirs.provider_config.stream_completions is True
