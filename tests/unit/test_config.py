"""The config file."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from valkyrie.config import KEYS, effective, find_key, load, remove, set_value
from valkyrie.errors import UsageError, UserError


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for key in KEYS:
        if key.env:
            monkeypatch.delenv(key.env, raising=False)
    file = tmp_path / "config" / "valkyrie.yaml"
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(file))
    return file


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_an_absent_file_says_nothing(path: Path) -> None:
    assert load() == {}
    assert effective("default_concurrency").value == 5
    assert effective("webhook").source == "unset"
    assert not path.parent.exists()


def test_set_get_remove_whatever_the_case(path: Path) -> None:
    set_value("s3_bucket", "mine")
    set_value("Default_Concurrency", "20")
    assert load() == {"S3_BUCKET": "mine", "default_concurrency": 20}
    assert remove("S3_bucket") is True and remove("S3_bucket") is False
    assert load() == {"default_concurrency": 20}


def test_the_file_is_private_and_nothing_else_is_left(path: Path) -> None:
    write(path, "webhook: a\n")
    path.chmod(0o644)
    set_value("webhook", "b")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["valkyrie.yaml"]


def test_comments_and_order_stay(path: Path) -> None:
    write(
        path, "# mine\nwebhook: a  # why\n\n# region\nAWS_DEFAULT_REGION: eu\nLOG_GROUP: >-\n  two\n  lines"
    )
    set_value("aws_default_region", "us")
    assert path.read_text().startswith("# mine\nwebhook: a  # why\n\n# region\nAWS_DEFAULT_REGION: us\n")
    set_value("log_group", "one")
    remove("webhook")
    assert path.read_text() == "# mine\n\n# region\nAWS_DEFAULT_REGION: us\nLOG_GROUP: one\n"


@pytest.mark.parametrize("value", ["yes", "007", "a: b", "#x", "- x", "'", "ünïcode", "null", "~", "1e3"])
def test_text_comes_back_as_it_was_set(path: Path, value: str) -> None:
    set_value("webhook", value)
    assert load()["webhook"] == value


def test_precedence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_value("default_provider", "process")
    assert effective("default_provider").source == "file"
    monkeypatch.setenv("VALKYRIE_PROVIDER", "null")
    found = effective("default_provider")
    assert (found.value, found.source) == ("null", "environment")
    monkeypatch.setenv("VALKYRIE_CONCURRENCY", "many")
    with pytest.raises(UserError, match=r"VALKYRIE_CONCURRENCY: default_concurrency wants a whole number"):
        effective("default_concurrency")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("default_concurency", "1", "Did you mean 'default_concurrency'?"),
        ("zzz", "1", "There are: default_provider"),
        ("default_concurrency", "0", "a whole number of at least 1"),
        ("default_concurrency", "2.5", "a whole number"),
        ("cpu_overcommit", "nan", "a number of at least 0.1"),
        ("tracker_url", "ftp://x", "an http"),
        ("webhook", " ", "text"),
        ("webhook", "a\nb: c", "text"),
    ],
)
def test_bad_words_change_nothing(path: Path, name: str, value: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        set_value(name, value)
    assert caught.value.exit_code == 2
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("webhok: a\n", r"yaml:1: Unknown config key 'webhok'. Did you mean 'webhook'"),
        ("webhook: a\nWEBHOOK: b\n", r"yaml:2: key 'webhook' is given twice"),
        ("webhook: a\nwebhook: b\n", r"yaml:2: key 'webhook' is given twice"),
        ("default_concurrency: many\n", "wants a whole number of at least 1, not 'many'"),
        ("default_concurrency: true\n", "wants a whole number of at least 1, not True"),
        ("webhook: [a]\n", r"wants text, not \['a'\]"),
        ("- a\n", "must be `key: value` lines"),
        ("webhook: 'a\n", r"yaml:2: "),
        ("webhook: !!python/object/apply:os.system ['true']\n", "yaml:1: "),
    ],
)
def test_a_wrong_file_names_line_and_key_and_is_left_alone(path: Path, text: str, says: str) -> None:
    write(path, text)
    with pytest.raises(UserError, match=says):
        load()
    with pytest.raises(UserError):
        set_value("LOG_GROUP", "x")
    assert path.read_text() == text


def test_unreadable_files_are_named(path: Path) -> None:
    write(path, "")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"valkyrie\.yaml: is not UTF-8"):
        load()
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=r"valkyrie\.yaml: Is a directory"):
        load()


def test_a_link_is_written_through(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(tmp_path / "dotfiles.yaml")
    set_value("webhook", "a")
    assert path.is_symlink() and (tmp_path / "dotfiles.yaml").read_text() == "webhook: a\n"


def test_writers_do_not_lose_each_others_keys(path: Path) -> None:
    names = [key.name for key in KEYS if key.kind is str and key.form == "text" and not key.url]
    threads = [threading.Thread(target=set_value, args=(name, "x")) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert load() == dict.fromkeys(names, "x")


def test_every_key_is_described() -> None:
    assert all(key.description.endswith(".") and find_key(key.name.upper()) is key for key in KEYS)
