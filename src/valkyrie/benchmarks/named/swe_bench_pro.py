"""SWE-Bench Pro: long changes in eleven repositories, graded by the scripts of its code repository."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from valkyrie.benchmarks.named import swe_bench
from valkyrie.benchmarks.named.drafts import ConverterOptions, Files, TaskDraft, fill
from valkyrie.benchmarks.named.records import PublishedRecord
from valkyrie.errors import UsageError

FOLDER = "/app"
TEST_TIMEOUT_S = 3600
IMAGES = "jefzda/sweap-images"
_ID = re.compile(r"instance_[A-Za-z0-9][\w.-]*__[\w.-]+")
_LONGEST_TAG = 128
_KEEPS_ITS_NAME = "instance_element-hq__element-web-ec0f940ef0e8e3b61078f145f34dc40d1938e6c5-vnan"
"""The one image of element-web that is not called after the repository's shorter name."""
_GOLD_TESTS = re.compile(r"git checkout [0-9a-f]{7,40} -- (?P<files>.+)")

_DOCKERFILE = """FROM @IMAGE@
ENTRYPOINT []
@ENV@
WORKDIR /app
COPY prepare.sh strip-history.sh /tmp/valkyrie/
RUN bash /tmp/valkyrie/prepare.sh && bash /tmp/valkyrie/strip-history.sh /app @BASE@ && rm -r /tmp/valkyrie
"""

_TEST = r"""#!/bin/bash
out=/logs/verifier
repository=/app
base=@BASE@
files=(@FILES@)
@PLACE@
timeout --kill-after=10 @TIMEOUT@ bash /tests/run_script.sh @TESTS@ \
    > "$out/stdout.log" 2> "$out/stderr.log"
code=$?
tail -n 40 "$out/stdout.log"
if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
    echo "the tests did not end in time, or were killed"
    verdict 0
    exit 0
fi
cp /tests/parser.py "$scratch/parser.py"
"$python" "$scratch/parser.py" "$out/stdout.log" "$out/stderr.log" "$out/output.json"
"$python" -I /tests/swe_logs.py names /tests/expected.json "$out/output.json" "$out/reward.json"
"""


@dataclass(frozen=True, slots=True)
class _Scripts:
    """The clone of the benchmark's code repository."""

    folder: Path

    def of(self, instance: str, record: PublishedRecord) -> Files:
        """Return how this instance's tests are run and read."""
        found = {}
        for name in ("run_script.sh", "parser.py"):
            path = self.folder / "run_scripts" / instance / name
            if not path.is_file():
                raise record.problem(
                    f"has no {name} in {path.parent}: update the clone of its code repository"
                )
            found[name] = path.read_bytes()
        return found

    def environment(self, instance: str) -> list[str]:
        """The ENV instructions of the image's two Dockerfiles, where the clone has them."""
        lines: list[str] = []
        for kind in ("base_dockerfile", "instance_dockerfile"):
            path = self.folder / "dockerfiles" / kind / instance / "Dockerfile"
            if path.is_file():
                joined = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8", errors="replace"))
                lines += [line.strip() for line in joined.splitlines() if re.match(r"\s*ENV\s", line)]
        return lines


