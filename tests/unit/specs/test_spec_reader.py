"""What an eval spec comes to, key by key, over the ages of the format."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.specs.experiment import read_experiment
from valkyrie.specs.model import Constraints, EvalSpec, FileEntry, Finding, Project, SpecError
from valkyrie.specs.reader import examine, read_spec, read_text

FIXTURES = Path(__file__).parent / "fixtures" / "evals"
FILE = Path("/evals/shelf/eval.yaml")
GRADED = "graders: [{type: completed}]"


def read(text: str, **more: object) -> EvalSpec:
    return read_text(text, FILE, **more).spec  # type: ignore[arg-type]


def findings(text: str, severity: str = "error") -> list[Finding]:
    try:
        found = read_text(text, FILE).findings
    except SpecError as error:
        found = error.findings
    return [one for one in found if one.severity == severity]


def one(extra: str = "", root: str = "") -> str:
    """A spec with one stimulus that has these keys besides."""
    lines = [root, "stimuli:", "  - name: a", *(f"    {line}" for line in extra.splitlines())]
    return "\n".join(line for line in lines if line)


def test_every_key_is_understood() -> None:
    spec = read_spec(FIXTURES / "every-key.eval.yaml").spec
    first, second = spec.stimuli
    assert (spec.name, spec.version, spec.type) == ("every-key", "1.10", "regression")
    assert spec.description == "Each key of the format once.\n"
    assert spec.tags == {"tier": ("smoke",), "cost": ("free", "low"), "numbered": ("7",), "sharp": ("true",)}
    assert (spec.defaults.runs, spec.defaults.timeout, spec.defaults.model) == (3, 300.0, "some-model")
    assert (spec.defaults.executor, spec.defaults.executor_config) == ("mock", {"latency": 0})
    assert (spec.defaults.judge_model, spec.defaults.judge_provider) == ("some-judge", "openai")
    assert (spec.defaults.reasoning_effort, spec.defaults.judge_reasoning_effort) == ("high", "low")
    assert (spec.scoring.threshold, spec.scoring.timeout) == (0.75, 600.0)
    assert spec.scoring.weights == {"output-contains": 2.0, "says-length": 0.5}
    assert first.turns == ("How long is the plank in plank.txt?",)
    assert first.tags == {**spec.tags, "tier": ("full",), "kind": ("measure",)}
    assert first.rubric == ("Names the unit", "Reads the file first")
    assert first.constraints == Constraints(
        max_turns=20,
        max_tokens=5000,
        max_duration=90.0,
        expect_tools=("view",),
        reject_tools=("rm.*",),
        expect_skills=("measuring",),
        reject_skills=("*",),
        place=first.constraints.place,
    )
    assert (first.artifacts_include, first.artifacts_exclude) == (("out/**",), ("**/*.tmp",))
    assert [(entry.src, entry.dest) for entry in first.attachments] == [
        ("files/plank.png", "plank.png"),
        ("files/notes.md", "notes.md"),
    ]
    assert first.golden_patch is None
    assert first.golden_patch_file is not None
    assert first.golden_patch_file.source == FIXTURES / "files" / "golden.patch"
    assert second.golden_patch == "--- a/plank\n+++ b/plank\n"
    assert (first.runs, first.timeout, second.runs, second.timeout) == (5, 30.0, 2, 45.0)
    assert second.turns == ("Measure it.", "Now cut it in half.")
    (grader,) = first.graders
    assert (grader.type, grader.name, grader.weight) == ("output-contains", "says-length", 3.0)
    assert grader.config == {"substring": "40 mm"}
    assert str(grader.place).endswith("every-key.eval.yaml:77:9")
    assert second.graders[0].turn == 1


def test_the_root_environment_reaches_every_stimulus() -> None:
    first, second = read_spec(FIXTURES / "every-key.eval.yaml").spec.stimuli
    assert first.environment.skills is not None
    assert [ref.folder.name for ref in first.environment.skills] == ["planing", "measuring"]
    assert [ref.path for ref in second.environment.skills or ()] == ["../skills/planing/SKILL.md"]
    assert [entry.dest for entry in first.environment.files] == ["in/plank.txt", "rules"]
    assert first.environment.commands == ('echo "${HOME}" > where', "ls")
    assert first.environment.command_timeout == 90.0
    assert first.environment.git is not None
    assert (first.environment.git.ref, first.environment.git.sparse) == ("1234567", ("src", "docs"))
    assert first.environment.git.shallow
    assert first.environment.mcp_servers["tape"] == {"type": "stdio", "command": "better-tape"}
    assert second.environment.mcp_servers["tape"] == {
        "type": "stdio",
        "command": "tape-measure",
        "args": ["--unit", "mm"],
        "env": {"LENGTH": "40"},
        "cwd": str((FIXTURES / "tools").absolute()),
        "timeout": 120.0,
    }
    assert second.environment.mcp_servers["remote"]["headers"] == {"X-Bench": "one"}
    assert [entry.dest for entry in first.grading_files] == [".answers/answer.txt", "check.py"]
    assert [entry.dest for entry in second.grading_files] == [".answers/answer.txt"]


def test_skills_that_are_not_declared_differ_from_no_skills() -> None:
    silent = read(one(f"prompt: x\n{GRADED}")).stimuli[0]
    none = read(one(f"prompt: x\n{GRADED}\nenvironment: {{skills: []}}")).stimuli[0]
    assert silent.environment.skills is None
    assert none.environment.skills == ()
    assert silent.environment.empty
    assert none.environment.empty


def test_older_files_mean_what_they_meant() -> None:
    found = read_spec(FIXTURES / "older.eval.yaml")
    assert (found.spec.defaults.runs, found.spec.defaults.timeout) == (0, 120.0)
    assert (found.spec.defaults.executor, found.spec.defaults.model) == ("copilot-sdk", "at-the-top")
    (stimulus,) = found.spec.stimuli
    assert stimulus.constraints.max_duration == 1.5
    assert [grader.weight for grader in stimulus.graders] == [None, 2.0]
    assert stimulus.graders[0].config == {"pattern": "kg"}
    assert [(one.code, one.place.line) for one in found.findings if one.place] == [
        ("ignored-key", 3),
        ("ignored-key", 4),
        ("older-key", 9),
        ("ignored-key", 18),
        ("renamed-key", 19),
        ("stray-grader-key", 22),
        ("stray-grader-key", 23),
    ]


def test_config_and_defaults_together_are_merged_and_told() -> None:
    text = one(f"prompt: x\n{GRADED}", "config: {runs: 3, model: a}\ndefaults: {runs: 5}")
    spec = read(text)
    assert (spec.defaults.runs, spec.defaults.model) == (5, "a")
    assert [finding.code for finding in findings(text, "warning")] == ["given-twice"]


def test_conversations_aliases_and_merge_keys() -> None:
    spec = read_spec(FIXTURES / "conversation.eval.yaml").spec
    first, second, merged = spec.stimuli
    assert first.graders == second.graders
    assert first.graders[0].turn == 1
    assert len(second.turns) == 3
    assert (merged.prompt, len(merged.graders)) == ("Only a stool.", 1)
    assert merged.tags == {"kind": ("talk", "slow")}
    assert first.environment.git is not None
    assert (first.environment.git.type, first.environment.git.source) == (
        "clone",
        "https://timber.invalid/yard.git",
    )


def test_a_named_environment_is_read_against_the_spec_and_its_servers_against_the_project() -> None:
    first = read_spec(FIXTURES / "conversation.eval.yaml").spec.stimuli[0]
    assert [ref.folder for ref in first.environment.skills or ()] == [
        FIXTURES / "../skills/planing",
        FIXTURES / "../skills/measuring",
    ]
    assert first.environment.mcp_servers["saw"]["cwd"] == str(FIXTURES.parent)
    assert first.environment.mcp_servers["saw"]["timeout"] == 120.0


def test_an_unknown_environment_names_those_there_are() -> None:
    project = Project(file=None, folder=Path("/"), environments={"workshop": {}, "bare": {}})
    with pytest.raises(SpecError) as caught:
        read(one(f"prompt: x\n{GRADED}\nenvironment: workshp"), project=project)
    (finding,) = caught.value.findings
    assert finding.code == "unknown-environment"
    assert "Did you mean 'workshop'?" in finding.message
    assert "bare, workshop" in finding.message
    assert str(finding.place) == f"{FILE}:5:18"


@pytest.mark.parametrize(
    ("text", "code", "line", "words"),
    [
        ("", "wrong-type", 1, "not nothing"),
        ("- a", "wrong-type", 1, "a list"),
        ("name: x", "no-stimuli", 1, "at least one"),
        ("stimuli: []", "no-stimuli", 1, "at least one"),
        ("stimuli: {}", "wrong-type", 1, "must be a list, not a map"),
        (
            one(f"prompt: x\nsimulation: {{tool_overrides: {{bash: x}}}}\n{GRADED}"),
            "unsupported-key",
            4,
            "`simulation` is not supported",
        ),
        (
            one(f"prompt: x\n{GRADED}", "defaults: {judge_provider: {type: azure, url: x}}"),
            "wrong-type",
            1,
            "--judge-url (or VALKYRIE_JUDGE_URL)",
        ),
        ("stimuli: [text]", "wrong-type", 1, "must be a map, not text"),
        ("tasks: [a]\nskill: b", "foreign-format", 1, "waza"),
        ("variants: {a: {}}\nevals: [b]", "foreign-format", 1, "experiment"),
        (one(GRADED), "missing-key", 2, "no `prompt`"),
        (one(f"prompt: x\nturns: [y]\n{GRADED}"), "prompt-and-turns", 4, "keep one"),
        (one(f"turns: []\n{GRADED}"), "wrong-type", 3, "at least one"),
        (one(f"prompt: '  '\n{GRADED}"), "empty-prompt", 3, "empty"),
        (one("prompt: x\ngraders: []"), "no-graders", 4, "'a' has no graders"),
        (one("prompt: x"), "no-graders", 2, "'a' has no graders"),
        (one("prompt: x\ngraders: [completed]"), "wrong-type", 4, "- type: completed"),
        (one("prompt: x\ngraders: [{config: {}}]"), "missing-key", 4, "no `type`"),
        (one("prompt: x\ngraders: [{type: a, config: 3}]"), "wrong-type", 4, "the number 3"),
        (one("prompt: x\ngraders: [{type: a, turn: 1}]"), "turn-out-of-range", 4, "only turn 0"),
        (one("prompt: x\ngraders: [{type: a, turn: -1}]"), "bad-value", 4, "0 or more"),
        (one("prompt: x\ngraders: [{type: a, weight: x}]"), "wrong-type", 4, "a number, not text"),
        (one(f"prompt: x\n{GRADED}\ntimeout: 600"), "duration-without-unit", 5, "`600s`"),
        (one(f"prompt: x\n{GRADED}", "defaults: {timeout: 2 weeks}"), "bad-duration", 1, "a unit"),
        (one(f"prompt: x\n{GRADED}", "defaults: {timeout: 0s}"), "bad-duration", 1, "longer"),
        (one(f"prompt: x\n{GRADED}", "defaults: {runs: -1}"), "bad-value", 1, "0 or more"),
        (one(f"prompt: x\n{GRADED}", "defaults: {runs: '3'}"), "wrong-type", 1, "whole number, not text"),
        (one(f"prompt: x\n{GRADED}", "scoring: {threshold: 80}"), "bad-value", 1, "between 0 and 1"),
        (one(f"prompt: x\n{GRADED}", "scoring: {weights: {completed: -1}}"), "bad-value", 1, "0 or more"),
        (one(f"prompt: x\n{GRADED}", "scoring: {weights: [1]}"), "wrong-type", 1, "a map"),
        (one(f"prompt: x\n{GRADED}\ntags: smoke"), "wrong-type", 5, "a map"),
        (one(f"prompt: [x]\n{GRADED}"), "wrong-type", 3, "must be text, not a list"),
        (one(f"prompt: x\n{GRADED}\nenvironment: [a]"), "wrong-type", 5, "must be a map"),
        (
            one(f"prompt: x\n{GRADED}\nenvironment: {{files: [{{src: a}}]}}"),
            "environment-file-missing-field",
            5,
            "no `dest`",
        ),
        (one(f"prompt: x\n{GRADED}\nenvironment: {{files: [a]}}"), "wrong-type", 5, "{src, dest}"),
        (one(f"prompt: x\n{GRADED}\nenvironment: {{git: {{ref: main}}}}"), "missing-key", 5, "`source`"),
        (
            one(f"prompt: x\n{GRADED}\nenvironment: {{git: {{type: svn, source: .}}}}"),
            "bad-value",
            5,
            "worktree or clone",
        ),
        (one(f"prompt: x\n{GRADED}\nenvironment: {{mcpServers: {{a: {{}}}}}}"), "missing-key", 5, "neither"),
        (
            one(f"prompt: x\n{GRADED}\nenvironment: {{mcpServers: {{a: {{type: pipe, command: x}}}}}}"),
            "bad-value",
            5,
            "stdio",
        ),
        (one(f"prompt: x\n{GRADED}\nconstraints: {{max_turns: many}}"), "wrong-type", 5, "whole number"),
        (one(f"prompt: x\n{GRADED}", "environment: nowhere"), "unknown-environment", 1, "nowhere"),
        (
            one(f"prompt: x\n{GRADED}", "environment: ${NOT_SET_ANYWHERE}"),
            "unset-variable",
            1,
            "--param NOT_SET",
        ),
        (
            f"stimuli:\n- {{name: a, prompt: x, {GRADED}}}\n- {{name: a, prompt: y, {GRADED}}}",
            "duplicate-stimulus",
            3,
            "first at 2:3",
        ),
    ],
)
def test_faults_are_told_with_their_place(text: str, code: str, line: int, words: str) -> None:
    found = findings(text)
    assert (code, line) in [(one.code, one.place.line) for one in found if one.place], found
    assert any(words in one.message for one in found), found


def test_all_faults_are_told_at_once() -> None:
    text = one("graders: []\ntimeout: 5", "scoring: {threshold: 2}\ndefaults: {runs: x}")
    assert [(one.code, one.place.line) for one in findings(text) if one.place] == [
        ("bad-value", 1),
        ("wrong-type", 2),
        ("missing-key", 4),
        ("no-graders", 5),
        ("duration-without-unit", 6),
    ]


def test_constraints_alone_are_something_to_check() -> None:
    text = one("prompt: x\nconstraints: {max_turns: 3}")
    assert read(text).stimuli[0].graders == ()
    assert [finding.code for finding in findings(text, "warning")] == ["no-graders"]


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        (one(f"prompt: x\n{GRADED}\nrubrik: [a]"), "rubrik", "Did you mean 'rubric'?"),
        (one(f"prompt: x\n{GRADED}", "stimulus: 3"), "stimulus", "Did you mean 'stimuli'?"),
        (one(f"prompt: x\n{GRADED}", "defaults: {modle: a}"), "modle", "Did you mean 'model'?"),
        (one(f"prompt: x\n{GRADED}", "scoring: {treshold: 1}"), "treshold", "Did you mean 'threshold'?"),
        (one(f"prompt: x\n{GRADED}\nconstraints: {{max_turn: 1}}"), "max_turn", "Did you mean 'max_turns'?"),
        (one(f"prompt: x\n{GRADED}\nenvironment: {{skils: [a]}}"), "skils", "Did you mean 'skills'?"),
        (one("prompt: x\ngraders: [{type: a, wieght: 1}]"), "wieght", "Did you mean 'weight'?"),
        (one(f"prompt: x\n{GRADED}\nzebra: 1"), "zebra", "Known: "),
    ],
)
def test_unknown_keys_are_warned_of(text: str, key: str, hint: str) -> None:
    (warning,) = findings(text, "warning")
    assert f"`{key}`" in warning.message
    assert hint in warning.message


def test_other_peoples_keys_are_told_once() -> None:
    entries = "\n".join(f"- {{name: s{n}, prompt: x, expect_activation: true, {GRADED}}}" for n in range(9))
    assert [one.code for one in findings(f"stimuli:\n{entries}", "warning")] == ["ignored-key"]


def test_a_name_that_is_not_given_is_the_folders() -> None:
    assert read(one(f"prompt: x\n{GRADED}")).name == "shelf"


def test_a_missing_file_and_a_folder_are_told() -> None:
    for path in (Path("/nowhere/eval.yaml"), FIXTURES):
        spec, found = examine(path)
        assert spec is None
        assert [one.code for one in found] == ["missing-file"]
        with pytest.raises(SpecError, match=str(path)):
            read_spec(path)


def test_a_patch_is_laid_over_the_file() -> None:
    text = one(
        f"prompt: x\n{GRADED}\nenvironment: {{skills: [own], files: [{{src: a, dest: a}}]}}",
        "config: {runs: 3, model: a}\nenvironment: {skills: [shared], files: [{src: r, dest: r}]}",
    )
    patch = {
        "$base": "/lab",
        "defaults": {"model": "b"},
        "environment": {"skills": ["skills/x"], "files": [{"src": "p", "dest": "p"}]},
        "scoring": {"threshold": 0.5},
    }
    spec = read(text, patch=patch)
    (stimulus,) = spec.stimuli
    assert (spec.defaults.runs, spec.defaults.model, spec.scoring.threshold) == (3, "b", 0.5)
    assert [ref.folder for ref in stimulus.environment.skills or ()] == [Path("/lab/skills/x")]
    assert [entry.source for entry in stimulus.environment.files] == [Path("/lab/p"), FILE.parent / "a"]


def test_a_patch_with_no_skills_takes_every_skill_away() -> None:
    text = one(f"prompt: x\n{GRADED}\nenvironment: {{skills: [own]}}", "environment: {skills: [shared]}")
    assert read(text, patch={"environment": {"skills": []}}).stimuli[0].environment.skills == ()


def test_a_patch_keeps_the_rest_of_a_named_environment() -> None:
    spec = read_spec(FIXTURES / "conversation.eval.yaml", patch={"environment": {"skills": []}}).spec
    assert spec.stimuli[0].environment.skills == ()
    assert "saw" in spec.stimuli[0].environment.mcp_servers
    assert spec.stimuli[0].environment.files[0] == FileEntry(
        "files/plank.txt", "plank.txt", FIXTURES, spec.stimuli[0].environment.files[0].place
    )


def test_a_stimulus_adds_skills_or_wants_none(tmp_path: Path) -> None:
    from valkyrie.specs.reader import read_text

    text = """
