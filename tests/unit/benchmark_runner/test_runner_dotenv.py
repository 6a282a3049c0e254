"""`./.env` of a runner: values are taken, what redirects keys or code is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmark_runner.cli import load_dotenv


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("OPENAI_API_KEY=k\nSERVICE_URL=http://here\n", {"OPENAI_API_KEY", "SERVICE_URL"}),
        ("OPENAI_API_KEY=k\nOPENAI_BASE_URL=http://here\n", {"OPENAI_API_KEY", "OPENAI_BASE_URL"}),
        ("OPENAI_BASE_URL=http://stranger\n", set()),
        ("OPENAI_BASE_URL=http://stranger\nANTHROPIC_API_KEY=k\n", {"ANTHROPIC_API_KEY"}),
        ("OPENAI_BASE_URL=http://stranger\nOPENAI_API_KEY=\n", {"OPENAI_API_KEY"}),
        ("HTTPS_PROXY=http://stranger\nLD_PRELOAD=x\nPYTHONPATH=x\nGIT_SSH_COMMAND=x\nA=1\n", {"A"}),
    ],
)
def test_only_values_are_taken(
    text: str,
    taken: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / ".env").write_text(text)
    monkeypatch.chdir(tmp_path)
    names = {line.partition("=")[0] for line in text.splitlines()}
    for name in names:
        monkeypatch.setenv(name, "before")
    load_dotenv()
    assert {name for name in names if os.environ[name] != "before"} == taken
    told = capsys.readouterr().err
    assert all(f"`export {name}=…`" in told for name in names - taken)
