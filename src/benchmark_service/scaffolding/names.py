"""What a benchmark may be called."""

from __future__ import annotations

import re
import sys

from benchmark_service.scaffolding import GenerationError


def benchmark_name(given: str) -> str:
    """The name as it is used everywhere: lower case, hyphenated. GenerationError when it cannot be one."""
    if not given.strip():
        raise GenerationError("The benchmark name cannot be empty.")
    if not re.fullmatch(r"[a-zA-Z0-9_-]+", given):
        raise GenerationError(
            f"{given!r} is no benchmark name: use only alphanumeric characters, hyphens and underscores."
        )
    if not given[0].isalpha():
        raise GenerationError(f"{given!r} is no benchmark name: it must start with a letter.")
    name = given.lower().replace("_", "-")
    module = name.replace("-", "_")
    if module in sys.stdlib_module_names:
        raise GenerationError(
            f"{given!r} conflicts with Python standard library module {module!r}; choose another name."
        )
    return name


def author_python() -> str:
    """The Python of who generates: another in .python-version would stop pyenv's shims."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"
