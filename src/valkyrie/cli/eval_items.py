"""Which specs a command line means: files, a suite, or all of the project that have a tag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from valkyrie.errors import UsageError
from valkyrie.evals.request import EvalItem
from valkyrie.specs.model import Project
from valkyrie.suggest import did_you_mean

Chosen = list[tuple[Path, tuple[str, ...] | None]]
"""Files, and which of their stimuli; None is all."""


def items_of(given: Mapping[str, Any], project: Project) -> list[EvalItem]:
    """One item for each spec and model."""
    _check(given)
    models = _models(given["model"])
    return [
        EvalItem(file, model, stimuli=names) for file, names in _chosen(given, project) for model in models
    ]


def _check(given: Mapping[str, Any]) -> None:
    specs, suite, tags, plugin = given["specs"], given["suite"], given["tags"], given["eval_plugin"]
    if specs and suite:
        raise UsageError(
            "--suite cannot be combined with --eval-spec: a suite says itself which specs it has."
        )
    if not (specs or suite or tags):
        raise UsageError(
            "name what to run: --eval-spec FILE, --suite NAME, or --tag KEY=VALUE. `valk init` writes a "
            "first spec."
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
        raise UsageError(f"--model names {twice} twice; --runs N tries each stimulus N times.")
    return list(models)


def _chosen(given: Mapping[str, Any], project: Project) -> Chosen:
    from valkyrie.specs.choosing import discover, parse_tags, suite_files, suite_of

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
    from valkyrie.benchmarks.eval_spec.opening import open_spec
    from valkyrie.benchmarks.eval_spec.options import EvalOptions
    from valkyrie.specs.choosing import fits

    options = EvalOptions(
        params=given["params"],
        eval_plugin=given["eval_plugin"],
        pass_env=given["pass_env"],
        allow_paths=given["allow_paths"],
    )
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
    files = [Path(one).resolve() for one in said]
    for word, file in zip(said, files, strict=True):
        if not file.is_file():
            raise UsageError(f"--eval-spec {word}: {_no_file(word, file)}")
    return list(dict.fromkeys(files))


def _no_file(word: str, file: Path) -> str:
    """Why this is no spec, and which one is near."""
    if word in ("-", ""):
        return "name a file; its paths are relative to where it is, so a spec is not read from stdin."
    if file.is_dir():
        held = sorted(one.name for one in file.iterdir() if one.name.endswith((".yaml", ".yml")))
        near = f" It holds {', '.join(held[:5])}." if held else ""
        return f"this is a folder; name the file.{near} --suite and --tag run many."
    beside = [one.name for one in file.parent.iterdir()] if file.parent.is_dir() else []
    return f"there is no such file.{did_you_mean(file.name, beside)}"
