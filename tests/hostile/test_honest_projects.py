"""Projects of honest people: what was shipped or scaffolded needs at most one `valk trust`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.evals.commands import Valk
from tests.integration.evals.commands import valk as valk

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("inside", [".git", None])
def test_a_first_project_needs_no_word(
    valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str | None
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    if inside:
        (folder / inside).mkdir()
    monkeypatch.chdir(folder)
    assert valk("init").code == 0
    assert valk("lint", "--strict").code == 0
    for spec in sorted(folder.rglob("eval.yaml")):
        for words in (("--dry-run",), ("--executor", "mock", "--threshold", "0")):
            said = valk("eval", "-e", spec, *words)
            assert "--allow-path" not in said.err and "trust" not in said.err
            assert said.code == 0, said.err + said.out


@pytest.mark.parametrize("agent", sorted(path.name for path in (ROOT / "examples/agents").iterdir()))
def test_the_example_agents_need_no_word(valk: Valk, agent: str) -> None:
    folder = ROOT / "examples/agents" / agent
    assert valk("lint", folder).code == 0
    said = valk("run", "start", "--agent", folder, "--benchmark", "quickstart", "--dry-run")
    assert "--pass-env" not in said.out + said.err


def test_a_project_with_plugins_needs_one_word(
    valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    (folder / "evals/a").mkdir(parents=True)
    (folder / "shared").mkdir()
    (folder / "shared/data.txt").write_text("1\n")
    (folder / ".vally.yaml").write_text("plugins: {graders: [graders.py]}\n")
    (folder / "graders.py").write_text(
        "class Mine:\n    type = 'mine'\n    def grade(self, given): return True\n"
    )
    (folder / "evals/a/eval.yaml").write_text(
        "name: a\ndefaults: {executor: mock}\nstimuli:\n  - name: a\n    prompt: hi\n"
        "    environment: {files: [{src: ../../shared/data.txt, dest: data.txt}]}\n"
        "    graders: [{type: mine}]\n"
    )
    monkeypatch.chdir(folder / "evals")
    refused = valk("eval", "-e", "a/eval.yaml")
    command = refused.err.partition("`valk ")[2].partition("`")[0]
    assert command == f"trust {folder}"
    assert valk(*command.split()).code == 0
    assert valk("eval", "-e", "a/eval.yaml").code == 0
