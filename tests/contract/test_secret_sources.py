"""Secrets of the environment, `.env`, the secret store and AWS Secrets Manager keep the same contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.aws_server import Ministack
from valkyrie.aws.services import SecretsManagerSource
from valkyrie.errors import MissingSecretError
from valkyrie.secrets import DotenvSource, EnvironmentSource, SecretSource, SecretStore, resolve
from valkyrie.testing.null import MemorySource, check_source

pytest_plugins = ["tests.aws_server"]

Make = Callable[[Mapping[str, str]], SecretSource]


@pytest.fixture(params=["memory", "environment", "dotenv", "store", "secrets manager"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """How a source that holds these values is made."""

    def dotenv(values: Mapping[str, str]) -> SecretSource:
        file = tmp_path / f"{len(values)}.env"
        escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in values.items()}
        file.write_text("".join(f'{name}="{value}"\n' for name, value in escaped.items()))
        return DotenvSource(file)

    def store(values: Mapping[str, str]) -> SecretSource:
        made = SecretStore(tmp_path / str(len(values)) / "secrets.json")
        for name, value in values.items():
            made.set(name, value)
        return made

    def secrets_manager(values: Mapping[str, str]) -> SecretSource:
        server: Ministack = request.getfixturevalue("ministack")
        server.forget_secrets()
        for name, value in values.items():
            server.secret(name, value)
        return SecretsManagerSource(server.session())

    makes: dict[str, Make] = {
        "memory": MemorySource,
        "environment": EnvironmentSource,
        "dotenv": dotenv,
        "store": store,
        "secrets manager": secrets_manager,
    }
    return makes[request.param]


def test_every_source_keeps_the_contract(make: Make) -> None:
    check_source(make)


def test_a_secret_of_several_values(make: Make) -> None:
    """`name#key` is one of them, and so is `name` for a variable that is called like a key."""
    source = make({"openai": '{"dev": "key-1", "OPENAI_API_KEY": "key-2", "port": 5432, "none": null}'})
    wanted = {"A": "openai#dev", "OPENAI_API_KEY": "openai", "PORT": "openai#port"}
    found = resolve(wanted, [source])
    assert dict(found.secrets) == {"A": "key-1", "OPENAI_API_KEY": "key-2", "PORT": "5432"}
    assert found.notices == ()
    for name in ("openai#prod", "openai#none", "openai#", "openai##dev", "other#dev"):
        with pytest.raises(MissingSecretError, match=name) as caught:
            resolve({"A": name}, [source])
        assert "key-1" not in str(caught.value) and "key-2" not in str(caught.value)


def test_a_whole_object_is_given_with_a_notice(make: Make) -> None:
    text = '{"type": "service_account", "key": "hush"}'
    source = make({"google": text})
    found = resolve({"GOOGLE_JSON": "google"}, [source])
    assert dict(found.secrets) == {"GOOGLE_JSON": text}
    assert bool(found.notices) == (not source.by_variable)
    assert "hush" not in str(found.notices)
    assert resolve({"google": "google"}, [source]).notices == ()


def test_texts_that_only_look_like_objects(make: Make) -> None:
    values = {"A": "{not json", "B": '["a"]', "C": "{}", "D": '{"D": ""}'}
    source = make(values)
    found = resolve({f"X_{name}": name for name in values}, [source])
    assert dict(found.secrets) == {f"X_{name}": value for name, value in values.items()}
