"""Commands and files that install something install what is running, never another author's package."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from benchmark_runner.scaffolder.main import main as create_runner
from benchmark_service.cli.cli import main as create_service
from sandboxes import registry
from valkyrie.cli.output import as_typed
from valkyrie.evals.starter.project import start_project

ROOT = Path(__file__).parents[2]
INSTALLS = re.compile(
    r"\b(?:pip3?|pipx|uv)\b[^\n`]*?\b(?:install|inject)\b(?P<what>[^\n`]*)|\buvx\b(?P<tool>[^\n`]*)"
)
NAMES_US = re.compile(r"(?<![\w/.-])valkyrie(?:[-_]bench)?(?:\[[\w,]*\])?(?![\w/.-])(?!\s*@)")


def misleading(text: str) -> list[str]:
    """The lines of a text that install a package by a name that may be somebody else's."""
    found = []
    for match in INSTALLS.finditer(text):
        words = (match["what"] or match["tool"] or "").replace("--refresh-package valkyrie-bench", "")
        if NAMES_US.search(words):
            found.append(match[0])
    return found


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("run: pip install valkyrie", True),
        ("pip install 'valkyrie-bench[docker]'", True),
        ("pipx install valkyrie-bench", True),
        ("uv tool install valkyrie", True),
        ("pip install 'valkyrie-bench @ git+https://host/r@abc'", False),
        ("pip install '.[docker]'", False),
        ("uv pip install -q --refresh-package valkyrie-bench -e '.[dev]'", False),
        ("pip install wheels/valkyrie_bench-*.whl", False),
    ],
)
def test_misleading_lines_are_known(line: str, wrong: bool) -> None:
    assert bool(misleading(line)) is wrong


def test_no_page_and_no_source_names_a_package_of_an_index() -> None:
    places = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in ("docs", "src", "examples", ".github"):
        places += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    wrong = {
        str(path.relative_to(ROOT)): lines
        for path in places
        if (lines := misleading(path.read_text(encoding="utf-8", errors="replace")))
    }
    assert not wrong


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Any:
    def record(document: dict[str, Any] | None) -> None:
        text = None if document is None else json.dumps(document)
        monkeypatch.setattr(metadata.Distribution, "read_text", lambda _self, _name: text, raising=False)
        monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda _self, _name: text)

    return record


GIT = {"url": "https://host/valkyrie.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}


@pytest.mark.parametrize(
    ("record", "source"),
    [
        (None, "${{ vars.VALKYRIE_SOURCE }}"),
        ({"url": ROOT.as_uri(), "dir_info": {"editable": True}}, "${{ vars.VALKYRIE_SOURCE }}"),
        (GIT, '"git+https://host/valkyrie.git@abc"'),
    ],
)
def test_a_workflow_installs_what_wrote_it(
    tmp_path: Path, recorded: Any, record: dict[str, Any] | None, source: str
) -> None:
    recorded(record)
    start_project(tmp_path, ci="github")
    text = (tmp_path / ".github/workflows/evals.yml").read_text()
    assert f"VALKYRIE_SOURCE: {source}\n" in text
    assert 'pip install "${VALKYRIE_SOURCE:?' in text
    assert not misleading(text)


@pytest.mark.parametrize("create", [create_service, create_runner])
@pytest.mark.parametrize("record", [None, GIT])
def test_a_generated_project_installs_what_generated_it(
    tmp_path: Path, recorded: Any, create: Any, record: dict[str, Any] | None
) -> None:
    recorded(record)
    done = CliRunner().invoke(create, ["sums", "--output-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (pyproject,) = tmp_path.rglob("pyproject.toml")
    (framework,) = re.findall(r'"(valkyrie-bench[^"]*)"', pyproject.read_text())
    wanted = "git+https://host/valkyrie.git@abc" if record else "file:///FILL-IN/"
    assert f" @ {wanted}" in framework
    wrong = [path for path in pyproject.parent.rglob("*") if path.is_file() and misleading(path.read_text())]
    assert not wrong


def test_an_extra_is_added_by_its_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert registry.add_extra("docker").endswith(" -m pip install 'aiodocker>=0.24'")
    monkeypatch.chdir(Path(sys.executable).parents[1])
    assert registry.add_extra("docker").startswith("bin/python")
    (tmp_path / "uv-receipt.toml").touch()
    assert registry.add_extra("docker").startswith("uv pip install --python bin/python")
    (tmp_path / "pipx_metadata.json").touch()
    assert registry.add_extra("docker") == f"pipx inject {tmp_path.name} 'aiodocker>=0.24'"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("package_metadata", ROOT / "scripts/package_metadata.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("url", [None, "https://host/valkyrie"])
def test_the_readme_on_an_index_has_no_link_that_leads_nowhere(hook: ModuleType, url: str | None) -> None:
    text = hook.published_readme((ROOT / "README.md").read_text(), url)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert all(target.startswith(("https://", "#")) for target in targets)
    assert ("docs/images/demo.svg" in text) is (url is not None)
    assert hook.project_urls(url).get("Homepage") == url


def test_commands_are_printed_as_they_work_in_this_shell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(folder))
    assert as_typed("valk run list") == "valk run list"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(folder.parent)
    assert as_typed("valk run list") == "bin/valk run list"
    assert as_typed("cd there && valk lint") == f"cd there && {folder}/valk lint"
    (tmp_path / "valk").write_text("#!/bin/sh\n")
    (tmp_path / "valk").chmod(0o755)
    assert as_typed("valkyrie db upgrade") == "bin/valkyrie db upgrade"
    assert as_typed("valk run list") == "bin/valk run list"
    assert as_typed("export VALKYRIE_HOME=valkyrie") == "export VALKYRIE_HOME=valkyrie"
