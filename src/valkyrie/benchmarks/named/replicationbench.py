"""ReplicationBench: numbers of astrophysics papers, to be found again from the papers' data."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from valkyrie.benchmarks.named import conversion
from valkyrie.benchmarks.named.conversion import ConverterOptions, Files, PublishedRecord, TaskDraft, fill
from valkyrie.benchmarks.named.graders import file_solution, python_tests
from valkyrie.errors import UsageError

ANSWER = "/app/result.json"
TOO_MUCH_DATA = ("phangs_pahs", "tng_hod", "fable_mps")
"""Papers whose data is above 10 GB: left out, as other harnesses do."""
_DATASET = "src/dataset"

_INSTRUCTION = """\
Reproduce one result of a paper.

## Paper

@TITLE@

@ABSTRACT@

## Task

@DESCRIPTION@

@INSTRUCTIONS@
@EXTRA@
## Data

@DATA@

Where instructions speak of `/assets`, use `/app/assets`.

## Answer

Compute the value with code, from the data; do not copy numbers from the paper. Write it to `@ANSWER@` as
`{"value": …}`: @SHAPE@. No other keys, no NaN and no infinity.
"""
_IMAGE = """FROM python:3.11-bookworm
RUN pip install --no-cache-dir numpy scipy pandas matplotlib astropy scikit-learn h5py emcee requests
@MORE@WORKDIR /app
RUN mkdir -p /app/assets
"""
_MORE = 'RUN for name in @NAMES@; do pip install --no-cache-dir "$name" || echo "without $name"; done\n'
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def convert(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """One task per published task of an expert's paper."""
    _ = options
    if not source.is_dir():
        raise UsageError(
            f"{source}: name a clone of the benchmark, or a folder with the files of its splits `papers` and "
            "`tasks`: a task alone does not say what its paper is."
        )
    papers, tasks = _read(source)
    for record in tasks:
        paper_id = record.text("paper_id")
        paper = papers.get(paper_id)
        if paper is None:
            raise record.problem(f"belongs to the paper {paper_id!r}, of which there is nothing")
        if paper.get("source") in (None, "expert") and paper_id not in TOO_MUCH_DATA:
            yield _draft(record, paper)


def _read(source: Path) -> tuple[dict[str, PublishedRecord], list[PublishedRecord]]:
    """Papers by id, and tasks in order: from a clone, or from the two splits of the data set."""
    folder = source / _DATASET if (source / _DATASET).is_dir() else source
    if (folder / "papers").is_dir() and (folder / "tasks").is_dir():
        papers = [_one(path) for path in sorted((folder / "papers").glob("*.json"))]
        tasks = [_one(path) for path in sorted((folder / "tasks").glob("*/*.json"))]
    else:
        papers, tasks = _split(folder, "papers"), _split(folder, "tasks")
    return {record.text("paper_id"): record for record in papers}, tasks


def _one(path: Path) -> PublishedRecord:
    value = conversion.read_json(path)
    if not isinstance(value, dict):
        raise UsageError(f"{path} is no JSON object.")
    names = {"paper_id": path.stem} if path.parent.name == "papers" else {}
    return PublishedRecord({**names, **value}, str(path))


def _split(folder: Path, name: str) -> list[PublishedRecord]:
    files = [path for path in conversion.files_of(folder) if path.name.startswith(name)]
    if len(files) != 1:
        raise UsageError(f"{folder} should hold one file of the split {name!r}, such as {name}.jsonl.")
    return list(conversion.read_records(files[0]))


