"""Shared by both scaffolders: names, the framework to depend on, templates, options, and writing a project
whole."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import click
from jinja2 import Environment, FunctionLoader, StrictUndefined, TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sandboxes.registry import DISTRIBUTION, origin


class GenerationError(Exception):
    """The project cannot be generated; nothing was written."""


# What a benchmark may be called.


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


# Which framework a generated project depends on, as a requirement for its pyproject.toml.

FRAMEWORK_PLACEHOLDER = "file:///FILL-IN/where-the-framework-is"
"""Leads nowhere, so that installing fails until somebody says where the framework is: an index may hold
another author's package of its name."""
ARCHIVE_SUFFIXES = (".whl", ".tar.gz")


@dataclass(frozen=True, slots=True)
class Framework:
    """A requirement, and where it leads in words for a person."""

    requirement: str
    origin: str


def framework_at(path: Path, extra: str | None = None) -> Framework:
    """The framework in a checkout folder, a wheel or a source archive; ValueError when it is none."""
    found = path.resolve()
    if found.is_dir():
        if _project_name(found / "pyproject.toml") != DISTRIBUTION:
            raise ValueError(
                f"{path} is not a checkout of {DISTRIBUTION}: its pyproject.toml does not name it"
            )
    elif not found.name.startswith("valkyrie_bench-") or not found.name.endswith(ARCHIVE_SUFFIXES):
        raise ValueError(f"{path} is neither a checkout nor a wheel or .tar.gz of {DISTRIBUTION}")
    return Framework(_direct(found.as_uri(), extra), str(found))


def installed_framework(extra: str | None = None) -> Framework:
    """Return the framework this command was installed from; where no record says that, a placeholder."""
    url = origin()
    if url is not None:
        return Framework(_direct(url, extra), f"{url}, which this command was installed from")
    return Framework(
        _direct(FRAMEWORK_PLACEHOLDER, extra),
        "not known: nothing records where this command was installed from. Put the framework's checkout, "
        "wheel or repository into pyproject.toml, or create the project again with --framework",
    )


def _direct(url: str, extra: str | None) -> str:
    return f"{_with(extra)} @ {url}"


def _with(extra: str | None) -> str:
    return f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION


def _project_name(pyproject: Path) -> str | None:
    try:
        project = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return None
    name = project.get("name") if isinstance(project, dict) else None
    return name if isinstance(name, str) else None


# Folders of Jinja templates: what they hold, and the files a project gets from them.

SUFFIX = ".jinja"
"""What is filled in carries it; every other file is copied as it is."""
PLACEHOLDER = ".gitkeep"
"""Stands for an otherwise empty folder."""
PASSED_OVER = ("__pycache__", ".git")
LARGEST = 16 * 1024 * 1024
"""Bytes of one file. A project is generated in memory before anything is written."""


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """One file of a project."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class _Source:
    path: str
    content: bytes
    executable: bool


def rendered_files(root: Traversable, values: Mapping[str, str]) -> dict[str, ProjectFile | None]:
    """Return every path of the project with its file; None for a folder that is empty. Names are templates,
    too."""
    sources = list(_sources(root))
    environment = _environment({source.path: source for source in sources}.__getitem__)
    project: dict[str, ProjectFile | None] = {}
    for source in sources:
        parts = [_named(environment, part, source.path, values) for part in source.path.split("/")]
        is_template, is_folder = source.path.endswith(SUFFIX), parts[-1] == PLACEHOLDER
        parts = parts[:-1] if is_folder else [*parts[:-1], parts[-1].removesuffix(SUFFIX)]
        _check_place(parts, source.path)
        made = None
        if not is_folder:
            content = _filled(environment, source.path, values) if is_template else source.content
            made = ProjectFile(content, source.executable or content.startswith(b"#!"))
        _add(project, "/".join(parts), made, source.path)
    return project


def _sources(folder: Traversable, prefix: str = "") -> Iterator[_Source]:
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        path = f"{prefix}{entry.name}"
        if entry.name in PASSED_OVER:
            continue
        if isinstance(entry, Path) and entry.is_symlink():
            raise GenerationError(f"Template {path} is a link; put the file itself there.")
        if entry.is_dir():
            yield from _sources(entry, f"{path}/")
        elif entry.is_file():
            yield _Source(path, _read(entry, path), _is_executable(entry))
        else:
            raise GenerationError(f"Template {path} is neither file nor folder.")


def _read(entry: Traversable, path: str) -> bytes:
    with entry.open("rb") as file:
        content: bytes = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise GenerationError(f"Template {path} is larger than {LARGEST >> 20} MiB.")
    return content


def _is_executable(entry: Traversable) -> bool:
    return isinstance(entry, Path) and bool(entry.stat().st_mode & 0o100)


def _environment(source: Callable[[str], _Source]) -> Environment:
    """Templates see the values and each other, and nothing of this process."""

    def load(path: str) -> tuple[str, str, Callable[[], bool]] | None:
        try:
            text = source(path).content.decode("utf-8")
        except KeyError:
            return None
        except UnicodeDecodeError as error:
            line = source(path).content.count(b"\n", 0, error.start) + 1
            raise GenerationError(f"Template {path}, line {line}: it is not UTF-8 text.") from None
        return text, path, lambda: True

    return ImmutableSandboxedEnvironment(
        loader=FunctionLoader(load),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _filled(environment: Environment, path: str, values: Mapping[str, str]) -> bytes:
    try:
        return environment.get_template(path).render(values).encode()
    except TemplateSyntaxError as error:
        where = f"{error.name or path}, line {error.lineno}"
        raise GenerationError(f"Template {where}: {error.message}. Nothing was written.") from None
    except GenerationError:
        raise
    except Exception as error:  # noqa: BLE001 - a template is a program of its author and may raise anything
        said = error.message if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        known = f" Known names: {', '.join(sorted(values))}." if "is undefined" in str(said) else ""
        where = f"{path}{_line_of(error, path)}"
        raise GenerationError(f"Template {where}: {said}.{known} Nothing was written.") from None


def _line_of(error: Exception, path: str) -> str:
    """Jinja lets tracebacks name the template's own file and line."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""


