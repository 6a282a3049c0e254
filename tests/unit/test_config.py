"""The config file."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from valkyrie.config.values import (
    AWS_KEYS,
    KEYS,
    MAPS,
    change,
    effective,
    find_key,
    load,
    mapping,
    masked,
    notices,
    registry,
    remove,
    remove_entry,
    set_entry,
    set_value,
)
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
        path,
        "# mine\nwebhook: a  # why\n\n# region\nAWS_DEFAULT_REGION: eu-west-1\n"
        "webhook_key: >-\n  two\n  lines",
    )
    set_value("aws_default_region", "us-east-2")
    assert path.read_text().startswith(
        "# mine\nwebhook: a  # why\n\n# region\nAWS_DEFAULT_REGION: us-east-2\n"
    )
    set_value("Webhook_Key", "one")
    remove("webhook")
    assert path.read_text() == "# mine\n\n# region\nAWS_DEFAULT_REGION: us-east-2\nwebhook_key: one\n"


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
        ("mode", "remote", "local, self-hosted or hosted"),
        ("S3_BUCKET", "s3://mine", "the name of a bucket, without s3://"),
        ("AWS_DEFAULT_REGION", "EU", "a region such as"),
        ("LOG_GROUP", "two words", "letters, digits"),
        ("allow_local_webhooks", "perhaps", "true or false"),
        ("tracker_url", "https://me:pw@host", "credentials"),
        ("DAYTONA_SECRET_NAME", "x", "valk config provider set daytona"),
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
    with pytest.raises(UserError, match=r"valkyrie\.yaml: it is a folder, not a file"):
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


SERVICES, AUTH = "custom_benchmark_services", "benchmark_auth"
FILE = """\
# mine
custom_benchmark_services:
  # the one at home
  a: http://x:1/   # tail
  b:
    url: https://y
    grading: text

