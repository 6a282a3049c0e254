"""Which specs a command line means: files, a suite, or all of the project that have a tag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valkyrie.errors import UsageError
from valkyrie.evals.request import EvalItem
from valkyrie.specs.model import Project
from valkyrie.text import did_you_mean

if TYPE_CHECKING:
    from valkyrie.benchmarks.eval_spec.source import EvalOptions

Chosen = list[tuple[Path, tuple[str, ...] | None]]
"""Files, and which of their stimuli; None is all."""


def items_of(given: Mapping[str, Any], project: Project) -> list[EvalItem]:
    """One item for each spec and model."""
    _check(given)
    models = _models(given["model"])
    chosen = _chosen(given, project)
    if given["stimuli"]:
        chosen = _named(chosen, given)
    return [EvalItem(file, model, stimuli=names) for file, names in chosen for model in models]


def _named(chosen: Chosen, given: Mapping[str, Any]) -> Chosen:
    """Only the stimuli of these names; a word that is none may hold several between commas."""
    from valkyrie.benchmarks.eval_spec.source import open_spec

    options = _options(given)
    there = {
        file: [
            one.name for one in open_spec(file, options).spec.stimuli if names is None or one.name in names
        ]
        for file, names in chosen
    }
    known = {name for names in there.values() for name in names}
    wanted: list[str] = []
    for word in given["stimuli"]:
        wanted += [word] if word in known else [one.strip() for one in word.split(",") if one.strip()]
    if unknown := next((one for one in wanted if one not in known), None):
        shown = ", ".join(sorted(known)[:10])
        raise UsageError(
            f"no stimulus is called {unknown!r}.{did_you_mean(unknown, known)} There are: {shown}."
        )
    found = [(file, tuple(one for one in names if one in wanted)) for file, names in there.items()]
    return [(file, names) for file, names in found if names]


def _options(given: Mapping[str, Any]) -> EvalOptions:
    """What a spec is read with."""
    from valkyrie.benchmarks.eval_spec.source import EvalOptions

    return EvalOptions(
        params=given["params"],
        eval_plugin=given["eval_plugin"],
        pass_env=given["pass_env"],
        allow_paths=given["allow_paths"],
    )


def _check(given: Mapping[str, Any]) -> None:
    specs, suite, tags, plugin = given["specs"], given["suite"], given["tags"], given["eval_plugin"]
    if specs and suite:
        raise UsageError(
            "--suite cannot be combined with --eval-spec: a suite says itself which specs it has."
        )
    if not (specs or suite or tags):
        raise UsageError(
            "name what to run: a spec or a folder that holds one, --suite NAME, or --tag KEY=VALUE. "
            "`valk init` writes a first spec."
        )
    if plugin and suite:
        raise UsageError("--eval-plugin cannot be combined with --suite.")
    if plugin and not specs:
        raise UsageError("--eval-plugin needs --eval-spec: the file it is to read.")


def _models(said: str | None) -> list[str | None]:
    if said is None:
        return [None]
    models = [one.strip() for one in said.split(",")]
    if not all(models):
        raise UsageError(f"--model {said!r}: a name is missing between the commas.")
    if twice := next((one for one in models if models.count(one) > 1), None):
        raise UsageError(f"--model names {twice} twice; --trials N tries each stimulus N times.")
    return list(models)


def _chosen(given: Mapping[str, Any], project: Project) -> Chosen:
    from valkyrie.specs.discovery import discover, parse_tags, suite_files, suite_of

    tags = parse_tags(given["tags"])
    if given["specs"]:
        files = _files(given["specs"])
        filters: list[Mapping[str, tuple[str, ...]]] = [tags] if tags else []
    elif given["suite"]:
        suite = suite_of(project, given["suite"])
        files = suite_files(project, suite, given["allow_paths"])
        filters = [one for one in (suite.filter, tags) if one]
    else:
        files, filters = discover(project, given["allow_paths"]), [tags]
    if not filters:
        return [(file, None) for file in files]
    return _with_tags(files, filters, given)


def _with_tags(
    files: Sequence[Path], filters: Sequence[Mapping[str, tuple[str, ...]]], given: Mapping[str, Any]
) -> Chosen:
    """The stimuli of these files that fit every filter; files with none are left out."""
    from valkyrie.benchmarks.eval_spec.source import open_spec
    from valkyrie.specs.discovery import fits

    options = _options(given)
    found: Chosen = []
    tags: dict[str, dict[str, None]] = {}
    for file in files:
        stimuli = open_spec(file, options).spec.stimuli
        for one in stimuli:
            for key, values in one.tags.items():
                tags.setdefault(key, {}).update(dict.fromkeys(values))
        names = tuple(one.name for one in stimuli if all(fits(one.tags, wanted) for wanted in filters))
        if names:
            found.append((file, names))
    if not files:
        raise UsageError(
            "there is no eval spec here to look for tags in. --eval-spec names one; `paths.evals` of "
            ".vally.yaml says where they are (evals/ without it)."
        )
    if not found:
        looked = f"{len(files)} eval spec{'s' if len(files) != 1 else ''}"
        raise UsageError(
            f"no stimulus of {looked} has the tags that were asked for. {_known_tags(tags, filters)}"
        )
    return found


def _known_tags(
    known: Mapping[str, Mapping[str, None]], filters: Sequence[Mapping[str, tuple[str, ...]]]
) -> str:
    """The first wanted tag or value that nothing has, beside those there are."""
    for key, values in ((key, values) for wanted in filters for key, values in wanted.items()):
        if key not in known:
            there = ", ".join(sorted(known)[:10]) or "none"
            return f"Tags they have: {there}.{did_you_mean(key, known)}"
        if not any(value in known[key] or value.startswith("!") for value in values):
            return (
                f"Values of {key}: {', '.join(sorted(known[key])[:10])}.{did_you_mean(values[0], known[key])}"
            )
    return "Each of them is there, but not on one stimulus."


def _files(said: Sequence[str]) -> list[Path]:
    return list(dict.fromkeys(spec_file(one) for one in said))


def spec_file(word: str | Path, option: str = "--eval-spec") -> Path:
    """Return the file of a spec that is named by its path, or by that of a folder that holds one."""
    file = Path(word).resolve()
    if str(word) and file.is_dir():
        return only_file(file, f"{option} {word}", ".eval", "eval spec")
    if not file.is_file():
        raise UsageError(f"{option} {word}: {_no_file(str(word), file)}")
    return file


def only_file(folder: Path, said: str, kind: str, what: str) -> Path:
    """Return the one YAML file of a kind that a folder holds; UsageError where none or several may be meant.

    `eval.yaml` is it, else the only `*.eval.yaml`, else the only file that is no settings file.
    """
    held = sorted(
        one.name
        for one in folder.iterdir()
        if one.suffix in (".yaml", ".yml") and not one.name.startswith(".")
    )
    for found in (
        [one for one in held if one.partition(".")[0] == kind.removeprefix(".") and one.count(".") == 1],
        [one for one in held if Path(one).stem.endswith(kind)],
        [one for one in held if kind == ".eval" and not Path(one).stem.endswith(".experiment")],
    ):
        if len(found) == 1:
            return folder / found[0]
        if found:
            names = f"{', '.join(found[:5])}{' and more' if len(found) > 5 else ''}"
            raise UsageError(f"{said} is a folder with several: {names}. Name the one that is meant.")
    raise UsageError(f"{said} is a folder that holds no {what}.")


def _no_file(word: str, file: Path) -> str:
    """Why this is no spec, and which one is near."""
    if word in ("-", ""):
        return "name a file; its paths are relative to where it is, so a spec is not read from stdin."
    beside = [one.name for one in file.parent.iterdir()] if file.parent.is_dir() else []
    return f"there is no such file.{did_you_mean(file.name, beside)}"
