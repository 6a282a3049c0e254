"""Where a judge is asked, and with which key."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.config.values import secrets_path
from valkyrie.errors import UsageError, UserError
from valkyrie.grade.judges import PanelGrader, PromptGrader, check_judges
from valkyrie.grade.judges.client import JudgeEndpoint, JudgeSettings, check_address, find_endpoint
from valkyrie.grade.judges.config import Judge
from valkyrie.grade.protocol import JudgeDefaults
from valkyrie.secrets import SecretStore
from valkyrie.specs.model import GraderSpec

OPENAI, ANTHROPIC = {"OPENAI_API_KEY": "ok"}, {"ANTHROPIC_API_KEY": "ak"}
PUBLIC = {"openai": "https://api.openai.com", "anthropic": "https://api.anthropic.com"}
GATE = "http://gate.test/v1"


def found(model: str, environment: dict[str, str], **asking: str) -> JudgeEndpoint:
    return find_endpoint(Judge(model), JudgeDefaults(**asking), JudgeSettings.of(environment))


@pytest.mark.parametrize(
    ("model", "environment", "asking", "api", "place", "named", "key"),
    [
        ("gpt-x", OPENAI, {}, "chat", "https://api.openai.com", "gpt-x", "ok"),
        ("claude-x", ANTHROPIC, {}, "messages", "https://api.anthropic.com", "claude-x", "ak"),
        ("claude-x", OPENAI | ANTHROPIC, {}, "messages", "https://api.anthropic.com", "claude-x", "ak"),
        ("gpt-x", OPENAI | ANTHROPIC, {}, "chat", "https://api.openai.com", "gpt-x", "ok"),
        ("claude-x", OPENAI, {}, "chat", "https://api.openai.com", "claude-x", "ok"),
        ("mystery", ANTHROPIC, {}, "messages", "https://api.anthropic.com", "mystery", "ak"),
        ("openai/gpt-x", OPENAI | ANTHROPIC, {}, "chat", "https://api.openai.com", "gpt-x", "ok"),
        ("anthropic/m", OPENAI | ANTHROPIC, {}, "messages", "https://api.anthropic.com", "m", "ak"),
        (
            "gpt-x",
            ANTHROPIC,
            {"provider": "anthropic"},
            "messages",
            "https://api.anthropic.com",
            "gpt-x",
            "ak",
        ),
        ("m", {"OPENAI_BASE_URL": GATE}, {}, "chat", "http://gate.test", "m", None),
        ("m", {"VALKYRIE_JUDGE_URL": GATE}, {}, "chat", "http://gate.test", "m", None),
        ("a/m", OPENAI, {"url": GATE}, "chat", "http://gate.test", "a/m", None),
        ("m", {"VALKYRIE_JUDGE_API_KEY": "jk"}, {"url": GATE}, "chat", "http://gate.test", "m", "jk"),
        ("m", {}, {"url": GATE, "provider": "anthropic"}, "messages", "http://gate.test", "m", None),
        ("m", {}, {"url": "http://gate.test/anthropic"}, "messages", "http://gate.test", "m", None),
        (
            "m",
            OPENAI,
            {"url": "https://api.openai.com:8443/v1"},
            "chat",
            "https://api.openai.com:8443",
            "m",
            None,
        ),
        (
            "m",
            ANTHROPIC,
            {"url": "https://api.anthropic.com/v1"},
            "chat",
            "https://api.anthropic.com",
            "m",
            "ak",
        ),
        ("m", OPENAI, {"url": "https://api.openai.com/v1"}, "chat", "https://api.openai.com", "m", "ok"),
        (
            "gpt-x",
            OPENAI | {"VALKYRIE_JUDGE_API_KEY": "jk"},
            {},
            "chat",
            "https://api.openai.com",
            "gpt-x",
            "jk",
        ),
    ],
)
def test_what_is_asked_where(
    model: str,
    environment: dict[str, str],
    asking: dict[str, str],
    api: str,
    place: str,
    named: str,
    key: str | None,
) -> None:
    endpoint = found(model, environment, **asking)
    assert (endpoint.api, endpoint.place, endpoint.model, endpoint.key) == (api, place, named, key)


def test_a_graders_own_config_wins_over_the_evals() -> None:
    asking = JudgeDefaults(model="other", provider="openai", reasoning_effort="low", url="http://gate.test")
    endpoint = find_endpoint(Judge("mine", "anthropic", "high"), asking, JudgeSettings.of({}))
    assert (endpoint.model, endpoint.api, endpoint.reasoning_effort) == ("mine", "messages", "high")


@pytest.mark.parametrize(
    ("provider", "base", "url"),
    [
        ("openai", "http://h:1", "http://h:1/v1/chat/completions"),
        ("openai", "http://h/", "http://h/v1/chat/completions"),
        ("openai", "http://h/v1", "http://h/v1/chat/completions"),
        ("openai", "http://h/api/openai/", "http://h/api/openai/chat/completions"),
        ("openai", "http://h/v1/chat/completions", "http://h/v1/chat/completions"),
        ("openai", "http://h/v1/responses/", "http://h/v1/responses"),
        ("openai", "http://h/v1/responses?v=2", "http://h/v1/responses?v=2"),
        ("openai", "http://h/openai?v=2", "http://h/openai/chat/completions?v=2"),
        ("anthropic", "http://h", "http://h/v1/messages"),
        ("anthropic", "http://h/v1", "http://h/v1/messages"),
        ("anthropic", "http://h/proxy/anthropic", "http://h/proxy/anthropic/v1/messages"),
        ("anthropic", "http://h/v1/messages", "http://h/v1/messages"),
    ],
)
def test_addresses_as_people_write_them(provider: str, base: str, url: str) -> None:
    asking = JudgeDefaults(model="m", provider=provider, url=base)
    assert find_endpoint(Judge(), asking, JudgeSettings.of({})).url == url


@pytest.mark.parametrize(
    "base", ["gate.test/v1", "ftp://h", "http://", "http://h:99999", "http://[h", "http://user:hunter2@h/v1"]
)
def test_addresses_that_are_none(base: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_address(base)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("model", ["gpt-x", "claude-x", "mystery", "openai/gpt-x"])
def test_without_any_key_the_ways_are_told(model: str) -> None:
    with pytest.raises(UserError, match="VALKYRIE_JUDGE_URL") as caught:
        found(model, {})
    assert repr(model) in str(caught.value)
    assert caught.value.cause == "judge_refused"


def test_a_provider_or_effort_nobody_knows() -> None:
    with pytest.raises(UsageError, match="anthropic"):
        found("m", {}, provider="antropic")
    with pytest.raises(UsageError, match="xhigh"):
        found("m", OPENAI, reasoning_effort="as hard as can be")
    assert found("m", OPENAI, reasoning_effort="ultra").reasoning_effort == "ultra"


def test_the_environment_may_say_how_hard_judges_think() -> None:
    around = {**OPENAI, "EVAL_JUDGE_REASONING_EFFORT": "minimal"}
    assert found("m", around).reasoning_effort == "minimal"
    assert found("m", around, reasoning_effort="high").reasoning_effort == "high"


def test_the_key_is_in_no_text_about_it() -> None:
    endpoint = found("gpt-x", {"OPENAI_API_KEY": "sk-very-secret"})
    assert "sk-very-secret" not in f"{endpoint!r} {endpoint} {endpoint.place}"
    with pytest.raises(UserError) as caught:
        found("gpt-x", {"OPENAI_API_KEY": "sk-very\nsecret"})
    assert "very" not in str(caught.value)


def test_a_key_may_stand_in_the_dotenv_file_or_the_secret_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "VALKYRIE_JUDGE_URL", "VALKYRIE_JUDGE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".env").write_text("ANTHROPIC_API_KEY=from-file\n")
    monkeypatch.chdir(tmp_path)
    SecretStore(secrets_path()).set("OPENAI_API_KEY", "from-store")
    assert find_endpoint(Judge("claude-x"), JudgeDefaults()).key == "from-file"
    assert find_endpoint(Judge("gpt-x"), JudgeDefaults()).key == "from-store"


def test_judges_that_cannot_be_asked_are_found_before_anything_runs() -> None:
    prompt = PromptGrader(GraderSpec("prompt", {}))
    panel = PanelGrader(GraderSpec("panel", {"models": ["gpt-x", "anthropic/m"]}))
    check_judges([prompt, panel], JudgeDefaults(model="m"), JudgeSettings.of(OPENAI | ANTHROPIC))
    with pytest.raises(UsageError, match="--judge-model"):
        check_judges([panel, prompt], JudgeDefaults(), JudgeSettings.of(OPENAI | ANTHROPIC))
    with pytest.raises(UserError, match="ANTHROPIC_API_KEY"):
        check_judges([panel], JudgeDefaults(), JudgeSettings.of(OPENAI))
