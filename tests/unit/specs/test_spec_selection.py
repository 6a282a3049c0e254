"""Projects, suites and tags."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie.errors import UsageError
from valkyrie.specs.model import Project, SpecError
from valkyrie.specs.project import (
    choose_stimuli,
    discover,
    examine_project,
    find_evals,
    find_project,
    fits,
    parse_tags,
    read_project,
    suite_files,
    suite_of,
)
from valkyrie.specs.reader import read_spec

FIXTURES = Path(__file__).parent / "fixtures"
PARAMS = {"PROJECT_NAME": "our", "RUNS": "4", "MODEL": "m", "ENVIRONMENT": "bare", "SERVICE": "api"}


def write(folder: Path, text: str) -> Path:
    file = folder / ".vally.yaml"
    file.write_text(text)
    return file


def names(files: list[Path]) -> list[str]:
    return [file.name.split(".")[0] for file in files]


def test_a_project_is_found_from_any_folder_below() -> None:
    project = find_project(FIXTURES / "evals" / "files")
    assert project.file == FIXTURES / ".vally.yaml"
    assert project.folder == FIXTURES
    assert (project.skills, project.evals, project.results) == (("skills/",), ("evals/",), "out/")
    assert project.plugins == {"graders": ("./graders.py",)}
    assert set(project.environments) == {"workshop", "bare"}
    assert project.suites["talks"].filter == {"kind": ("talk", "!slow")}
    assert project.suites["everything"].filter == {}


def test_without_a_file_everything_is_as_usual(tmp_path: Path) -> None:
    project = find_project(tmp_path)
    assert project == Project(file=None, folder=tmp_path)
    assert discover(project) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a", "must be a map"),
        ("suites: {a: {description: x}}", "needs `filter` or `evals`"),
        ("suites: {a: {filter: smoke}}", "must be a map"),
        ("paths: {evals: {a: b}}", "must be text"),
        ("environments: {a: {files: [{src: x}]}}", "no `dest`"),
        ("environments: [a]", "must be a map"),
    ],
)
def test_faults_of_a_project_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read_project(write(tmp_path, text))


def test_unknown_keys_of_a_project_file_are_warned_of(tmp_path: Path) -> None:
    _, notes = examine_project(write(tmp_path, "path: {}\nsuites: {a: {filters: {}, evals: x}}\n"))
    hints = [finding.message.partition(" Did you mean ")[2] for finding in notes.findings]
    assert hints == ["'filter'?", "'paths'?"]


def test_discovery_by_paths_and_names() -> None:
    assert names(discover(find_project(FIXTURES))) == [
        "conversation",
        "every-grader",
        "every-key",
        "older",
        "params",
    ]


def test_paths_may_be_globs(tmp_path: Path) -> None:
    for name in ("tools/A.x/tests/eval.yaml", "tools/B.y/eval.yaml", "other/eval.yaml"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    project = read_project(write(tmp_path, "paths: {evals: 'tools/*.x/tests/'}"))
    assert [file.parent.parent.name for file in discover(project)] == ["A.x"]
    assert len(find_evals([str(tmp_path / "other")], project)) == 1


def test_suites_choose_files_then_tags() -> None:
    project = find_project(FIXTURES)
    talks = suite_of(project, "talks")
    assert names(suite_files(project, talks)) == ["conversation", "older"]
    specs = [read_spec(file, params=PARAMS, project=project).spec for file in suite_files(project, talks)]
    chosen = choose_stimuli(specs, talks.filter or {})
    assert [(spec.name, [one.name for one in spec.stimuli]) for spec in chosen] == [
        ("conversation", ["first talk", "second talk"]),
        ("older", [one.name for one in specs[1].stimuli]),
    ]
    everything = suite_of(project, "everything")
    assert len(suite_files(project, everything)) == 5
    assert choose_stimuli(specs, everything.filter or {}) == specs


def test_a_suite_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'smoke'"):
        suite_of(find_project(FIXTURES), "smok")
    with pytest.raises(UsageError, match=r"no \.vally\.yaml"):
        suite_of(find_project(tmp_path), "smoke")


def test_a_suite_that_lists_what_is_missing(tmp_path: Path) -> None:
    project = read_project(write(tmp_path, "suites: {a: {evals: [x.yaml]}, b: {evals: ['*.yaml']}}"))
    with pytest.raises(UsageError, match=r"x\.yaml, which does not exist"):
        suite_files(project, project.suites["a"])
    with pytest.raises(UsageError, match="matches no eval file"):
        suite_files(project, project.suites["b"])


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        (["a=x"], {"a": ("x",)}),
        (["a=x,y", "b=z"], {"a": ("x", "y"), "b": ("z",)}),
        (["a=x", "a=y"], {"a": ("x", "y")}),
        (["a=!x"], {"a": ("!x",)}),
        (["a!=x,y"], {"a": ("!x", "!y")}),
        (["a = x , y"], {"a": ("x", "y")}),
        (["a=b=c"], {"a": ("b=c",)}),
    ],
)
def test_tags_of_a_command_line(given_: list[str], wanted: dict[str, tuple[str, ...]]) -> None:
    assert parse_tags(given_) == wanted


@pytest.mark.parametrize("text", ["", "a", "=x", "a=", "a=,", "a=!", "!=x"])
def test_tags_that_are_not_understood(text: str) -> None:
    with pytest.raises(UsageError, match="key=value"):
        parse_tags([text])


@pytest.mark.parametrize(
    ("wanted", "fitting"),
    [
        ({}, True),
        ({"tier": ("smoke",)}, True),
        ({"tier": ("full", "smoke")}, True),
        ({"tier": ("full",)}, False),
        ({"tier": ("smoke",), "cost": ("llm",)}, False),
        ({"cost": ("low",)}, True),
        ({"cost": ("!low",)}, False),
        ({"cost": ("!llm",)}, True),
        ({"other": ("!x",)}, True),
        ({"other": ("x",)}, False),
        ({"cost": ("free", "!low")}, False),
    ],
)
def test_and_across_tags_or_within(wanted: dict[str, tuple[str, ...]], fitting: bool) -> None:
    assert fits({"tier": ("smoke",), "cost": ("free", "low")}, wanted) is fitting


WORDS = st.text(
    st.characters(blacklist_characters="=,! \t\r\n\x0b\x0c\x1c\x1d\x1e\x1f\x85", categories=["L", "N", "P"]),
    min_size=1,
)


@given(st.dictionaries(WORDS, st.lists(WORDS, min_size=1, max_size=4)))
def test_a_value_and_its_negation_are_opposites(tags: dict[str, list[str]]) -> None:
    for key, values in tags.items():
        listed = ",".join(values)
        assert fits(tags, parse_tags([f"{key}={listed}"]))
        assert not fits(tags, parse_tags([f"{key}!={listed}"]))
        assert parse_tags([f"{key}!={listed}"]) == parse_tags(
            [f"{key}=" + ",".join(f"!{one}" for one in values)]
        )
