from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.benchmarks.task_dir.task_toml import ParsedToml
from valkyrie.errors import BenchmarkError

WHOLE = """
schema_version = "1.4"
source = "example"
multi_step_reward_strategy = "final"
artifacts = ["/app/out", { source = "/app/x", destination = "x", exclude = ["*.tmp"], service = "main" }]

[task]
name = "org/name"
version = "2"
description = "d"
authors = [{ name = "A", email = "a@example.org" }]
keywords = ["k"]

[metadata]
anything = { goes = [1, "two"] }

[agent]
timeout_sec = 30
user = 1000
network_mode = "no-network"
allowed_hosts = []

[verifier]
timeout_sec = 12.5
env = { A = "1" }
user = "root"
network_mode = "allowlist"
allowed_hosts = ["*.example.org", "10.0.0.0/8"]
environment_mode = "shared"
collect = [{ command = "true", service = "main", timeout_sec = 3, user = "x" }]

[environment]
build_timeout_sec = 20
docker_image = "debian:12"
os = "linux"
cpus = 0.5
memory_mb = 256
storage_mb = 512
gpus = 0
gpu_types = ["H100"]
tpu = { type = "v5", topology = "2x2" }
mcp_servers = [{ name = "m", transport = "stdio", command = "c", args = ["-x"], headers = { a = "b" } }]
env = { B = "${HOME}" }
skills_dir = "/skills"
workdir = "/work"
network_mode = "public"
allowed_hosts = ["packages.example"]

[environment.healthcheck]
command = "true"
interval = 1
timeout = 2
start_period = 3
start_interval = 4
retries = 5

[solution]
env = { C = "3" }
"""


def parse(text: str) -> ParsedToml:
    return ParsedToml.parse(text, "task.toml")


def test_every_documented_key_is_known() -> None:
    parsed = parse(WHOLE)
    assert parsed.warnings == []
    assert parsed.config.environment.healthcheck is not None
    assert parsed.config.environment.healthcheck.retries == 5
    assert parsed.config.network == "none"
    assert parsed.config.solution.env == {"C": "3"}


def test_an_empty_file_has_the_documented_defaults() -> None:
    config = parse("").config
    assert config.agent.timeout_sec is None
    assert config.verifier.timeout_sec == 600.0
    assert config.environment.build_timeout_sec == 600.0
    assert (config.environment.cpus, config.environment.memory_mb, config.environment.storage_mb) == (
        None,
    ) * 3
    assert config.network == "public"
    assert config.multi_step_reward_strategy == "mean"


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ('[environment]\nnetwork_mode = "no-network"', "none"),
        ('[environment]\nnetwork_mode = "allowlist"', "allowlist"),
        ('[environment]\nnetwork_mode = "no-network"\n[agent]\nnetwork_mode = "public"', "public"),
        ('[agent]\nnetwork_mode = "no-network"', "none"),
        ("[environment]\nallow_internet = false", "none"),
        ("[environment]\nallow_internet = true", "public"),
    ],
)
def test_network(text: str, policy: str) -> None:
    assert parse(text).config.network == policy


@pytest.mark.parametrize(
    ("size", "megabytes"),
    [
        ("2G", 2048),
        ("512M", 512),
        ("1.5g", 1536),
        ("1GB", 1024),
        ("4 GiB", 4096),
        ("100K", 1),
        ("1T", 1 << 20),
    ],
)
def test_old_sizes(size: str, megabytes: int) -> None:
    config = parse(f'[environment]\nmemory = "{size}"\nstorage = "{size}"').config
    assert (config.environment.memory_mb, config.environment.storage_mb) == (megabytes, megabytes)


def test_the_old_key_version_is_accepted() -> None:
    assert parse('version = "1.0"').warnings == []


