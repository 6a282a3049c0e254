import pytest

from sandboxes.process import PathRewriter

ROOT = "/tmp/state/root"


@pytest.mark.parametrize(
    "text",
    [
        "cat {}/app/x",
        "{}/app",
        "cd {}/tests && ls '{}/logs/a b'",
        "--out={}/workspace",
        "A={}/app:{}/bundle:/usr/bin",
        'python "{}/solution/run.py"',
        "cp {}/instruction.md {}/tmp/x",
        "echo x >{}/logs/out;(cd {}/app)",
    ],
)
def test_well_known_paths_move(text: str) -> None:
    rewritten = PathRewriter(ROOT).rewrite(text.format(*[""] * 3))
    assert rewritten == text.format(*[ROOT] * 3)
    assert PathRewriter(ROOT).rewrite(rewritten) == rewritten


@pytest.mark.parametrize(
    "text",
    [
        "/apps/x",
        "/app.txt",
        "/app-data",
        "/usr/app",
        "$HOME/app",
        "${HOME}/app",
        "$(pwd)/tests",
        "./tests/x",
        "../app",
        "~/app",
        "sed s/app/x/",
        "http://host/app",
        "http://app/x",
        "/etc/passwd",
        "app",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert PathRewriter(ROOT).rewrite(text) == text
