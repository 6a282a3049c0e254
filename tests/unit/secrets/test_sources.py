"""Sources of secrets, the store, and looking everything up."""

from __future__ import annotations

import json
import os
import pickle
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_service.environment import parse_dotenv
from valkyrie.errors import MissingSecretError, UsageError, UserError
from valkyrie.secrets import DotenvSource, EnvironmentSource, Secrets, SecretStore, resolve
from valkyrie.testing.null import MemorySource


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=1\nB=two words\n", {"A": "1", "B": "two words"}),
        ("export A=1", {"A": "1"}),
        ("\ufeffA=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("# A=1\n\n  # B\nC=3 # note\n", {"C": "3"}),
        ("A=a#b\nB=#\n", {"A": "a#b", "B": ""}),
        ("A='$HOME `id` \\n # x'\n", {"A": "$HOME `id` \\n # x"}),
        ('A="x\\n\\"y\\" \\$z \\\\" # note\n', {"A": 'x\n"y" $z \\'}),
        ('A="one\ntwo"\nB=3', {"A": "one\ntwo", "B": "3"}),
        ("A=$(touch /tmp/owned)\nB=${A}\n", {"A": "$(touch /tmp/owned)", "B": "${A}"}),
        ("A = 1\nA=2", {"A": "2"}),
        ("A=\nB=''\n", {"A": "", "B": ""}),
        ("A=it's\n", {"A": "it's"}),
    ],
)
def test_dotenv(text: str, values: dict[str, str]) -> None:
    parsed = parse_dotenv(text)
    assert parsed.values == values
    assert parsed.bad_lines == []


def test_dotenv_skips_what_it_does_not_understand() -> None:
    parsed = parse_dotenv("A=1\nthis is no line\nB='open\n1X=2\nC=3\nD='x' y\n")
    assert parsed.values == {"A": "1", "C": "3"}
    assert parsed.bad_lines == [2, 3, 4, 6]


@given(st.text())
def test_no_dotenv_breaks_the_reader(text: str) -> None:
    parse_dotenv(text)


def test_a_dotenv_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"A=\xff")
    source = DotenvSource(tmp_path / ".env")
    assert source.get("A") is None
    with pytest.raises(MissingSecretError, match=r"note: .*\.env: cannot be read \(not UTF-8"):
        resolve({"A": "A"}, [source])
    assert DotenvSource(tmp_path / "none").get("A") is None


def test_the_store_is_closed_to_others(tmp_path: Path) -> None:
    store = SecretStore(tmp_path / "conf" / "secrets.json")
    assert store.list() == []
    store.set("b/key-1", "v1")
    store.set("A", "v2")
    assert store.list() == ["A", "b/key-1"]
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    store.remove("A")
    assert (store.get("A"), store.get("b/key-1")) == (None, "v1")
    store.path.chmod(0o640)
    with pytest.raises(UserError, match=f"chmod 600 {store.path}"):
        store.get("A")


def test_the_store_refuses_what_it_cannot_keep_or_trust(tmp_path: Path) -> None:
    store = SecretStore(tmp_path / "conf" / "secrets.json")
    for name, value in (("", "v"), ("a b", "v"), ("../x", "v"), ("A", ""), ("A", "v\0w")):
        with pytest.raises(UsageError):
            store.set(name, value)
    store.set("A", "hush-hush")
    with pytest.raises(UsageError, match=r"Stored: A\."):
        store.remove("B")
    store.path.write_text('{"A": "hush-hush", broken')
    with pytest.raises(UserError, match="damaged") as caught:
        store.get("A")
    assert "hush" not in str(caught.value)
    with pytest.raises(UserError):
        store.set("B", "v")
    assert "broken" in store.path.read_text(), "a damaged store is not written over"
    store.path.unlink()
    store.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="plain file"):
        store.get("A")


def test_writers_at_once_keep_all(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    threads = [threading.Thread(target=SecretStore(path).set, args=(f"S{n}", "v")) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads(path.read_text())) == 12
    assert sorted(os.listdir(tmp_path)) == [".secrets.json.lock", "secrets.json"]


def test_order_and_notices() -> None:
    environment = EnvironmentSource({"openai": "from-name", "KEY": "from-variable", "EMPTY": ""})
    store = MemorySource({"openai": "stored", "other": "stored", "EMPTY": "stored", "KEY": "never"})
    found = resolve({"KEY": "openai"}, [environment, store])
    assert dict(found.secrets) == {"KEY": "from-name"}
    assert found.notices == ("KEY: taken from the environment; memory has another value for openai.",)
    assert dict(resolve({"KEY": "other"}, [environment, store]).secrets) == {"KEY": "stored"}
    assert dict(resolve({"KEY": "nowhere"}, [environment, store]).secrets) == {"KEY": "from-variable"}
    quiet = resolve({"X": "other", "EMPTY": "EMPTY"}, [environment, store])
    assert dict(quiet.secrets) == {"X": "stored", "EMPTY": "stored"}
    assert quiet.notices == ()


def test_all_missing_ones_are_named_with_the_ways_out() -> None:
    with pytest.raises(MissingSecretError) as caught:
        resolve({"A": "A", "B": "team/b-key", "C": "C"}, [EnvironmentSource({"C": "here"})])
    message = str(caught.value)
    assert "2 secrets without a value" in message
    assert "`export A=…`, or A=… in .env, or `valk secret set A`" in message
    assert "team/b-key (fills B): `export B=…`" in message
    assert "here" not in message


def test_values_do_not_show() -> None:
    secrets = Secrets({"A": "hush-hush"})
    assert secrets["A"] == "hush-hush"
    assert "hush" not in f"{secrets} {secrets!r} {resolve({'A': 'A'}, [MemorySource({'A': 'hush-hush'})])!r}"
    with pytest.raises(TypeError):
        pickle.dumps(secrets)


def test_a_missing_secret_names_the_service_it_may_be_kept_in() -> None:
    class Elsewhere(MemorySource):
        place = "AWS Secrets Manager"
        remote = True

    with pytest.raises(MissingSecretError) as raised:
        resolve({"API_KEY": "team-key"}, [MemorySource({}), Elsewhere({})])
    assert str(raised.value).endswith("or `valk secret set team-key`, or team-key in AWS Secrets Manager")