@pytest.mark.parametrize(
    ("text", "key", "suggestion"),
    [
        ("[agent]\ntimeout_secs = 4", "agent.timeout_secs", "timeout_sec"),
        ("[enviroment]\ncpus = 1", "enviroment", "environment"),
        (
            '[environment]\nhealthcheck = { command = "x", retry = 1 }',
            "environment.healthcheck.retry",
            "retries",
        ),
        (
            '[[environment.mcp_servers]]\nname = "m"\nurl = "u"\nurls = "x"',
            "environment.mcp_servers[0].urls",
            "url",
        ),
        ("zzz = 1", "zzz", None),
    ],
)
def test_unknown_keys_are_warned_about_and_kept_harmless(text: str, key: str, suggestion: str | None) -> None:
    (warning,) = parse(text).warnings
    assert f"unknown key {key} " in warning
    assert ("Did you mean" in warning) == (suggestion is not None)
    assert suggestion is None or repr(suggestion) in warning


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[agent]\ntimeout_sec = "5"', "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = 0", "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = true", "agent.timeout_sec"),
        ("[verifier]\ntimeout_sec = -1", "verifier.timeout_sec"),
        ("[verifier]\ntimeout_sec = inf", "verifier.timeout_sec"),
        ("[verifier]\nenv = { PORT = 80 }", "verifier.env.PORT"),
        ("[environment]\ncpus = nan", "environment.cpus"),
        ("[environment]\nmemory_mb = 1.5", "environment.memory_mb"),
        ('[environment]\nmemory = "lots"', "memory must look like"),
        ("[environment]\nmemory = 2", "memory must look like"),
        ('[environment]\nmemory = "2G"\nmemory_mb = 2048', "both memory_mb and the deprecated memory"),
        ('[environment]\nallow_internet = "no"', "allow_internet must be true or false"),
        ('[environment]\nallow_internet = true\nnetwork_mode = "no-network"', "contradicts"),
        ('[environment]\nnetwork_mode = "off"', "environment.network_mode"),
        ('[environment]\nworkdir = "app"', "environment.workdir"),
        ("[environment]\nhealthcheck = {}", "environment.healthcheck.command"),
        ("environment = 3", "environment"),
        ("[task]\nkeywords = [1]", "task.keywords.0"),
        ("artifacts = [1]", "artifacts.0"),
        ("[[agent]]\n", "agent"),
    ],
)
def test_what_does_not_fit_is_an_error_with_file_and_key(text: str, place: str) -> None:
    with pytest.raises(BenchmarkError) as caught:
        parse(text)
    assert "task.toml: " in str(caught.value)
    assert place in str(caught.value)


def test_all_errors_are_told_at_once() -> None:
    with pytest.raises(BenchmarkError) as caught:
        parse("[agent]\ntimeout_sec = 0\n[environment]\ncpus = 0")
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps = 3", "steps: a list is expected (got 3)"),
        (
            '[[steps]]\nname = "a"\nmin_reward = "x"',
            "steps.0.min_reward: Input should be a valid number (got 'x')",
        ),
        ('[environment]\nworkdir = "app"', "environment.workdir: an absolute path is expected (got 'app')"),
        (
            'artifacts = [{source = "/out", destination = "../x"}]',
            "artifacts.0.destination: leads out of the folder artifacts are kept in (got '../x')",
        ),
        (
            '[[environment.mcp_servers]]\nname = "m"',
            "environment.mcp_servers.0: the MCP server 'm' (sse) needs a url",
        ),
        (
            '[environment]\nmcp_servers = [{name = "m", url = "http://a"}, {name = "m", url = "http://b"}]',
            "environment.mcp_servers: two servers are called 'm'; rename one",
        ),
    ],
)
def test_each_complaint_is_one_line_in_the_authors_words(text: str, said: str) -> None:
    with pytest.raises(BenchmarkError) as caught:
        parse(text)
    assert str(caught.value) == f"task.toml: {said}"


def test_bad_toml_names_line_and_column() -> None:
    with pytest.raises(BenchmarkError, match=r"task\.toml is not valid TOML.*line 2, column 5"):
        parse("a = 1\nb = ?\n")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="cannot read"):
        ParsedToml.read(tmp_path / "task.toml")
    (tmp_path / "task.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(BenchmarkError, match="not UTF-8"):
        ParsedToml.read(tmp_path / "task.toml")