def _named(environment: Environment, part: str, path: str, values: Mapping[str, str]) -> str:
    if "{" not in part:
        return part
    try:
        return environment.from_string(part).render(values)
    except TemplateError as error:
        raise GenerationError(f"The name of template {path}: {error.message}. Nothing was written.") from None


def _check_place(parts: list[str], path: str) -> None:
    for part in parts:
        if part in ("", ".", "..") or "/" in part or "\\" in part or not part.isprintable():
            raise GenerationError(
                f"Template {path} would be written as {'/'.join(parts)!r}, "
                "which is no path inside the project. Nothing was written."
            )


def _add(project: dict[str, ProjectFile | None], place: str, made: ProjectFile | None, path: str) -> None:
    parts = place.split("/")
    above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
    is_below_a_file = any(project.get(folder) is not None for folder in above)
    is_there = place in project and (made is not None or project[place] is not None)
    is_a_folder = made is not None and any(other.startswith(f"{place}/") for other in project)
    if is_below_a_file or is_there or is_a_folder:
        raise GenerationError(f"Template {path} would be written as {place}, and so would another one.")
    if place:
        project[place] = made


# Writes a generated project: all of it, or nothing.


def write_project(target: Path, files: Mapping[str, ProjectFile | None]) -> Path:
    """Write the files as the new folder `target`, which appears whole; None is an empty folder."""
    try:
        if target.exists() or target.is_symlink():
            raise GenerationError(f"{target} already exists; nothing was written. Choose another name.")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=".create-"))
        try:
            part.chmod(0o755)
            for path, file in files.items():
                _write(part / path, file)
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise GenerationError(f"{target} cannot be written: {reason}. Nothing was created.") from None
    return target


def _write(path: Path, file: ProjectFile | None) -> None:
    if file is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    if file.executable:
        path.chmod(0o755)


# What the command lines of both scaffolders share.


def framework_option(extra: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--framework PATH`, given to the command as a Framework or None."""

    def found(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> Framework | None:
        try:
            return None if path is None else framework_at(path, extra)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from None

    return click.option(
        "--framework",
        type=click.Path(exists=True, path_type=Path),
        callback=found,
        help="The framework to depend on: a checkout, a wheel or a .tar.gz. "
        "Left out, it is where this command was installed from.",
    )


output_dir_option = click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder to create the project in. Left out, the current one.",
)


def way_to(folder: Path) -> str:
    """The folder as an argument for `cd`: relative unless that climbs."""
    way = os.path.relpath(folder)
    return shlex.quote(str(folder.resolve()) if way.startswith(os.pardir) else way)
