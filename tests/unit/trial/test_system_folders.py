"""Which of an agent's changes are its work, and which are put back."""

from __future__ import annotations

import pytest

from sandboxes.protocol import CarryRules, ChangedPath, ChangeKind
from valkyrie.domain import TaskSpec
from valkyrie.trial.storage import rules_for, tampered, tool_folders
from valkyrie.trial.verification import printable

TASK = TaskSpec(id="t", digest="d", instruction="x", cwd="/app")


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("/root", True),
        ("/home", True),
        ("/home/someone", True),
        ("/home/someone/notes", False),
        ("/var", True),
        ("/logs", True),
        ("/tests", True),
        ("/app", False),
        ("/app/data", False),
        ("/srv", False),
    ],
)
def test_no_link_stands_for_a_home_or_above_the_system(path: str, refused: bool) -> None:
    assert rules_for(TASK).refuses_link_at(path) is refused


def test_what_a_set_up_links_is_its_own_business() -> None:
    assert not rules_for(TASK).inverse.refuses_link_at("/var")
    assert not CarryRules().refuses_link_at("/root")


def test_tools_of_an_image_outside_its_system_folders() -> None:
    path = "/root/miniconda3/bin:/usr/local/bin:/usr/bin:/app/.venv/bin:/venv/bin:relative:/root/bin:/tools"
    assert tool_folders(path, "/app") == ("/root/bin", "/root/miniconda3", "/tools", "/venv")
    rules = rules_for(TASK, tool_folders(path, "/app"))
    assert not rules.carries("/root/miniconda3/lib/python3.12/json/__init__.py")
    assert rules.carries("/app/.venv/bin/python")


@pytest.mark.parametrize(
    ("path", "kind", "back"),
    [
        ("/usr/bin/grep", "changed", ["/usr/bin/grep"]),
        ("/usr/bin/mine", "added", []),
        ("/usr/local/bin", "changed", ["/usr/local/bin/.blocked"]),
        ("/etc/nsswitch.conf", "changed", ["/etc/nsswitch.conf"]),
        ("/etc/hosts", "changed", []),
        (
            "/usr/lib/python3.12/json/__pycache__/x.pyc",
            "added",
            ["/usr/lib/python3.12/json/__pycache__/x.pyc"],
        ),
        ("/usr/lib/python3/dist-packages/a.pth", "added", ["/usr/lib/python3/dist-packages/a.pth"]),
        ("/venv/lib/x.py", "changed", ["/venv/lib/x.py"]),
    ],
)
def test_what_is_put_back(path: str, kind: ChangeKind, back: list[str]) -> None:
    assert tampered([ChangedPath(path, kind)], ["/venv"]) == back


def test_packages_start_where_the_work_is_the_system() -> None:
    assert tampered([ChangedPath("/usr/lib/python3/dist-packages/a.pth", "added")], strict=False) == []


def test_names_are_shown_as_text() -> None:
    assert printable("/a\n\x1b[31m\udcff é") == "/a\\n\\x1b[31m\\udcff é"
