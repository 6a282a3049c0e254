"""Doubtful specs: one row per rule, and what comes close to a rule without breaking it."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.evals.lint.rules import LintOptions
from valkyrie.evals.lint.specs import lint_spec, lint_spec_file
from valkyrie.specs.model import Finding
from valkyrie.specs.reader import read_spec


def lint(tmp_path: Path, text: str, options: LintOptions | None = None) -> list[Finding]:
    file = tmp_path / "eval.yaml"
    file.write_text(text)
    return lint_spec_file(file, options)[1]


def stimulus(
    graders: str, more: str = "", prompt: str = "prompt: Fix the bug in add.py", head: str = ""
) -> str:
    """A spec of one stimulus; `graders` are YAML flow maps, one a line."""
    lines = "".join(f"      - {line}\n" for line in graders.strip().splitlines())
    extra = "".join(f"    {line}\n" for line in more.splitlines())
    return f"name: t\n{head}stimuli:\n  - name: s\n    {prompt}\n{extra}    graders:\n{lines}"


WORKS = "{type: run-command, config: {command: pytest}}"

DOUBTFUL = [
    ("unknown-grader-type", stimulus("{type: output-contain, config: {substring: x}}")),
    ("grader-config", stimulus("{type: output-matches, config: {}}")),
    ("grader-config", stimulus("{type: skill-invocation, config: {required: [a], disallowed: [a]}}")),
    ("invalid-regex", stimulus("{type: output-matches, config: {pattern: '(a'}}")),
    ("grader-config", stimulus("{type: output-matches, config: {pattern: a1b, patern: x}}")),
    ("stray-grader-key", stimulus("{type: prompt, prompt: Is it good?}", "rubric: [good]")),
    ("grader-name", stimulus("{type: run-command, name: Tests pass, config: {command: pytest}}")),
    ("grader-name", stimulus("{type: run-command, name: unit/tests, config: {command: pytest}}")),
    ("grader-name", stimulus(f"{{name: same, {WORKS[1:]}\n{{name: same, {WORKS[1:]}")),
    ("regression-without-baseline", stimulus(WORKS, head="type: regression\n")),
    ("pairwise-grader", stimulus("{type: pairwise, config: {prompt: which}}")),
    ("program-prints-agent-output", stimulus("{type: program, config: {program: ./check}}")),
    ("vacuous-grader", stimulus("{type: output-matches, config: {pattern: '.*'}}")),
    ("vacuous-grader", stimulus("{type: transcript-matches, config: {pattern: '(foo)?'}}")),
    ("impossible-grader", stimulus(f"{WORKS}\n{{type: output-not-matches, config: {{pattern: 'x*'}}}}")),
    ("impossible-grader", stimulus("{type: output-matches, config: {pattern: '', negate: true}}")),
    ("impossible-grader", stimulus(f"{WORKS}\n{{type: token-budget, config: {{max: 0}}}}")),
    ("impossible-grader", stimulus(f"{WORKS}\n{{type: wall-time, config: {{max: 0s}}}}")),
    ("passes-without-work", stimulus("{type: output-not-contains, config: {substring: sorry}}")),
    ("passes-without-work", stimulus("{type: completed}\n{type: turn-count, config: {max: 5}}")),
    ("passes-without-work", stimulus("{type: tool-calls, config: {disallowed: [bash]}}")),
    ("prompt-holds-answer", stimulus("{type: output-contains, config: {substring: the BUG}}")),
    (
        "prompt-holds-answer",
        stimulus("{type: output-matches, config: {pattern: 'bug|error'}}\n{type: completed}"),
    ),
    ("doubly-escaped-pattern", stimulus(r"{type: output-matches, config: {pattern: 'a\\.py'}}")),
    ("doubly-escaped-pattern", stimulus(r"{type: output-matches, config: {pattern: '\\bfixed'}}")),
    ("doubly-escaped-pattern", stimulus(r"{type: output-not-matches, config: {pattern: 'x\\d+'}}")),
    (
        "doubly-escaped-pattern",
        stimulus(r"{type: tool-calls, config: {required: [{name: Bash, command: 'go\\s+test'}]}}"),
    ),
    ("path-outside-workspace", stimulus("{type: file-exists, config: {path: /app/out.txt}}")),
    ("path-outside-workspace", stimulus("{type: file-contains, config: {path: a/../../b, value: x}}")),
    ("command-with-space", stimulus("{type: run-command, config: {command: python -m pytest, args: [-q]}}")),
    ("tool-matches-nothing", stimulus(f"{WORKS}\n{{type: tool-calls, config: {{disallowed: ['^bsh$']}}}}")),
    ("tool-matches-nothing", stimulus(WORKS, "constraints: {reject_tools: [wite_file]}")),
    (
        "contradictory-graders",
        stimulus(
            "{type: output-contains, config: {substring: Done}}\n"
            "{type: output-not-contains, config: {substring: done}}"
        ),
    ),
    (
        "contradictory-graders",
        stimulus(
            "{type: output-contains, config: {substring: all done}}\n"
            "{type: output-not-matches, config: {pattern: 'done|ready'}}"
        ),
    ),
    (
        "contradictory-graders",
        stimulus(
            "{type: file-matches, config: {path: ./a.py, pattern: 'x+y'}}\n"
            "{type: file-matches, config: {path: a.py, pattern: 'x+y', negate: true}}"
        ),
    ),
    (
        "contradictory-graders",
        stimulus("{type: file-exists, config: {path: a}}\n{type: file-not-exists, config: {path: ./a}}"),
    ),
    (
        "contradictory-graders",
        stimulus(
            "{type: file-contains, config: {path: a, value: x}}\n{type: file-not-exists, config: {path: a}}"
        ),
    ),
    ("contradictory-graders", stimulus("{type: diff-contains, config: {value: x}}\n{type: diff-empty}")),
    (
        "contradictory-graders",
        stimulus(WORKS, "constraints: {expect_skills: [greeting], reject_skills: ['*']}"),
    ),
    (
        "contradictory-graders",
        stimulus(
            "{type: skill-invocation, config: {required: [a]}}\n"
            "{type: skill-invocation, config: {disallowed: [a]}}"
        ),
    ),
    (
        "contradictory-graders",
        stimulus(
            "{type: tool-calls, config: {required: [{name: '^bash$', command: ls}]}}",
            "constraints: {reject_tools: [bash]}",
        ),
    ),
    (
        "contradictory-graders",
        stimulus("{type: tool-calls, config: {required: [bash]}}\n{type: tool-call-count, config: {max: 0}}"),
    ),
    ("contradictory-graders", stimulus(WORKS, "constraints: {max_turns: 1}", "turns: [one, two]")),
    ("passes-without-work", stimulus("{type: completed}", "constraints: {expect_skills: [greeting]}")),
    (
        "turn-out-of-range",
        stimulus("{type: output-matches, config: {pattern: abc}, turn: 2}", prompt="turns: [a, b]"),
    ),
    ("no-judge-model", stimulus("{type: prompt, config: {prompt: Is it good?}}", "rubric: [good]")),
    (
        "unsupported-executor",
        stimulus(WORKS, "supported_executors: [claude-cli]", head="defaults: {executor: mock}\n"),
    ),
    ("constraint-unscored", stimulus(WORKS, "constraints: {expect_skills: [greeting]}")),
    ("budget-above-timeout", stimulus(WORKS, "timeout: 30s\nconstraints: {max_duration: 1m}")),
    ("runs-zero", stimulus(WORKS, head="defaults: {runs: 0}\n")),
    ("unused-weight", stimulus(WORKS, head="scoring: {weights: {run-comand: 1}}\n")),
    ("weights-sum", stimulus(WORKS, head="scoring: {weights: {run-command: 2}}\n")),
    ("weights-all-zero", stimulus(WORKS, head="scoring: {weights: {run-command: 0}}\n")),
    ("unknown-executor", stimulus(WORKS, head="defaults: {executor: claude-cod}\n")),
    ("unknown-executor", stimulus(WORKS, head="defaults: {executor: 'agent:./gone'}\n")),
    ("environment-file-missing", stimulus(WORKS, "environment: {files: [{src: gone, dest: a}]}")),
    ("environment-file-missing", stimulus(WORKS, "grading_environment: {files: [{src: gone, dest: a}]}")),
    ("environment-file-outside", stimulus(WORKS, "environment: {files: [{src: eval.yaml, dest: ../a}]}")),
    ("environment-git", stimulus(WORKS, "environment: {git: {type: worktree, source: gone}}")),
    ("environment-git", stimulus(WORKS, "environment: {git: {type: clone, source: 'git@h.example:o/r'}}")),
    ("missing-skill", stimulus(WORKS, "environment: {skills: [gone]}")),
    ("environment-file-missing", stimulus(WORKS, f"environment: {{skills: [{'a' * 300}]}}")),
    ("unknown-environment", stimulus(WORKS, "environment: gone")),
    ("duration-without-unit", stimulus(WORKS, "timeout: 600")),
    ("bad-value", stimulus(WORKS, head="scoring: {threshold: 1.5}\n")),
    (
        "vacuous-grader",
        stimulus(
            f"{WORKS}\n{{type: file-exists, config: {{path: eval.yaml}}}}",
            "environment: {files: [{src: eval.yaml, dest: ./eval.yaml}]}",
        ),
    ),
]
FINE = [
    ("grader-name", stimulus("{type: run-command, name: unit-tests-2, config: {command: pytest}}")),
    (
        "grader-name",  # one grader of several stimuli
        "name: t\ngraders: [{type: completed, name: done}]\nstimuli:\n"
        "  - {name: a, prompt: x}\n  - {name: b, prompt: y}\n",
    ),
    ("regression-without-baseline", stimulus(WORKS, head="type: capability\n")),
    ("vacuous-grader", stimulus("{type: output-matches, config: {pattern: '^$'}}")),
    ("doubly-escaped-pattern", stimulus(r"{type: output-matches, config: {pattern: 'C:\\Users\\dev'}}")),
    ("doubly-escaped-pattern", stimulus(r"{type: output-matches, config: {pattern: '\bfixed\b \d+\.'}}")),
    ("doubly-escaped-pattern", stimulus(r"{type: output-matches, config: {pattern: '\\frac'}}")),
    ("path-outside-workspace", stimulus("{type: file-exists, config: {path: a..b/out.txt}}")),
    ("command-with-space", stimulus("{type: run-command, config: {command: python -m pytest}}")),
    ("impossible-grader", stimulus(f"{WORKS}\n{{type: tool-call-count, config: {{max: 0}}}}")),
    (
        "passes-without-work",
        stimulus(f"{WORKS}\n{{type: output-not-contains, config: {{substring: sorry}}}}"),
    ),
    (
        "prompt-holds-answer",
        stimulus(
            "{type: output-contains, config: {substring: bug}}\n"
            "{type: output-contains, config: {substring: fixed}}"
        ),
    ),
    ("prompt-holds-answer", stimulus(f"{WORKS}\n{{type: output-contains, config: {{substring: bug}}}}")),
    (
        "tool-matches-nothing",
        stimulus(f"{WORKS}\n{{type: tool-calls, config: {{disallowed: ['(?i)^BASH$']}}}}"),
    ),
    (
        "tool-matches-nothing",
        stimulus(
            WORKS, "constraints: {reject_tools: [deploy]}\nenvironment: {mcpServers: {x: {command: y}}}"
        ),
    ),
    (
        "tool-matches-nothing",
        stimulus(WORKS, "constraints: {reject_tools: [deploy]}", head="defaults: {executor: 'agent:mine'}\n"),
    ),
    (
        "contradictory-graders",
        stimulus(
            "{type: output-contains, config: {substring: all done}}\n"
            "{type: output-not-matches, config: {pattern: '^all done$'}}"
        ),
    ),
    (
        "contradictory-graders",
        stimulus(
            "{type: output-contains, config: {substring: done}}\n"
            "{type: output-not-contains, config: {substring: Done, case_sensitive: true}}"
        ),
    ),
    (
        "contradictory-graders",
        stimulus(
            "{type: diff-empty, turn: 0}\n"
            "{type: diff-contains, config: {value: fixed}}\n"
            "{type: diff-contains, config: {value: fixed, turn: 1}}",
            prompt="turns: [wait, go]",
        ),
    ),
    (
        "contradictory-graders",
        stimulus(
            "{type: tool-calls, config: {disallowed: [bash]}, turn: 0}\n"
            "{type: tool-calls, config: {required: [bash]}, turn: 1}",
            prompt="turns: [wait, go]",
        ),
    ),
    (
        "contradictory-graders",
        stimulus(
            "{type: tool-calls, config: {required: [bash]}}\n"
            "{type: tool-calls, config: {disallowed: [{name: bash, command: 'rm -rf'}]}}"
        ),
    ),
    (
        "contradictory-graders",
        stimulus(  # read_bash fits the first and not the second
            "{type: tool-calls, config: {required: [bash]}}\n"
            "{type: tool-calls, config: {disallowed: [^bash$]}}"
        ),
    ),
    ("weights-sum", stimulus(WORKS, head="scoring: {weights: {run-command: 1}}\n")),
    (
        "unused-weight",
        stimulus("{type: turn-count, config: {max: 3}}", head="scoring: {weights: {turn-count: 1}}\n"),
    ),
    ("unknown-executor", stimulus(WORKS, head="defaults: {executor: copilot-sdk}\n")),
    (
        "no-judge-model",
        stimulus("{type: prompt, config: {prompt: good?}}", head="defaults: {judge_model: m}\n"),
    ),
]


def names(cases: list[tuple[str, str]]) -> list[str]:
    return [f"{at}-{code}" for at, (code, _) in enumerate(cases)]


@pytest.mark.parametrize(("code", "text"), DOUBTFUL, ids=names(DOUBTFUL))
def test_it_is_found(tmp_path: Path, code: str, text: str) -> None:
    found = [finding for finding in lint(tmp_path, text) if finding.code == code]
    assert found
    assert all(finding.place and finding.place.file == tmp_path / "eval.yaml" for finding in found)


@pytest.mark.parametrize(("code", "text"), FINE, ids=names(FINE))
def test_it_is_not_found_where_it_is_not(tmp_path: Path, code: str, text: str) -> None:
    assert code not in [finding.code for finding in lint(tmp_path, text)]


def test_suggestions(tmp_path: Path) -> None:
    (found,) = lint(tmp_path, stimulus("{type: output-contain, config: {substring: x}}"))
    assert "Did you mean 'output-contains'?" in found.message
    found = lint(tmp_path, stimulus(WORKS, "constraints: {reject_tools: [wite_file]}"))[0]
    assert "Did you mean 'write_file'?" in found.message
    found = lint(tmp_path, stimulus(WORKS, head="scoring: {weights: {run-comand: 1}}\n"))[0]
    assert "Did you mean 'run-command'?" in found.message


def test_with_mock_an_echo_is_what_one_wants(tmp_path: Path) -> None:
    text = stimulus("{type: output-contains, config: {substring: bug}}", head="defaults: {executor: mock}\n")
    assert [finding.severity for finding in lint(tmp_path, text)] == ["info"]


def test_all_that_is_wrong_is_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = stimulus(
        "{type: nonsense}\n{type: output-matches, config: {}}\n"
        "{type: output-matches, config: {pattern: '('}}",
        head="deskription: x\n",
    )
    found = lint(tmp_path, text)
    assert [finding.code for finding in found] == [
        "unknown-key",
        "unknown-grader-type",
        "grader-config",
        "invalid-regex",
    ]
    lines = [finding.place.line for finding in found if finding.place]
    assert lines == sorted(lines)


def test_with_a_threshold_a_contradiction_only_costs_points(tmp_path: Path) -> None:
    graders = "{type: diff-contains, config: {value: x}}\n{type: diff-empty}"
    assert [one.severity for one in lint(tmp_path, stimulus(graders))] == ["error"]
    mild = stimulus(graders, head="scoring: {threshold: 0.5}\n")
    assert [one.severity for one in lint(tmp_path, mild)] == ["warning"]


def test_equal_prompts_in_equal_surroundings(tmp_path: Path) -> None:
    head = "name: t\nstimuli:\n"
    one = f"  - {{name: a, prompt: Do it, graders: [{WORKS}]}}\n"
    same = f"  - {{name: b, prompt: Do it, graders: [{WORKS}]}}\n"
    other = f"  - {{name: c, prompt: Do it, graders: [{WORKS}], environment: {{commands: [ls]}}}}\n"
    found = lint(tmp_path, head + one + same + other)
    assert [(finding.code, finding.place and finding.place.line) for finding in found] == [
        ("duplicate-prompt", 4)
    ]


def test_equal_prompts_that_differ_by_skill_are_a_remark(tmp_path: Path) -> None:
    stimuli = "".join(
        f"  - {{name: {key}, prompt: Do, graders: [{{type: skill-invocation, config: {{{key}: [tidy]}}}}]}}\n"
        for key in ("required", "disallowed")
    )
    found = [one for one in lint(tmp_path, f"name: t\nstimuli:\n{stimuli}") if one.code == "duplicate-prompt"]
    assert [one.severity for one in found] == ["info"]
    off = f"  - {{name: on, prompt: Do, graders: [{WORKS}]}}\n"
    off += f"  - {{name: off, prompt: Do, environment: {{skills: []}}, graders: [{WORKS}]}}\n"
    assert not lint(tmp_path, f"name: t\nstimuli:\n{off}")


def test_skills_that_are_not_offered(tmp_path: Path) -> None:
    (tmp_path / "tidy").mkdir()
    (tmp_path / "tidy" / "SKILL.md").write_text("---\nname: tidy\ndescription: Tidies.\n---\nTidy up.\n")
    graders = "{type: skill-invocation, config: {required: [tidi], disallowed: [other]}}"
    found = lint(tmp_path, stimulus(graders, "environment: {skills: [tidy]}"))
    assert [(one.code, one.severity) for one in found] == [
        ("skill-not-offered", "warning"),
        ("skill-not-offered", "info"),
    ]
    assert "Did you mean 'tidy'?" in found[0].message


def test_a_plugin_brings_its_type(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "class Mine:\n    type = 'mine'\n    def __init__(self, spec): pass\n"
        "    def grade(self, given): return True\n"
    )
    text = stimulus("{type: mine}")
    assert [finding.code for finding in lint(tmp_path, text)] == ["unknown-grader-type"]
    assert lint(tmp_path, text, LintOptions(grader_plugins=("mine.py",))) == []
    broken = lint(tmp_path, text, LintOptions(grader_plugins=("gone.py",)))
    assert [finding.code for finding in broken] == ["grader-plugin"]
    (tmp_path / ".vally.yaml").write_text("plugins: {graders: [mine.py]}\n")
    (tmp_path / "deep").mkdir()
    unloaded = lint(tmp_path / "deep", text)
    assert [(one.code, one.severity) for one in unloaded] == [("plugin-not-loaded", "info")]


def test_eval_asks_only_for_what_reading_did_not_say(tmp_path: Path) -> None:
    file = tmp_path / "eval.yaml"
    file.write_text(stimulus("{type: output-matches, config: {pattern: '.*'}}", head="deskription: x\n"))
    read = read_spec(file)
    assert [finding.code for finding in read.findings] == ["unknown-key"]
    assert [finding.code for finding in lint_spec(read)] == ["vacuous-grader"]
