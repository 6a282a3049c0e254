"""Aider Polyglot: exercises to tasks, every test of them switched on. The exercises are made up."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.exercise_repository import make_clone
from valkyrie.benchmarks.named import aider_polyglot
from valkyrie.benchmarks.named import conversion as writing
from valkyrie.benchmarks.named.conversion import ConverterOptions, TaskDraft
from valkyrie.errors import UsageError


def convert(clone: Path) -> dict[str, TaskDraft]:
    drafts = aider_polyglot.convert(clone, ConverterOptions("aider-polyglot"))
    return {draft.id.split("_")[1]: draft for draft in drafts}


@pytest.fixture
def drafts(tmp_path: Path) -> dict[str, TaskDraft]:
    return convert(make_clone(tmp_path / "clone"))


def test_every_language_is_there(drafts: dict[str, TaskDraft], tmp_path: Path) -> None:
    assert sorted(drafts) == ["cpp", "go", "java", "javascript", "python", "rust"]
    assert {draft.datasets for draft in drafts.values()} == {(language,) for language in drafts}
    writing.write_tasks(drafts.values(), tmp_path / "tasks", "aider-polyglot")
    for script in (tmp_path / "tasks").rglob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)
        assert "@" not in script.read_text()


def test_docs_are_joined_in_order(drafts: dict[str, TaskDraft]) -> None:
    told = drafts["cpp"].instruction
    order = [told.index(part) for part in ("Introduction", "{x}` and @PLACE@", "# More", "/app/double-it")]
    assert order == sorted(order)
    assert "`double_it.cpp`, `double_it.h`" in told


HIDDEN = {
    "python": ["double_it_test.py"],
    "cpp": ["double_it_test.cpp"],
    "go": ["double_it_test.go", "cases_test.go"],
    "javascript": ["double-it.spec.js"],
    "java": ["src/test/java/DoubleTest.java"],
    "rust": ["tests/double-it.rs"],
}


@pytest.mark.parametrize("language", HIDDEN)
def test_tests_are_hidden_and_put_back(language: str, drafts: dict[str, TaskDraft]) -> None:
    draft = drafts[language]
    for name in HIDDEN[language]:
        assert f"app/{name}" not in draft.environment
        assert f"exercise/{name}" in draft.tests
    assert not [name for name in draft.environment if ".meta" in name or ".docs" in name]
    solution = [name for name in draft.tests if name.startswith("exercise/")]
    assert not {"exercise/double_it.py", "exercise/src/lib.rs", "exercise/double-it.js"} & {*solution}


def test_every_test_is_switched_on(drafts: dict[str, TaskDraft]) -> None:
    def graded(language: str, name: str) -> str:
        content = drafts[language].tests[f"exercise/{name}"]
        return content.decode() if isinstance(content, bytes) else content

    javascript = graded("javascript", "double-it.spec.js")
    assert javascript.count("test(") == 2 and "xtest" not in javascript and "xit(" not in javascript
    assert "describe('later'" in javascript
    java = graded("java", "src/test/java/DoubleTest.java")
    assert java.count("@Test") == 5 and "@Disabled\n" not in java and '"Remove' not in java
    assert "import org.junit.jupiter.api.Disabled;" in java and "@DisabledOnMars" in java
    commands = {language: str(draft.tests["test.sh"]) for language, draft in drafts.items()}
    assert "--include-ignored" in commands["rust"]
    assert "-DEXERCISM_RUN_ALL_TESTS=1" in commands["cpp"]
    assert "go test ./..." in commands["go"] and "npm run test" in commands["javascript"]


def test_build_files_are_the_published_ones(drafts: dict[str, TaskDraft]) -> None:
    for language, name in (
        ("cpp", "CMakeLists.txt"),
        ("go", "go.mod"),
        ("javascript", "package.json"),
        ("java", "gradlew"),
    ):
        assert f"app/{name}" in drafts[language].environment
        assert f"exercise/{name}" in drafts[language].tests
    rust = drafts["rust"]
    assert b"1.0.0" in bytes(rust.environment["app/Cargo.toml"])  # type: ignore[arg-type]
    assert b"1.0.1" in bytes(rust.tests["exercise/Cargo.toml"])  # type: ignore[arg-type]
    assert "Cargo.toml" not in rust.instruction


def test_examples_take_the_place_of_solutions(drafts: dict[str, TaskDraft]) -> None:
    placed = {
        language: sorted(name.removeprefix("files/") for name in draft.solution if name != "solve.sh")
        for language, draft in drafts.items()
    }
    assert placed == {
        "python": ["double_it.py"],
        "cpp": ["double_it.cpp"],
        "go": ["double_it.go"],
        "javascript": ["double-it.js"],
        "java": ["src/main/java/Double.java", "src/main/java/Extra.java"],
        "rust": ["src/lib.rs"],
    }


def test_authors_stay_with_the_task(drafts: dict[str, TaskDraft]) -> None:
    assert "somebody" in str(drafts["go"].tests["ATTRIBUTION.md"])
    assert "app/LICENSE" in drafts["javascript"].environment


def test_folders_that_are_no_clone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no exercises"):
        convert(tmp_path)
    clone = make_clone(tmp_path / "clone", "python")
    config = clone / "python/exercises/practice/double-it/.meta/config.json"
    for files, says in (
        ({"solution": ["../../x"]}, "no path in the exercise"),
        ({"solution": []}, "no file to edit"),
        ({"solution": "x"}, "no list of names"),
    ):
        config.write_text(json.dumps({"files": files}))
        with pytest.raises(UsageError, match=says):
            convert(clone)
