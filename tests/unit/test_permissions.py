"""Which variables redirect, and which are allowed."""

from pathlib import Path

import pytest

from benchmark_service.environment import REDIRECTING, is_redirecting, redirection
from valkyrie.config.permissions import outside
from valkyrie.config.schema import allowed_names
from valkyrie.config.values import load
from valkyrie.errors import UsageError


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ANTHROPIC_BASE_URL", "model address"),
        ("MISTRAL_API_BASE", "model address"),
        ("SOMEBODY_BASE_URL", "model address"),
        ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "model address"),
        ("https_proxy", "proxy"),
        ("NO_PROXY", "proxy"),
        ("npm_config_proxy", "proxy"),
        ("LD_PRELOAD", "loader"),
        ("PYTHONSTARTUP", "interpreter"),
        ("NODE_OPTIONS", "interpreter"),
        ("BASH_FUNC_ls%%", "interpreter"),
        ("GIT_SSH_COMMAND", "git"),
        ("VALKYRIE_JUDGE_URL", "setting"),
        ("TRACKER_SERVICE_URL", "setting"),
        ("SSL_CERT_FILE", "certificate"),
    ],
)
def test_a_variable_that_redirects_is_known(name: str, kind: str) -> None:
    assert redirection(name) == kind


@pytest.mark.parametrize(
    "name",
    [
        *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "VALKYRIE_JUDGE_API_KEY", "GITHUB_TOKEN", "DATABASE_URL"),
        *("S3_ENDPOINT", "APP_HOST", "DEBUG", "AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_a_variable_that_carries_a_value_is_none_of_them(name: str) -> None:
    assert not is_redirecting(name)


def test_every_listed_name_redirects() -> None:
    assert all(map(is_redirecting, REDIRECTING))


def test_names_come_from_flags_and_config() -> None:
    assert allowed_names(["A", "B"], "B, C") == {"A", "B", "C"}
    with pytest.raises(UsageError, match="--pass-env 'A=1'"):
        allowed_names(["A=1"])


@pytest.mark.parametrize("text", ["pass_env: [A, B_2]\n", "pass_env: A, B_2\n", "pass_env:\n- A\n- B_2\n"])
def test_the_config_file_lists_names(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert load(file)["pass_env"] == "A,B_2"


def test_a_link_that_leaves_is_outside(tmp_path: Path) -> None:
    inside, other = tmp_path / "project", tmp_path / "other"
    inside.mkdir()
    other.mkdir()
    (inside / "link").symlink_to(other)
    assert outside(inside / "link" / "x", inside) == other / "x"
    assert outside(inside / "a" / ".." / "b", inside) is None
    assert outside(inside / "link", inside, other) is None
