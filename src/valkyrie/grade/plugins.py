"""Graders people bring along: an installed entry point, `module:Class`, or a `.py` file.

What is named may be a class with `type` and `grade(given)`, a function `register_graders(registry)`, or a
file with either. `grade` may be a coroutine or not, and may return a GraderResult, a map with at least
`passed`, or true and false.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from valkyrie.errors import GraderError, UsageError, UserError
from valkyrie.grade.base import clipped
from valkyrie.grade.protocol import Given, Grader, GraderResult, Need
from valkyrie.grade.reported import result_of
from valkyrie.specs.model import GraderSpec
from valkyrie.suggest import did_you_mean

GROUP = "valkyrie.graders"
"""The entry point group; an entry's name is the type a spec names."""


class GraderRegistry:
    """Types that plugins added."""

    def __init__(self) -> None:
        self._made_by: dict[str, Any] = {}

    def register(self, grader: Any, type: str | None = None) -> None:
        """Add a grader's class under its own `type`, or another one. Built-in types may be replaced."""
        name = type or type_of(grader)
        if not name:
            raise UserError(
                f"the grader {_shown(grader)} has no `type`; name it: register(grader, 'my-type')."
            )
        if not callable(getattr(grader, "grade", None)):
            raise UserError(f"the grader {_shown(grader)} has no method `grade(given)`.")
        self._made_by[name] = grader

    def types(self) -> list[str]:
        """What specs may name because of these plugins."""
        return sorted(self._made_by)

    def get(self, name: str) -> Any:
        """What makes a grader of this type; None when no plugin does."""
        return self._made_by.get(name)


def load_plugins(specifiers: Iterable[str], base: Path | None = None) -> GraderRegistry:
    """The types these plugins add. Raises UsageError for a missing one, UserError for a broken one."""
    registry = GraderRegistry()
    for specifier in specifiers:
        _take(load_one(specifier, base), registry, specifier)
    return registry


def load_one(specifier: str, base: Path | None = None) -> Any:
    """The class, function or module a specifier stands for."""
    from valkyrie.plugins import load, load_file

    if specifier.endswith(".py"):
        return load_file(_file(specifier, base))
    return load(specifier, group=GROUP)


def installed_types() -> list[str]:
    """Types of installed packages; nothing is imported."""
    from valkyrie.plugins import names

    return names(GROUP)


def make_plugin_grader(made_by: Any, spec: GraderSpec) -> Grader:
    """A grader of a plugin; one that is written in the simple way is put into the shape of the others."""
    grader: Any = made_by
    try:
        if inspect.isclass(made_by):
            maker: Callable[..., Any] = made_by
            grader = maker(spec) if _takes_spec(maker) else maker()
        needs = frozenset(Need(need) for need in getattr(grader, "needs", ()))
    except (TypeError, KeyError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return PluginGrader(spec, grader, needs)


class PluginGrader:
    """Any object with `grade(given)`."""

    type: ClassVar[str] = ""

    def __init__(self, spec: GraderSpec, grader: Any, needs: frozenset[Need]) -> None:
        self.spec = spec
        self.grader = grader
        self.needs = needs  # type: ignore[misc]  # what a class of ours says, this says for the plugin's

    needs: ClassVar[frozenset[Need]] = frozenset()

    async def grade(self, given: Given) -> GraderResult:
        """What it found; anything but a result of one of the known forms is its error."""
        found = self.grader.grade(given)
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, GraderResult):
            return found
        if isinstance(found, bool):
            found = {"passed": found}
        if isinstance(found, Mapping):
            return result_of(found, self.spec)
        raise GraderError(
            f"it returned {clipped(repr(found), 100)}; a GraderResult, a map with `passed`, "
            "or true or false is expected."
        )


def type_of(grader: Any) -> str | None:
    """The type a class or object says it is."""
    name = getattr(grader, "type", None)
    if isinstance(name, str) and name:
        return name
    metadata = getattr(grader, "metadata", None)
    named = metadata.get("name") if isinstance(metadata, Mapping) else None
    return named if isinstance(named, str) and named else None


def _take(found: Any, registry: GraderRegistry, specifier: str) -> None:
    before = registry.types()
    if isinstance(found, ModuleType):
        if callable(registering := getattr(found, "register_graders", None)):
            registering(registry)
        else:
            for one in vars(found).values():
                if inspect.isclass(one) and one.__module__ == found.__name__ and _is_grader(one):
                    registry.register(one)
        if registry.types() == before:
            hint = did_you_mean(
                "register_graders", [name for name in vars(found) if not name.startswith("_")]
            )
            raise UserError(
                f"{specifier}: it has no class with `type` and `grade(given)`, "
                f"and no function register_graders(registry).{hint}"
            )
    elif inspect.isfunction(found):
        found(registry)
    else:
        registry.register(found)


def _is_grader(one: Any) -> bool:
    return type_of(one) is not None and callable(getattr(one, "grade", None))


def _takes_spec(made_by: Any) -> bool:
    """Whether a class is made with the spec, or with nothing."""
    parameters = list(inspect.signature(made_by).parameters.values())
    return any(
        one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL) for one in parameters
    )


def _file(said: str, base: Path | None) -> Path:
    """Beside the eval spec, or where the command was given."""
    path = Path(said).expanduser()
    places = [folder / path for folder in (base or Path(), Path())]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UsageError(
            f"grader plugin {said} is not there; it is looked for beside the eval spec and here."
        )
    return found.resolve()


def _shown(grader: Any) -> str:
    return getattr(grader, "__qualname__", None) or repr(grader)
