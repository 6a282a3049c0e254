"""Checks rules of the source tree that linters do not know: names, imports inside functions, docstrings.

    python scripts/check_structure.py            every rule, one line per violation
    python scripts/check_structure.py --counts   how far each rule is from its limit

A rule with a limit allows so many cases and no more: lower the limit when the tree gets better.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DATA = ("quickstart", "templates", "migrations")
"""Folders with code that is not part of the program: tasks, scaffolds, one file per schema version."""
NOT_GERUNDS = {"string", "setting", "pricing", "testing", "logging", "tracing", "streaming", "scaffolding"}
SAME_NAME: Mapping[str, str] = {}
"""Class names that two packages must both have, and why."""
RIDDLES = {"What", "Whether", "Where", "How", "Why", "Which", "Who", "Whose", "Whom"}
"""Words that begin a docstring without a verb."""
SMALL = 130
"""A module of at most so many lines with one importer beside it belongs into that importer."""
MOST_LOCAL_IMPORTS = 240
MOST_SINGLE_IMPORTERS = 25


class Violation(NamedTuple):
    """One place that breaks a rule, and what to do about it."""

    place: str
    advice: str

    def __str__(self) -> str:
        return f"{self.place}: {self.advice}"


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed source file."""

    name: str
    path: Path
    tree: ast.Module
    lines: int

    def at(self, line: int = 1) -> str:
        """Return the place of a line, as editors open it."""
        return f"{self.path.relative_to(ROOT)}:{line}"


def modules() -> dict[str, Module]:
    """Return every module below src/, by its dotted name."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        if any(part in DATA for part in parts):
            continue
        text = path.read_text()
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path, ast.parse(text), text.count("\n"))
    return found


def repeated_classes(tree: Mapping[str, Module]) -> Iterator[Violation]:
    """Yield public class names that more than one module defines."""
    homes: dict[str, list[Module]] = defaultdict(list)
    for module in tree.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module)
    for name, where in homes.items():
        if len(where) > 1 and name not in SAME_NAME:
            others = ", ".join(one.name for one in where[1:])
            yield Violation(
                where[0].at(), f"class {name} is also in {others}: name one of them for what it holds"
            )


def gerund_modules(tree: Mapping[str, Module]) -> Iterator[Violation]:
    """Yield modules and packages that are named by what they do."""
    for module in tree.values():
        last = module.name.rsplit(".", 1)[-1]
        if last.endswith("ing") and last not in NOT_GERUNDS:
            yield Violation(module.at(), "name the module with a noun, for what is in it")


def local_imports(tree: Mapping[str, Module]) -> Iterator[Violation]:
    """Yield imports inside functions."""
    for module in tree.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Import | ast.ImportFrom):
                        yield Violation(
                            module.at(inner.lineno),
                            "import at the top; inside functions only vendors' SDKs and heavy libraries",
                        )


def single_importers(tree: Mapping[str, Module]) -> Iterator[Violation]:
    """Yield small modules that only one neighbour imports."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module in tree.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                targets = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            for target in targets:
                if target in tree and target != module.name:
                    importers[target].add(module.name)
    for name, users in importers.items():
        module, user = tree[name], next(iter(users))
        beside = user.rpartition(".")[0] == name.rpartition(".")[0]
        if len(users) == 1 and beside and module.lines <= SMALL and not module.path.name.startswith("__"):
            yield Violation(module.at(), f"only {user} imports this: put it there")


def riddles(tree: Mapping[str, Module]) -> Iterator[Violation]:
    """Yield docstrings of functions that have no verb. Commands' are help texts, properties' are nouns."""
    for module in tree.values():
        if ".cli" in module.name or ".api.routes" in module.name:
            continue
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            words = (ast.get_docstring(node) or "").split()
            nouns = {ast.unparse(one).rsplit(".", 1)[-1] for one in node.decorator_list}
            if words and words[0] in RIDDLES and not nouns & {"property", "cached_property"}:
                advice = f'begin with a verb ("Return {words[0].lower()} …")'
                yield Violation(module.at(node.lineno), advice)


RULES = {
    "public class names are used once": (repeated_classes, 0),
    "modules are nouns": (gerund_modules, 0),
    "modules import at the top": (local_imports, MOST_LOCAL_IMPORTS),
    "small modules have several importers": (single_importers, MOST_SINGLE_IMPORTERS),
    "docstrings say what a function does": (riddles, 0),
}


def main(arguments: list[str]) -> int:
    """Print what breaks a rule; the exit code is 1 when something does."""
    tree = modules()
    broken = False
    for rule, (find, limit) in RULES.items():
        found = list(find(tree))
        if "--counts" in arguments:
            print(f"{rule}: {len(found)} of {limit} allowed")
        elif len(found) > limit:
            broken = True
            print(f"{rule} ({len(found)}, allowed {limit}):")
            print("\n".join(f"  {one}" for one in found))
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