# about the webhook
webhook: s  # why
benchmark_auth: {a: tok}
"""


def test_maps_are_read_checked_and_apart_from_keys(path: Path) -> None:
    write(path, FILE)
    assert mapping(SERVICES) == {"a": "http://x:1", "b": {"url": "https://y", "grading": "text"}}
    assert mapping(AUTH) == {"a": "tok"} and mapping("sandbox_providers") == {}
    assert load() == {"webhook": "s"}
    write(path, "custom_benchmark_services:\nbenchmark_auth: {}\nsandbox_providers: ~\n")
    assert all(mapping(entries.name) == {} for entries in MAPS)


def test_an_entry_is_changed_and_all_else_stays(path: Path) -> None:
    write(path, FILE)
    set_entry(SERVICES, "c", {"url": "http://z/", "grading": "sandbox"})
    set_entry(SERVICES, "b", "http://b")
    assert path.read_text() == FILE.replace(
        "  b:\n    url: https://y\n    grading: text\n",
        "  b: http://b\n  c:\n    url: http://z\n    grading: sandbox\n",
    )
    assert remove_entry(SERVICES, "c") is True and remove_entry(SERVICES, "c") is False
    set_entry(SERVICES, "b", {"url": "https://y", "grading": "text"})
    assert path.read_text() == FILE
    set_entry(AUTH, "n", "123")
    assert path.read_text() == FILE.replace("{a: tok}\n", "\n  a: tok\n  n: '123'\n").replace(": \n", ":\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_last_entry_takes_its_map_along(path: Path) -> None:
    set_entry("sandbox_providers", "daytona", None)
    set_value("webhook", "s")
    assert path.read_text() == "sandbox_providers:\n  daytona: null\nwebhook: s\n"
    assert mapping("sandbox_providers") == {"daytona": None}
    remove_entry("sandbox_providers", "daytona")
    assert path.read_text() == "webhook: s\n"


@pytest.mark.parametrize("name", ["007", "null", "yes", "1e3", "a.b-c_d", "x" * 128])
@pytest.mark.parametrize(
    "value", ["yes", "007", "a: b", "#x", "- x", "'", "null", "Bearer a b", "x " * 2000 + "x"]
)
def test_entries_come_back_as_they_were_set(path: Path, name: str, value: str) -> None:
    set_entry(AUTH, "other", "one")
    set_entry(AUTH, name, value)
    assert mapping(AUTH) == {"other": "one", name: value}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "custom_benchmark_service:\n  a: http://x\n",
            r"yaml:1: Unknown .* Did you mean 'custom_benchmark_services'",
        ),
        ("custom_benchmark_services:\n  a: http://x\n  a: http://y\n", r"yaml:3: .*'a' is given twice"),
        (
            "custom_benchmark_services:\n  a: http://x\n  b: ftp://y\n",
            r"yaml:3: custom_benchmark_services: b: an http",
        ),
        ("custom_benchmark_services:\n  a: {url: 'http://x', grade: text}\n", r"yaml:2: .* a: unknown grade"),
        (
            "custom_benchmark_services:\n  a: {url: 'http://x', grading: no}\n",
            r"yaml:2: .* a: grading wants text",
        ),
        ("custom_benchmark_services:\n  a: {grading: text}\n", r"yaml:2: .* a: an http"),
        ("custom_benchmark_services:\n  a b: http://x\n", r"yaml:2: .*'a b' is not a name"),
        ("custom_benchmark_services:\n  - http://x\n", r"yaml:2: custom_benchmark_services wants a line"),
        (
            "webhook: s\ncustom_benchmark_services: http://x\n",
            r"yaml:2: custom_benchmark_services wants a line",
        ),
        ("benchmark_auth:\n  a: 12345\n", r"yaml:2: benchmark_auth: a: the credential must be text"),
        ("benchmark_auth:\n  a:\n", r"yaml:2: benchmark_auth: a: the credential must be text"),
        ("benchmark_auth:\n  a: !!python/name:os.system\n", r"yaml:2: not valid YAML"),
        ("sandbox_providers:\n  daytona: [a]\n", r"yaml:2: sandbox_providers: daytona: the name of a secret"),
    ],
)
def test_a_wrong_map_names_its_line_and_is_left_alone(path: Path, text: str, says: str) -> None:
    write(path, text)
    for read in (load, lambda: mapping(SERVICES), lambda: set_entry(AUTH, "x", "y")):
        with pytest.raises(UserError, match=says) as caught:
            read()
        assert "12345" not in str(caught.value)
    assert path.read_text() == text


def test_what_only_a_person_can_edit_is_left_alone(path: Path) -> None:
    text = "custom_benchmark_services:\n  a: &x http://x\n  b: *x\nwebhook: s\n"
    write(path, text)
    for name in ("a", "b"):
        with pytest.raises(UserError, match="only a person can edit"):
            set_entry(SERVICES, name, "http://y")
    assert path.read_text() == text and mapping(SERVICES)["b"] == "http://x"


def test_keys_and_maps_are_not_mistaken_for_each_other(path: Path) -> None:
    with pytest.raises(UsageError, match="valk config auth list"):
        set_value(AUTH, "x")
    with pytest.raises(UsageError, match="valk config service set"):
        remove(SERVICES)
    with pytest.raises(UsageError, match="is one value"):
        set_entry("webhook", "a", "b")
    with pytest.raises(UsageError, match="a: a credential is printable ASCII"):
        set_entry(AUTH, "a", "x\ny")
    assert not path.exists()


def test_writers_do_not_lose_each_others_entries(path: Path) -> None:
    names = [f"name-{number}" for number in range(12)]
    threads = [threading.Thread(target=set_entry, args=(AUTH, name, "x")) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mapping(AUTH) == dict.fromkeys(names, "x")


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("service_base_url", "bench.example.com", "bench.example.com"),
        ("service_base_url", "https://{name}.example.com/", "https://{name}.example.com"),
        ("service_base_url", "http://localhost:9000/{name}", "http://localhost:9000/{name}"),
        ("sandbox_public_url", "https://tunnel.example/", "https://tunnel.example"),
        ("sandbox_port", "65535", 65535),
    ],
)
def test_where_services_are(path: Path, name: str, given: str, kept: str | int) -> None:
    assert set_value(name, given).value == kept == effective(name).value


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("service_base_url", "ftp://x", "an http"),
        ("service_base_url", "{name}.{name}.x", "stands once"),
        ("service_base_url", "a b", "an http"),
        ("sandbox_public_url", "https://me:pw@x", "credentials"),
        ("sandbox_port", "65536", "from 0 to 65535"),
        ("sandbox_port", "-1", "from 0 to 65535"),
    ],
)
def test_wrong_places_change_nothing(path: Path, name: str, given: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        set_value(name, given)
    assert not path.exists()


def test_a_registry_is_a_file_of_services(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry() == {}
    file = tmp_path / "registry.json"
    file.write_text('{"services": {"a": "http://x/", "b": {"url": "http://y", "grading": "text"}}}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VALKYRIE_SERVICE_REGISTRY", "registry.json")
    assert registry() == {"a": "http://x", "b": {"url": "http://y", "grading": "text"}}
    for text, says in {"- a": "`name: url` lines", "a: [": "registry.json: ", "a: 1": "a: an http"}.items():
        file.write_text(text)
        with pytest.raises(UserError, match=says):
            registry()


@pytest.mark.parametrize(
    ("given", "kept"),
    [("true", True), ("ON", True), ("1", True), ("false", False), ("no", False), ("0", False)],
)
def test_switches(path: Path, given: str, kept: bool) -> None:
    set_value("allow_local_webhooks", given)
    assert effective("allow_local_webhooks").value is kept
    assert path.read_text() == f"allow_local_webhooks: {str(kept).lower()}\n"


@pytest.mark.parametrize("name", ["api_key", *AWS_KEYS])
def test_secret_keys_are_masked_and_in_no_message(path: Path, name: str) -> None:
    found = set_value(name, "hunter22-hunter22")
    assert found.value == "hunter22-hunter22" and found.shown == "hunt***"
    for wrong in ("hunter22\x07", "hünter22", "hunter22" * 2000):
        with pytest.raises(UsageError) as caught:
            set_value(name, wrong)
        assert "nter22" not in str(caught.value)
    write(path, f"{name}: 1234567890\n")
    with pytest.raises(UserError, match="wants") as refused:
        load()
    assert "1234567890" not in str(refused.value)


def test_several_keys_change_together_or_not_at_all(path: Path) -> None:
    write(path, "# mine\nwebhook: a\ntracker_url: http://old\n")
    change({"mode": "hosted", "tracker_url": "http://new/", "api_key": "k", "webhook": None})
    assert path.read_text() == "# mine\ntracker_url: http://new\nmode: hosted\napi_key: k\n"
    with pytest.raises(UsageError, match="tracker_url"):
        change({"mode": "local", "tracker_url": "nowhere"})
    assert load()["mode"] == "hosted"
    text = "webhook: &x a\nwebhook_key: *x\n"
    write(path, text)
    with pytest.raises(UserError, match="only a person can edit"):
        change({"mode": "hosted", "webhook": "b"})
    assert path.read_text() == text


def test_what_the_mode_needs_stays(path: Path) -> None:
    change({"mode": "self-hosted", "tracker_url": "http://t", "api_key": "k", "webhook": "w"})
    for name in ("tracker_url", "api_key", "mode"):
        with pytest.raises(UsageError, match="valk config init --mode local"):
            remove(name)
    assert remove("webhook") is True
    change({"mode": "local"})
    assert remove("tracker_url") and remove("api_key") and remove("mode")


EARLIER = """\
environment: bench
aws:
  credentials:
    AWS_ACCESS_KEY_ID: AKIDEXAMPLE
    AWS_SECRET_ACCESS_KEY: c2VjcmV0
  AWS_DEFAULT_REGION: us-east-1   # where
  S3_BUCKET: mine
