"""Graders people bring along."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.grade.sample_transcripts import outcome, results_of, said, story
from valkyrie.errors import UsageError, UserError
from valkyrie.grade.graders import known_types, load_plugins, make_grader
from valkyrie.grade.protocol import GraderInput, GraderResult, Need
from valkyrie.specs.model import GraderSpec, SpecError

SIMPLE = """
class Loud:
    type = "loud"

    def grade(self, given):
        return given.transcript.output.isupper()
"""
WHOLE = """
from dataclasses import dataclass

from valkyrie.grade.protocol import GraderResult


@dataclass
class Length:
    spec: object
    type = "length"

    def __post_init__(self):
        if "max" not in self.spec.config:
            raise ValueError("`max` is missing.")

    async def grade(self, given):
        size = len(given.transcript.output)
        return GraderResult("ignored", "ignored", size <= self.spec.config["max"], 0.25, f"{size} characters")


def register_graders(registry):
    registry.register(Length)
    registry.register(Length, "size")
"""


def plugin(folder: Path, content: str, name: str = "my_graders.py") -> str:
    (folder / name).write_text(content)
    return name


async def test_a_class_in_a_file(tmp_path: Path) -> None:
    name = plugin(tmp_path, SIMPLE)
    spec = GraderSpec("loud", name="shouts")
    for output, expected in (("HEY", "pass"), ("hey", "fail")):
        found = await results_of([spec], story(said(output)), plugins=[name], base=tmp_path)
        assert [outcome(one) for one in found] == [expected]
        assert (found[0].name, found[0].type) == ("shouts", "loud")


async def test_a_file_that_registers(tmp_path: Path) -> None:
    name = plugin(tmp_path, WHOLE)
    specs = [GraderSpec("length", {"max": 2}), GraderSpec("size", {"max": 3}, weight=4)]
    found = await results_of(specs, story(said("hey")), plugins=[name], base=tmp_path)
    assert [(one.name, one.passed, one.score, one.weight) for one in found] == [
        ("length", False, 0.25, 1.0),
        ("size", True, 0.25, 4.0),
    ]


async def test_config_a_plugin_refuses_is_told_with_its_grader(tmp_path: Path) -> None:
    name = plugin(tmp_path, WHOLE)
    with pytest.raises(SpecError, match="length: `max` is missing"):
        await results_of([GraderSpec("length")], story(), plugins=[name], base=tmp_path)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("True", "pass"),
        ("{'passed': False, 'evidence': 'no'}", "fail"),
        ("{'passed': True, 'score': 2}", "error"),
        ("{'score': 1}", "error"),
        ("None", "error"),
        ("1 / 0", "error"),
    ],
)
async def test_what_a_plugin_may_return(tmp_path: Path, returned: str, expected: str) -> None:
    name = plugin(
        tmp_path, f"class G:\n    type = 'g'\n    def grade(self, given):\n        return {returned}\n"
    )
    found = await results_of([GraderSpec("g")], story(said("x")), plugins=[name], base=tmp_path)
    assert [outcome(one) for one in found] == [expected]


class Installed:
    """What a package may offer."""

    metadata = {"name": "installed"}  # noqa: RUF012
    needs = (Need.WORKSPACE,)

    def grade(self, given: GraderInput) -> GraderResult:
        return GraderResult("x", "x", given.workspace is not None, 1.0, "looked")


@pytest.fixture
def module() -> ModuleType:
    made = ModuleType("valkyrie_test_plugin")
    made.Installed = Installed  # type: ignore[attr-defined]
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


async def test_module_and_class(module: ModuleType) -> None:
    registry = load_plugins([f"{module.__name__}:Installed"])
    assert registry.types() == ["installed"]
    assert "installed" in known_types(registry)
    assert make_grader(GraderSpec("installed"), registry).needs == {Need.WORKSPACE}


async def test_a_plugin_may_replace_a_built_in(tmp_path: Path) -> None:
    name = plugin(tmp_path, SIMPLE.replace('"loud"', '"completed"'))
    found = await results_of([GraderSpec("completed")], story(said("HEY")), plugins=[name], base=tmp_path)
    assert [outcome(one) for one in found] == ["pass"]


@pytest.mark.parametrize(
    ("content", "error", "told"),
    [
        ("", UserError, "no class with `type`"),
        ("import nothing_of_that_name", UserError, "importing it failed"),
        ("def register_graders(registry):\n    registry.register(object())", UserError, "has no `type`"),
        (
            "class G:\n    type = 'g'\ndef register_graders(r):\n    r.register(G)",
            UserError,
            "no method `grade",
        ),
    ],
)
def test_broken_plugins(tmp_path: Path, content: str, error: type[Exception], told: str) -> None:
    name = plugin(tmp_path, content)
    with pytest.raises(error, match=told):
        load_plugins([name], tmp_path)


def test_plugins_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        load_plugins(["nope.py"], tmp_path)
    with pytest.raises(UsageError, match="no plugin"):
        load_plugins(["nope"], tmp_path)
