"""Code of a project: what lint, plans and exports must not run, and what runs only once it is trusted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.integration.evals.commands import Valk
from tests.integration.evals.commands import valk as valk
from valkyrie.errors import UsageError, UserError

SPEC = """\
name: x
defaults: {executor: EXECUTOR}
stimuli:
  - name: a
    prompt: hi
    graders: [{type: TYPE}, {type: output-contains, config: {substring: hi}}]
"""
STRANGER = 65534


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def project(tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with plugins that leave a canary wherever they are imported."""
    folder = tmp_path / "theirs"
    (folder / ".git").mkdir(parents=True)
    touch = f"open({str(canary)!r}, 'w').close()\n"
    (folder / ".vally.yaml").write_text("plugins: {graders: [tools/mine.py], executors: [tools/agent.py]}\n")
    (folder / "tools").mkdir()
    (folder / "tools/helper.py").write_text("WORD = 'hi'\n")
    (folder / "tools/mine.py").write_text(
        f"{touch}class Mine:\n    type = 'mine'\n    def grade(self, given): return True\n"
    )
    (folder / "tools/agent.py").write_text(
        f"{touch}class Mine:\n    name = 'mine'\n    def run(self, given): return 'hi'\n"
    )
    (folder / "evil.py").write_text(f"{touch}class Agent:\n    pass\n")
    write_spec(folder)
    monkeypatch.chdir(folder)
    return folder


def write_spec(folder: Path, *, kind: str = "mine", executor: str = "mock") -> None:
    (folder / "eval.yaml").write_text(SPEC.replace("TYPE", kind).replace("EXECUTOR", executor))


@pytest.mark.parametrize("executor", ["mock", "mine", "evil:Agent"])
@pytest.mark.parametrize(
    "words",
    [
        "lint",
        "lint --strict --verbose",
        "eval -e eval.yaml --dry-run",
        "experiment run x.experiment.yaml --dry-run",
        "export -e eval.yaml --exporter harbor",
        "export -e eval.yaml --exporter csv",
        "trust --list",
        "trust",
        "eval --help",
    ],
)
def test_looking_at_a_project_runs_nothing_of_it(
    valk: Valk, project: Path, canary: Path, words: str, executor: str
) -> None:
    write_spec(project, executor=executor)
    (project / "x.experiment.yaml").write_text("name: x\nevals: [eval.yaml]\nvariants: {a: {}}\n")
    said = valk(*words.split())
    assert "Traceback" not in said.err
    assert not canary.exists()
    if executor == "mock":
        assert said.code == 0, said.err


def test_plugins_run_only_from_a_trusted_project(valk: Valk, project: Path, canary: Path) -> None:
    refused = valk("eval", "-e", "eval.yaml")
    assert refused.code == 2 and f"`valk trust {project}`" in refused.err
    assert not canary.exists()
    assert valk("trust").code == 0 and not canary.exists()
    assert valk("eval", "-e", "eval.yaml").code == 0
    assert canary.exists()


@pytest.mark.parametrize("changed", [".vally.yaml", "tools/mine.py", "tools/helper.py", "tools/more.py"])
def test_a_change_of_what_can_execute_ends_trust(
    valk: Valk, project: Path, canary: Path, changed: str
) -> None:
    valk("trust")
    with (project / changed).open("a") as file:
        file.write("# more\n")
    refused = valk("eval", "-e", "eval.yaml")
    assert refused.code == 2 and "was changed since you trusted it" in refused.err
    assert not canary.exists()
    listed = json.loads(valk("trust", "--list", "--json").out)
    assert [one["state"] for one in listed["projects"]] == ["changed"]


def test_compiled_files_that_are_never_checked_count(valk: Valk, project: Path) -> None:
    import py_compile

    valk("trust")
    (project / "tools/__pycache__").mkdir()
    compiled = project / "tools/__pycache__/helper.cpython-311.pyc"
    py_compile.compile(str(project / "tools/helper.py"), cfile=str(compiled))
    assert json.loads(valk("trust", "--list", "--json").out)["projects"][0]["state"] == "trusted"
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(project / "tools/helper.py"), cfile=str(compiled), invalidation_mode=unchecked)
    assert json.loads(valk("trust", "--list", "--json").out)["projects"][0]["state"] == "changed"


def test_a_linked_folder_of_code_counts(valk: Valk, project: Path) -> None:
    (project / "lib").mkdir()
    (project / "lib/more.py").write_text("")
    (project / "tools/lib").symlink_to("../lib")
    valk("trust")
    (project / "lib/more.py").write_text("1\n")
    assert json.loads(valk("trust", "--list", "--json").out)["projects"][0]["state"] == "changed"


def test_trust_is_of_a_folder_and_can_be_taken_back(valk: Valk, project: Path, canary: Path) -> None:
    valk("trust", str(project / "tools"))
    twin = project.with_name("twin")
    project.rename(twin)
    os.chdir(twin)
    assert valk("eval", "-e", "eval.yaml").code == 2
    valk("trust")
    assert valk("trust", "--remove").code == 0
    assert valk("eval", "-e", "eval.yaml").code == 2
    assert valk("trust", "--remove").code == 2
    assert not canary.exists()


def test_the_command_line_trusts_for_once(valk: Valk, project: Path, canary: Path) -> None:
    assert valk("eval", "-e", "eval.yaml", "--trust").code == 0
    assert canary.exists()
    assert valk("eval", "-e", "eval.yaml").code == 2