default_sandbox_provider: daytona
"""


def test_the_nested_form_of_earlier_files_is_read_and_edited_in_place(path: Path) -> None:
    write(path, EARLIER)
    assert load() == {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "c2VjcmV0",
        "AWS_DEFAULT_REGION": "us-east-1",
        "S3_BUCKET": "mine",
        "default_provider": "daytona",
    }
    assert [said.split()[0] for said in notices()] == ["environment", "aws", "default_sandbox_provider"]
    set_value("S3_BUCKET", "yours")
    remove("AWS_ACCESS_KEY_ID")
    assert path.read_text() == EARLIER.replace("mine", "yours").replace(
        "    AWS_ACCESS_KEY_ID: AKIDEXAMPLE\n", ""
    )
    write(path, "aws:\n  S3_BUCKET: mine\n")
    remove("S3_BUCKET")
    assert load() == {} and notices()
    write(path, "S3_BUCKET: one\naws: {S3_BUCKET: two}\n")
    with pytest.raises(UserError, match="yaml:2: key 'S3_BUCKET' is given twice"):
        load()
    write(path, "aws: {S3_BUCKETS: one}\n")
    with pytest.raises(UserError, match="Did you mean 'S3_BUCKET'"):
        load()


@pytest.mark.parametrize("name", ["DAYTONA_SECRET_NAME", "SANDBOX_PROVIDER_SECRET_NAME"])
def test_the_old_names_of_the_providers_secret(path: Path, name: str) -> None:
    providers = "sandbox_providers"
    write(path, f"webhook: a\n{name}: my-daytona\n")
    assert mapping(providers) == {"daytona": "my-daytona"} and "sandbox_providers.daytona" in notices()[0]
    set_entry(providers, "daytona", "other")
    assert path.read_text() == "webhook: a\nsandbox_providers:\n  daytona: other\n" and notices() == []
    write(path, f"webhook: a\n{name}: my-daytona\n")
    assert remove_entry(providers, "daytona") and path.read_text() == "webhook: a\n"
    write(path, f"{name}: my-daytona\nsandbox_providers:\n  modal: m\n")
    assert mapping(providers) == {"daytona": "my-daytona", "modal": "m"}
    write(path, f"{name}: my-daytona\nsandbox_providers:\n  daytona: newer\n")
    assert mapping(providers) == {"daytona": "newer"}
    write(path, f"{name}: [a]\n")
    with pytest.raises(UserError, match=f"yaml:1: {name}: daytona: the name of a secret"):
        load()


def test_of_two_old_names_the_newer_counts(path: Path) -> None:
    write(path, "DAYTONA_SECRET_NAME: old\nSANDBOX_PROVIDER_SECRET_NAME: new\n")
    assert mapping("sandbox_providers") == {"daytona": "new"}


@pytest.mark.parametrize(
    ("value", "shown"), [("abcdefgh", "abcd***"), ("abcde", "abcd***"), ("abcd", "***"), ("", "***")]
)
def test_credentials_are_masked(value: str, shown: str) -> None:
    assert masked(value) == shown


def test_every_key_is_described() -> None:
    assert all(entries.description.endswith(".") for entries in MAPS)
    assert all(key.description.endswith(".") and find_key(key.name.upper()) is key for key in KEYS)