def _draft(record: PublishedRecord, paper: PublishedRecord) -> TaskDraft:
    paper_id, task_id = record.text("paper_id"), record.text("task_id")
    value = _plain(record, "expected_output")
    tolerance = _plain(record, "tolerance")
    _check(record, value, tolerance)
    needs = paper.get("execution_requirements")
    needs = needs if isinstance(needs, Mapping) else {}
    return TaskDraft(
        id=f"{paper_id}__{task_id}".lower(),
        source_id=f"{paper_id}/{task_id}",
        record_sha256=record.sha256,
        instruction=_instruction(record, paper, value),
        tests=_tests(value, tolerance),
        solution=file_solution(ANSWER, json.dumps({"value": value}) + "\n"),
        environment={"Dockerfile": _dockerfile(needs)},
        config={
            "agent": {"timeout_sec": 3600.0},
            "verifier": {"timeout_sec": 1800.0},
            "environment": {
                "build_timeout_sec": 1800.0,
                "memory_mb": 4096,
                "storage_mb": 20480,
                "network_mode": "public",
            },
        },
        metadata={
            "difficulty": record.get("difficulty") or 0,
            "upstream_uses_gpu": bool(needs.get("needs_gpu")),
        },
        keywords=(paper_id,),
    )


def _dockerfile(needs: Mapping[str, Any]) -> str:
    """The common libraries, and what this paper asks for as far as it can be had."""
    given = needs.get("dependencies")
    names = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    wanted = sorted({name for name in names if _PACKAGE.fullmatch(name)})
    return fill(_IMAGE, more=fill(_MORE, names=" ".join(wanted)) if wanted else "")


def _plain(record: PublishedRecord, name: str) -> Any:
    """A field that may be written as JSON in a string."""
    value = record.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            pass
    if value is None:
        raise record.problem(f"has no field {name!r}", name)
    return value


def _check(record: PublishedRecord, value: Any, tolerance: Any) -> None:
    """Numbers in lists and objects, with a tolerance for each."""
    if isinstance(value, dict | list):
        parts = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        for key, part in parts:
            try:
                much = tolerance if _is_number(tolerance) else tolerance[key]
            except (KeyError, IndexError, TypeError):
                raise record.problem("has a 'tolerance' of another form than its 'expected_output'") from None
            _check(record, part, much)
        if not parts:
            raise record.problem("expects an empty 'expected_output'")
    elif not isinstance(value, str) and not (_is_number(value) and _is_number(tolerance)):
        raise record.problem("has an 'expected_output' or 'tolerance' that is no number")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _tests(value: Any, tolerance: Any) -> Files:
    return python_tests("numbers", {"expected.json": {"value": value, "tolerance": tolerance}})


def _instruction(record: PublishedRecord, paper: PublishedRecord, value: Any) -> str:
    instructions = record.get("instructions")
    if isinstance(instructions, list):
        instructions = "\n".join(f"{at}. {line}" for at, line in enumerate(instructions, 1))
    extra = paper.get("other_instructions")
    return fill(
        _INSTRUCTION,
        title=str(paper.get("title") or record.text("paper_id")),
        abstract=str(paper.get("abstract") or ""),
        description=record.text("description").strip(),
        instructions=str(instructions or "").strip(),
        extra=f"\n{extra.strip()}\n" if isinstance(extra, str) and extra.strip() else "",
        data="\n\n".join(_data(paper)),
        answer=ANSWER,
        shape=_shape(value),
    )


def _data(paper: PublishedRecord) -> Iterator[str]:
    """Yield how to get at the paper's data, as its record says."""
    given = paper.get("dataset")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = [{"data_instructions": given}]
    for one in given if isinstance(given, list) else [given or {}]:
        if not isinstance(one, Mapping):
            continue
        name = one.get("dataset_name")
        lines = [f"**{name}**"] if name else []
        keys = ("kind", "url", "size", "api_url", "data_path", "hf_name", "hf_split", "hf_type")
        lines += [f"- {key}: {_words(one[key])}" for key in keys if one.get(key)]
        if one.get("data_instructions"):
            lines.append(_words(one["data_instructions"]))
        yield "\n".join(lines) or "The record says nothing about data."


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {_words(one)}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value).strip()


def _shape(value: Any) -> str:
    """The form of the answer, not its values."""
    if isinstance(value, dict):
        return "an object with exactly the keys " + ", ".join(f"`{key}`" for key in value)
    if isinstance(value, list):
        return f"a list of {len(value)} numbers"
    return "a word" if isinstance(value, str) else "a number"
