"""Where a model is asked, from its name, the config and the environment."""

from __future__ import annotations

import pytest

from benchmark_runner.chat import ChatConfigError, find_endpoint
from benchmark_runner.llm import LLMConfig

KEYS = {"OPENAI_API_KEY": "sk-openai", "ANTHROPIC_API_KEY": "sk-anthropic"}


@pytest.mark.parametrize(
    ("model", "native", "url", "name", "key"),
    [
        ("openai/gpt-x", True, "https://api.openai.com/v1/responses", "gpt-x", "sk-openai"),
        ("openai/gpt-x", False, "https://api.openai.com/v1/chat/completions", "gpt-x", "sk-openai"),
        ("gpt-x", True, "https://api.openai.com/v1/responses", "gpt-x", "sk-openai"),
        ("o3", False, "https://api.openai.com/v1/chat/completions", "o3", "sk-openai"),
        ("anthropic/claude-y", True, "https://api.anthropic.com/v1/messages", "claude-y", "sk-anthropic"),
        ("claude-y", True, "https://api.anthropic.com/v1/messages", "claude-y", "sk-anthropic"),
        (
            "anthropic/claude-y",
            False,
            "https://api.anthropic.com/v1/chat/completions",
            "claude-y",
            "sk-anthropic",
        ),
        ("openai/openai/gpt-x", True, "https://api.openai.com/v1/responses", "openai/gpt-x", "sk-openai"),
    ],
)
def test_a_vendors_model_is_asked_at_the_vendor(
    model: str, native: bool, url: str, name: str, key: str
) -> None:
    found = find_endpoint(model, LLMConfig(native=native), KEYS)
    assert (found.url, found.model, found.key) == (url, name, key)


@pytest.mark.parametrize(
    ("model", "native", "endpoint", "url"),
    [
        ("llama", True, "http://h:1", "http://h:1/v1/chat/completions"),
        ("llama", True, "http://h:1/v1/", "http://h:1/v1/chat/completions"),
        ("gpt-oss", True, "http://h:1/v1", "http://h:1/v1/chat/completions"),
        ("meta/llama", True, "http://h:1/api", "http://h:1/api/chat/completions"),
        ("openai/gpt-x", True, "http://h:1/v1", "http://h:1/v1/responses"),
        ("openai/gpt-x", False, "http://h:1/v1", "http://h:1/v1/chat/completions"),
        ("anthropic/claude-y", True, "http://h:1", "http://h:1/v1/messages"),
        ("anthropic/claude-y", True, "http://h:1/anthropic", "http://h:1/anthropic/v1/messages"),
        ("llama", True, "http://h:1/v1/messages", "http://h:1/v1/messages"),
        ("llama", True, "http://h:1/v1?version=2", "http://h:1/v1/chat/completions?version=2"),
    ],
)
def test_a_custom_endpoint_is_asked_without_the_vendors_key(
    model: str, native: bool, endpoint: str, url: str
) -> None:
    found = find_endpoint(model, LLMConfig(native=native, custom_endpoint=endpoint), KEYS)
    assert (found.url, found.key) == (url, None)


def test_the_custom_key_is_used_everywhere_and_shown_nowhere() -> None:
    custom = LLMConfig(custom_endpoint="http://h:1/v1?token=abc", custom_api_key="sk-mine")
    found = find_endpoint("llama", custom, KEYS)
    assert found.key == "sk-mine"
    assert "sk-mine" not in repr(found)
    assert found.place == "http://h:1/v1/chat/completions"
    assert find_endpoint("openai/gpt-x", LLMConfig(custom_api_key="sk-mine"), KEYS).key == "sk-mine"


def test_the_vendors_address_may_be_elsewhere() -> None:
    moved = {"OPENAI_BASE_URL": "http://proxy:9/v1", "OPENAI_API_KEY": "sk-proxy"}
    found = find_endpoint("openai/gpt-x", LLMConfig(), moved)
    assert (found.url, found.key) == ("http://proxy:9/v1/responses", "sk-proxy")
    bare = find_endpoint("llama", LLMConfig(), moved)
    assert (bare.url, bare.key) == ("http://proxy:9/v1/chat/completions", "sk-proxy")
    same = find_endpoint("llama", LLMConfig(custom_endpoint="http://proxy:9/other"), moved)
    assert same.key == "sk-proxy"
    keyless = find_endpoint("anthropic/claude-y", LLMConfig(), {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"})
    assert (keyless.url, keyless.key) == ("http://127.0.0.1:1/v1/messages", None)


@pytest.mark.parametrize(
    ("endpoint", "key"),
    [
        ("https://api.openai.com:443/v1", "sk-openai"),
        ("https://api.anthropic.com/v1/messages", "sk-anthropic"),
        ("https://api.openai.com:8443/v1", None),
        ("http://api.openai.com/v1", None),
        ("https://api.openai.com.elsewhere.test/v1", None),
    ],
)
def test_a_vendors_key_goes_to_the_vendors_own_address_alone(endpoint: str, key: str | None) -> None:
    assert find_endpoint("llama", LLMConfig(custom_endpoint=endpoint), KEYS).key == key


@pytest.mark.parametrize(
    ("model", "config", "env", "words"),
    [
        ("openai/gpt-x", {}, {}, "OPENAI_API_KEY"),
        ("claude-y", {}, {"OPENAI_API_KEY": "sk"}, "ANTHROPIC_API_KEY"),
        ("llama", {}, KEYS, "--custom-endpoint"),
        ("openai/", {}, KEYS, "no model's name"),
        ("llama", {"custom_endpoint": "h:1/v1"}, KEYS, "http://"),
        ("llama", {"custom_endpoint": "http://h:99999/v1"}, KEYS, "is none"),
        ("llama", {"custom_endpoint": "http://[h/v1"}, KEYS, "is none"),
        ("llama", {"custom_endpoint": "http://me:sk-hidden@h/v1"}, KEYS, "--custom-api-key"),
        ("openai/gpt-x", {"custom_api_key": "sk-\nhidden"}, KEYS, "characters"),
    ],
)
def test_what_is_missing_is_named_and_no_key_is(
    model: str, config: dict[str, str], env: dict[str, str], words: str
) -> None:
    with pytest.raises(ChatConfigError, match=words) as caught:
        find_endpoint(model, LLMConfig.model_validate(config), env)
    assert "hidden" not in str(caught.value)