def convert(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """One task per instance."""
    _ = options
    scripts = _find_scripts(source)
    for record in swe_bench.read_one(source):
        yield _draft(record, scripts)


def _find_scripts(source: Path) -> _Scripts:
    """The folder `run_scripts`: in the folder that was named, beside the file, or in a clone there."""
    folder = source if source.is_dir() else source.parent
    for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        if (place / "run_scripts").is_dir():
            return _Scripts(place)
    raise UsageError(
        f"{folder} holds no folder run_scripts: the tests of this benchmark are run by scripts of its code "
        "repository (scaleapi/SWE-bench_Pro-os). Put a clone of it beside the file of records."
    )


def _draft(record: PublishedRecord, scripts: _Scripts) -> TaskDraft:
    instance, base = record.text("instance_id").strip(), swe_bench.commit_of(record)
    if not _ID.fullmatch(instance):
        raise record.problem(
            f"has the instance_id {instance[:80]!r}, not instance_<owner>__<repository>-<sha>"
        )
    image = swe_bench.image_of(record, f"{IMAGES}:{_tag(record, instance)}")
    env = "\n".join(scripts.environment(instance))
    commands = str(record.get("before_repo_set_cmd") or "").splitlines()
    before = [line.strip() for line in commands if line.strip()]
    return TaskDraft(
        id=instance.lower(),
        source_id=instance,
        record_sha256=record.sha256,
        instruction=_instruction(record),
        tests=_tests(record, base, before, scripts.of(instance, record)),
        solution=swe_bench.solution(swe_bench.without_binary(record.text("patch")), FOLDER),
        environment={
            "Dockerfile": fill(_DOCKERFILE, image=image, base=base, env=env),
            "prepare.sh": _prepare(before, base),
            "strip-history.sh": swe_bench.STRIP_HISTORY,
        },
        config={
            "agent": {"timeout_sec": 3000.0},
            "verifier": {"timeout_sec": float(TEST_TIMEOUT_S + 600)},
            "environment": {
                "workdir": FOLDER,
                "build_timeout_sec": 1800.0,
                "cpus": 2,
                "memory_mb": 8192,
                "storage_mb": 20480,
            },
        },
        keywords=(record.text("repo"), str(record.get("repo_language") or "unknown")),
        metadata={"family": record.text("repo")},
    )


def _tag(record: PublishedRecord, instance: str) -> str:
    named = record.get("dockerhub_tag")
    if isinstance(named, str) and named.strip():
        return named.strip()
    owner, _, name = record.text("repo").strip().lower().partition("/")
    plain = instance.removeprefix("instance_")
    if instance != _KEEPS_ITS_NAME:
        plain = plain.removesuffix("-vnan")
        if name == "element-web":
            name = "element"
    return f"{owner}.{name}-{plain}"[:_LONGEST_TAG]


def _instruction(record: PublishedRecord) -> str:
    parts = [
        "The repository in /app needs a change. Make it in the files that are not tests: those for it are "
        "already taken care of.",
        record.text("problem_statement").strip(),
    ]
    for title, name in (("Requirements:", "requirements"), ("New interfaces introduced:", "interface")):
        text = record.get(name)
        if isinstance(text, str) and text.strip():
            parts.append(f"{title}\n{text.strip()}")
    return "\n\n".join(parts)


def _prepare(before: list[str], base: str) -> str:
    """Everything but the last line, which would bring in the tests the agent must not see."""
    lines = before[:-1] if before and _GOLD_TESTS.match(before[-1]) else before
    script = "\n".join(lines or [f"git reset --hard {base}", "git clean -fd", f"git checkout {base}"])
    return f"#!/bin/bash\nset -e\ncd /app\ngit config --global --add safe.directory /app\n{script}\n"


def _tests(record: PublishedRecord, base: str, before: list[str], scripts: Files) -> Files:
    patch = swe_bench.without_binary(record.text("test_patch"))
    changes = swe_bench.changes_of(patch, record, "test_patch")
    files = dict.fromkeys(name for change in changes for name in (change.old, change.new))
    files.update(dict.fromkeys(_gold_tests(record, before)))
    required = {*swe_bench.listed(record, "fail_to_pass"), *swe_bench.listed(record, "pass_to_pass")}
    if not required:
        raise record.problem("names no test that must pass")
    script = fill(
        _TEST,
        place=swe_bench.PLACE_TESTS.strip(),
        base=base,
        files=swe_bench.words(list(files)),
        timeout=str(TEST_TIMEOUT_S),
        tests=shlex.quote(",".join(swe_bench.listed(record, "selected_test_files_to_run"))),
    )
    return {
        **scripts,
        "test.sh": script,
        "test.patch": patch,
        "expected.json": json.dumps({"required": sorted(required)}, indent=1),
        "swe_logs.py": swe_bench.log_reader(),
    }


def _gold_tests(record: PublishedRecord, before: list[str]) -> list[str]:
    """Files the last line would check out: those the test patch does not change are restored as they were."""
    match = _GOLD_TESTS.match(before[-1]) if before else None
    try:
        names = shlex.split(match["files"]) if match else []
    except ValueError:
        names = []
    if bad := [name for name in names if not swe_bench.inside(name)]:
        raise record.problem(
            f"names {bad[0][:100]!r} in 'before_repo_set_cmd', which is no path of a repository"
        )
    return names
