"""No form of a key reaches what a runner writes or says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark_runner.console import redactor
from benchmark_runner.llm import LLMConfig
from benchmark_runner.models.client import Exchange
from benchmark_runner.models.endpoint import find_endpoint, quotable
from benchmark_runner.sandbox.setup import redacting
from tests.secret_forms import FORMS, SECRET, shows_secret

every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def check_hidden(text: str) -> None:
    assert "***" in text and not shows_secret(text)


@every_form
def test_keys_of_the_environment_and_the_options(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    check_hidden(redactor(LLMConfig(custom_api_key=SECRET))(f"refused <{form}>"))
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    check_hidden(redactor()(f"refused <{form}>"))


@every_form
def test_what_an_agent_is_given(form: str) -> None:
    redact = redacting({"QUIZ": SECRET, "CUSTOM_ENDPOINT": "http://model.example"})
    check_hidden(redact(f"QUIZ=<{form}>"))
    assert redact("http://model.example and http://u:pw-1@m") == "http://model.example and http://***@m"


@every_form
def test_the_key_of_a_model(tmp_path: Path, form: str) -> None:
    endpoint = find_endpoint("llama", LLMConfig(custom_endpoint="http://m.test/v1", custom_api_key=SECRET))
    Exchange({"note": form}, response={"said": f"<{form}>"}).append_to(tmp_path, endpoint)
    kept = (tmp_path / "chat.jsonl").read_text()
    assert "***" in json.loads(kept)["response"]["said"]
    check_hidden(kept)
    check_hidden(quotable(endpoint, f"<{form}>"))


def test_a_model_without_a_key_is_quoted_whole() -> None:
    endpoint = find_endpoint("llama", LLMConfig(custom_endpoint="http://m.test/v1"), {})
    assert quotable(endpoint, "no\nmore") == "no more"