name: skills
environment: {skills: [common]}
stimuli:
  - {name: same, prompt: hi, graders: [{type: completed}]}
  - {name: more, prompt: hi, graders: [{type: completed}], environment: {skills: [own]}}
  - {name: none, prompt: hi, graders: [{type: completed}], environment: {skills: []}}
"""
    spec = read_text(text, tmp_path / "eval.yaml").spec
    found = [[skill.path for skill in one.environment.skills or ()] for one in spec.stimuli]
    assert found == [["common"], ["common", "own"], []]
    assert spec.stimuli[2].environment.skills == ()


NEWER = """
name: newer
artifacts: {include: [out/*]}
graders: [{type: completed}]
agent_environment: {env: {MODE: fast, LEVEL: 3}, skills: [a]}
stimuli:
  - name: one
    prompt: p
    supported_executors: [claude-cli]
    agent_environment: {env: {MODE: slow}, files: [{src: x, dest: y, dest_root: workspace}]}
    artifacts: {include: [more/*], exclude: [more/not]}
    golden_patch: {path: fix.patch}
    golden_command: {command: make fix}
    golden_trajectory: {inline: {schema_version: ATIF-v1.6, steps: []}}
    graders: [{type: exit-success}]
  - name: two
    prompt: q
    golden_command: make
    golden_trajectory: good.json
"""


def test_keys_of_newer_versions(tmp_path: Path) -> None:
    spec = read_text(NEWER, tmp_path / "eval.yaml").spec
    one, two = spec.stimuli
    assert dict(one.environment.env) == {"MODE": "slow", "LEVEL": "3"}
    assert [ref.path for ref in one.environment.skills or ()] == ["a"]
    assert one.artifacts_include == ("out/*", "more/*") and one.artifacts_exclude == ("more/not",)
    assert [grader.type for grader in one.graders] == ["exit-success", "completed"]
    assert [grader.type for grader in two.graders] == ["completed"]
    assert one.supported_executors == ("claude-cli",)
    assert (one.golden_command, two.golden_command) == ("make fix", "make")
    assert one.golden_trajectory == {"schema_version": "ATIF-v1.6", "steps": []}
    assert two.golden_trajectory_file is not None and two.golden_trajectory_file.src == "good.json"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("agent_environment: {env", "environment: {}\nagent_environment: {env", "mean the same; keep"),
        ("dest_root: workspace", "dest_root: home", "files go into the workspace"),
        ("MODE: slow", "'A B': slow", "no name of a variable"),
        ("name: newer", "name: newer\ndefaults: {executor: ''}", "`executor` is empty"),
        ("name: newer", "name: newer\ndefaults: {executor: null}", "`executor` is empty"),
    ],
)
def test_mistakes_in_keys_of_newer_versions(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        read_text(NEWER.replace(old, new, 1), tmp_path / "eval.yaml")


def test_an_experiment_may_say_agent_environment(tmp_path: Path) -> None:
    (tmp_path / "eval.yaml").write_text(NEWER)
    text = """
name: x
evals: [eval.yaml]
vary: [/agent_environment/skills]
variants: {on: {agent_environment: {skills: [b]}}, off: {environment: {skills: []}}}
"""
    (tmp_path / "x.experiment.yaml").write_text(text)
    found = read_experiment(tmp_path / "x.experiment.yaml")
    assert found.vary == ("/environment/skills",)
    assert found.variants["on"].patch == {"environment": {"skills": ["b"]}}