def test_plugins_no_spec_uses_are_not_loaded(valk: Valk, project: Path, canary: Path) -> None:
    write_spec(project, kind="exit-success")
    for words in (["--trust"], []):
        assert valk("eval", "-e", "eval.yaml", *words).code == 0
    assert not canary.exists()


def test_grading_again_needs_trust_as_well(valk: Valk, project: Path, canary: Path) -> None:
    refused = valk("grade", "-e", "eval.yaml", stdin="{}")
    assert refused.code == 2 and "`valk trust" in refused.err
    assert not canary.exists()


def test_plugins_that_changed_after_the_plan_are_not_loaded(valk: Valk, project: Path) -> None:
    """Also where a run is taken up again by a command that knows nothing of trust."""
    from valkyrie.benchmarks.eval_spec.source import graders_of, open_spec
    from valkyrie.evals.plan import EvalItem, EvalRequest, plan_evals
    from valkyrie.evals.plugins import check_still_trusted, with_project_plugins
    from valkyrie.specs.project import find_project

    request = EvalRequest([EvalItem(project / "eval.yaml")], work_dir=project)
    request = with_project_plugins(request, find_project(project), trust=True)
    options = plan_evals(request).evals[0].options
    with pytest.raises(UsageError, match="is not trusted"):
        check_still_trusted(request, trust=False)
    check_still_trusted(request, trust=True)
    with (project / "tools/mine.py").open("a") as file:
        file.write("# more\n")
    with pytest.raises(UserError, match="changed since the run was planned"):
        check_still_trusted(request, trust=True)
    write_spec(project)
    spec = open_spec(project / "eval.yaml", options).spec
    with pytest.raises(UserError, match="changed since the run was planned"):
        graders_of(spec.stimuli[0], spec, options)


def test_a_flag_means_the_user_s_file_and_not_one_beside_the_spec(
    valk: Valk, project: Path, canary: Path
) -> None:
    mine = project.with_name("mine")
    mine.mkdir()
    (mine / "graders.py").write_text(
        "class Mine:\n    type = 'mine'\n    def grade(self, given): return True\n"
    )
    (project / "graders.py").write_bytes((project / "tools/mine.py").read_bytes())
    os.chdir(mine)
    spec = project / "eval.yaml"
    assert valk("lint", "-e", spec, "--grader-plugin", "graders.py").code == 0
    assert valk("eval", "-e", spec, "--grader-plugin", "graders.py").code == 0
    assert not canary.exists()


def test_a_spec_cannot_name_code_of_this_machine(valk: Valk, project: Path, canary: Path) -> None:
    write_spec(project, kind="exit-success", executor="evil:Agent")
    refused = valk("eval", "-e", "eval.yaml", "--trust")
    assert refused.code == 2 and "--agent evil:Agent" in refused.err
    assert not canary.exists()


def test_a_record_in_the_project_itself_counts_for_nothing(
    valk: Valk, project: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    valk("trust")
    home = Path(os.environ["VALKYRIE_HOME"])
    monkeypatch.setenv("VALKYRIE_HOME", str(project / ".valkyrie"))
    (project / ".valkyrie").mkdir()
    (project / ".valkyrie/trusted.json").write_bytes((home / "trusted.json").read_bytes())
    assert valk("eval", "-e", "eval.yaml").code == 2
    refused = valk("trust")
    assert refused.code == 1 and "VALKYRIE_HOME" in refused.err
    assert not canary.exists()


def test_the_search_ends_at_the_top_of_the_repository(valk: Valk, project: Path, canary: Path) -> None:
    (project / "inner/.git").mkdir(parents=True)
    write_spec(project / "inner")
    os.chdir(project / "inner")
    refused = valk("eval", "-e", "eval.yaml", "--trust")
    assert refused.code == 2 and "there is no grader of type 'mine'" in refused.err
    assert not canary.exists()


def test_the_search_ends_at_the_home_folder(
    valk: Valk, project: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "home/evals").mkdir(parents=True)
    write_spec(project / "home/evals")
    monkeypatch.setenv("HOME", str(project / "home"))
    os.chdir(project / "home/evals")
    assert valk("eval", "-e", "eval.yaml", "--trust").code == 2
    assert not canary.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_project_file_of_another_user_is_not_read(valk: Valk, project: Path, canary: Path) -> None:
    os.chown(project / ".vally.yaml", STRANGER, STRANGER)
    for words in (("lint",), ("eval", "-e", "eval.yaml"), ("eval", "-e", "eval.yaml", "--trust")):
        refused = valk(*words)
        assert refused.code == 2 and f"`valk trust {project}`" in refused.err
    assert not canary.exists()
    assert valk("trust").code == 0
    assert valk("eval", "-e", "eval.yaml").code == 0


def test_a_project_file_that_is_a_link_elsewhere_is_not_read(valk: Valk, project: Path) -> None:
    elsewhere = project.with_name("elsewhere.yaml")
    (project / ".vally.yaml").rename(elsewhere)
    (project / ".vally.yaml").symlink_to(elsewhere)
    refused = valk("lint")
    assert refused.code == 2 and "is a link to" in refused.err


def test_modules_beside_a_stranger_s_files_are_not_imported(valk: Valk, project: Path, canary: Path) -> None:
    import subprocess

    for name in ("yaml.py", "click.py", "sqlalchemy.py", "tomllib.py"):
        (project / name).write_text(f"open({str(canary)!r}, 'w').close()\n")
    done = subprocess.run([sys.executable, "-m", "valkyrie", "lint"], cwd=project, capture_output=True)
    assert done.returncode == 0
    assert not canary.exists(), done.stderr
