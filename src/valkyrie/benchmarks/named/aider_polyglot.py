"""Aider Polyglot: Exercism exercises in six languages, graded by tests the agent does not see."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from valkyrie.benchmarks.named.conversion import (
    ConverterOptions,
    Files,
    TaskDraft,
    digest_of,
    fill,
    read_json,
)
from valkyrie.errors import UsageError


def _as_it_is(text: str) -> str:
    return text


_DISABLED = re.compile(
    r"@(?:org\.junit\.(?:jupiter\.api\.)?)?(?:Disabled|Ignore)\b"
    r'(?:[ \t]*\((?:"(?:[^"\\]|\\.)*"|[^")])*\))?'
)
_SKIPPED = re.compile(r"\bx(test|it|describe)\(|\b(test|it|describe)\.skip\(")


def enable_java(text: str) -> str:
    """Tests without the marks that switch them off, however they are spelled; imports stay."""
    lines = (
        line if line.lstrip().startswith("import ") else _DISABLED.sub("", line)
        for line in text.splitlines(keepends=True)
    )
    return "".join(lines)


def enable_javascript(text: str) -> str:
    """`xtest(` becomes `test(`."""
    return _SKIPPED.sub(lambda match: f"{match[1] or match[2]}(", text)


@dataclass(frozen=True, slots=True)
class Language:
    """One of the six."""

    image: str
    """The Dockerfile up to where the exercise's files come in."""
    after: str
    """The Dockerfile behind that: whatever is fetched for the tests, so that they run without network."""
    tool: str
    """A command that succeeds where the language can be graded."""
    command: str
    proof: str
    """What a run that passed says (an extended regular expression)."""
    taken: str
    """Which of the agent's files are graded: words of `find`."""
    limit_s: int = 180
    enable: Callable[[str], str] = _as_it_is
    """Switches on the tests of a test file."""
    in_named_folder: bool = False
    """The build reads the exercise's name from the folder it is in."""


_NODE_MODULES = """RUN npm install --no-audit --no-fund \
    && mkdir -p /opt/polyglot && mv node_modules /opt/polyglot/ \
    && ln -s /opt/polyglot/node_modules node_modules
"""
_CRATES = """COPY fetch/ /tmp/fetch/
RUN cd /tmp/fetch && mkdir -p src && touch src/lib.rs && cargo fetch && rm -r /tmp/fetch
"""
# A test that only exists for Gradle and its libraries to be fetched.
_GRADLE = """RUN mkdir -p /tmp/fetch/src/test/java && cp -R gradle gradlew *.gradle /tmp/fetch/ \
    && cd /tmp/fetch \
    && echo 'class FetchTest { @org.junit.jupiter.api.Test void test() {} }' > src/test/java/FetchTest.java \
    && sh ./gradlew --no-daemon test && rm -r /tmp/fetch
"""

LANGUAGES: Mapping[str, Language] = {
    "python": Language(
        image="FROM python:3.11-slim\nRUN pip install --no-cache-dir pytest==8.3.4\n",
        after="",
        tool="python3 -I -m pytest --version",
        # From outside and isolated: a pytest.py of the agent is not the pytest that runs.
        command='cd / && python3 -I -m pytest -p no:cacheprovider --rootdir="$work" "$work"',
        proof="[0-9]+ passed",
        taken="-name '*.py' -not -name '*_test.py' -not -name 'test_*.py' -not -name conftest.py",
    ),
    "go": Language(
        image="FROM golang:1.21.5\n",
        after="RUN go mod download\n",
        tool="go version",
        command="go test ./...",
        proof="^ok[[:space:]]",
        taken="-name '*.go' -not -name '*_test.go'",
    ),
    "javascript": Language(
        image="FROM node:20-slim\n",
        after=_NODE_MODULES,
        tool="npm --version",
        command='ln -sfn /opt/polyglot/node_modules "$work/node_modules"; npm run test',
        proof="Tests: .*[0-9]+ passed",
        taken="-name '*.js' -not -name '*.spec.js' -not -name '*.config.js' -not -path './node_modules/*'",
        enable=enable_javascript,
    ),
    "rust": Language(
        image="FROM rust:1.83-slim\n",
        after=_CRATES,
        tool="cargo --version",
        command="cargo test --offline -- --include-ignored",
        proof="test result: ok\\. [1-9]",
        taken="-path './src/*' -name '*.rs'",
        limit_s=600,
    ),
    "cpp": Language(
        image="FROM buildpack-deps:jammy\nRUN apt-get update && apt-get install -y --no-install-recommends "
        "cmake libboost-all-dev libtbb-dev && rm -rf /var/lib/apt/lists/*\n",
        after="",
        tool="cmake --version",
        command='mkdir build && cd build && cmake -DEXERCISM_RUN_ALL_TESTS=1 -G "Unix Makefiles" .. && make',
        proof="All tests passed",
        taken="'(' -name '*.cpp' -o -name '*.h' -o -name '*.hpp' ')' -not -name '*_test.cpp' "
        "-not -path './build/*' -not -path './test/*'",
        limit_s=600,
        in_named_folder=True,
    ),
    "java": Language(
        image="FROM eclipse-temurin:21-jdk\n",
        after=_GRADLE,
        tool="java -version",
        command="sh ./gradlew --offline --no-daemon test",
        proof="BUILD SUCCESSFUL",
        taken="-path './src/main/java/*' -name '*.java'",
        limit_s=600,
        enable=enable_java,
    ),
}


# Aider Polyglot: Exercism exercises in six languages, graded by tests the agent does not see.

_PRACTICE = "exercises/practice"
_DOCS = ("introduction.md", "instructions.md", "instructions.append.md")
_NOT_FOR_EDITING = ("CMakeLists.txt", "Cargo.toml")
_HIDDEN = (".meta", ".docs", ".git", "node_modules", "target", "build", ".gradle")

_FOOTER = """
## What to do

Work in `@PLACE@`. Change these files, and keep the names of files, functions and classes: @FILES@.
Tests you cannot see are run on them. Only the standard library is there.
"""

_TEST = r"""#!/bin/bash
# The agent's source files among the exercise's own: tests and build files are the published ones.
out=/logs/verifier
export HOME=${HOME:-/root} work=$(mktemp -d)/@NAME@
mkdir -p "$work"
if cd @PLACE@; then
    find . -xdev -type f @TAKEN@ -print0 | tar --null --no-recursion -T - -cf - | tar -xf - -C "$work"
fi
cp -R /tests/exercise/. "$work/" && cd "$work" || exit 1
if ! @TOOL@ > /dev/null 2> "$out/tool.log"; then
    echo "cannot grade here, this does not work:" @TOOL@ >&2
    exit 127
fi
timeout --kill-after=10 @LIMIT@ bash -c @COMMAND@ > "$out/test-output.log" 2>&1
code=$?
tail -n 60 "$out/test-output.log"
reward=0
if [ "$code" -eq 0 ] && grep -qE @PROOF@ "$out/test-output.log"; then reward=1; fi
printf '%s\n' "$reward" > "$out/reward.txt"
"""

_SOLVE = """#!/bin/bash
set -eu
cp -R "$(dirname "$0")/files/." @PLACE@/
"""


@dataclass(frozen=True, slots=True)
class _Exercise:
    """One folder of the clone."""

    folder: Path
    language: Language
    track: str
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def place(self) -> str:
        return f"/app/{self.name}" if self.language.in_named_folder else "/app"

    def listed(self, kind: str) -> list[str]:
        """Files the exercise's configuration names under a word."""
        files = self.config.get("files")
        found = files.get(kind, []) if isinstance(files, dict) else []
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise UsageError(f"{self.folder}/.meta/config.json: files.{kind} is no list of names.")
        for name in found:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise UsageError(f"{self.folder}/.meta/config.json: {name!r} is no path in the exercise.")
        return found

    @property
    def solution(self) -> list[str]:
        """What the agent is to edit."""
        others = {*self.listed("test"), *self.listed("example")}
        return [
            name
            for name in self.listed("solution")
            if name not in others and PurePosixPath(name).name not in _NOT_FOR_EDITING
        ]

    def is_test(self, name: str) -> bool:
        """Return whether a file gives tests away; helpers beside them, which `editor` names, may be shown."""
        path = PurePosixPath(name)
        named = name in self.listed("test") or path.name.endswith(("_test.go", "_test.py", ".spec.js"))
        return named or name.startswith(("src/test/", "test/", "tests/")) or path.name.endswith("_test.cpp")


def convert(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """One task per exercise, language by language."""
    _ = options
    folders = [
        (track, folder)
        for track in LANGUAGES
        for folder in sorted((source / track / _PRACTICE).glob("*"))
        if (folder / ".meta" / "config.json").is_file()
    ]
    if not folders:
        raise UsageError(
            f"{source} holds no exercises: it must be a clone of the benchmark, with folders such as "
            f"python/{_PRACTICE}."
        )
    for track, folder in folders:
        config = read_json(folder / ".meta" / "config.json")
        if not isinstance(config, dict):
            raise UsageError(f"{folder}/.meta/config.json is no JSON object.")
        yield _draft(_Exercise(folder, LANGUAGES[track], track, config))


def _draft(exercise: _Exercise) -> TaskDraft:
    published = dict(_published(exercise))
    if not exercise.solution:
        raise UsageError(f"{exercise.folder}/.meta/config.json names no file to edit.")
    if not any(map(exercise.is_test, published)):
        raise UsageError(f"{exercise.folder} holds no tests.")
    record = {name: digest_of(content.hex()) for name, content in published.items()}
    return TaskDraft(
        id=f"polyglot_{exercise.track}_{exercise.name}",
        source_id=f"{exercise.track}/{exercise.name}",
        record_sha256=digest_of([exercise.config, record]),
        instruction=_instruction(exercise),
        tests=_tests(exercise, published),
        solution=_gold(exercise),
        environment=_environment(exercise, published),
        config={
            "agent": {"timeout_sec": 1800.0},
            "verifier": {"timeout_sec": 1800.0},
            "environment": {
                "workdir": exercise.place,
                "build_timeout_sec": 1800.0,
                "memory_mb": 4096,
                "storage_mb": 10240,
            },
        },
        keywords=(exercise.track,),
        datasets=(exercise.track,),
    )


def _published(exercise: _Exercise) -> Iterator[tuple[str, bytes]]:
    """Yield every file that makes up the exercise, as it is graded: tests switched on."""
    for path in sorted(exercise.folder.rglob("*")):
        name = path.relative_to(exercise.folder).as_posix()
        if not path.is_file() or any(part in _HIDDEN for part in PurePosixPath(name).parts):
            continue
        content = path.read_bytes()
        if exercise.is_test(name):
            try:
                content = exercise.language.enable(content.decode()).encode()
            except UnicodeDecodeError:
                raise UsageError(f"{path} is not UTF-8 text.") from None
        yield name, content


def _instruction(exercise: _Exercise) -> str:
    texts = [exercise.folder / ".docs" / name for name in _DOCS]
    parts = [path.read_text(encoding="utf-8").strip() for path in texts if path.is_file()]
    if not parts:
        raise UsageError(f"{exercise.folder}/.docs has no instructions.md.")
    files = ", ".join(f"`{name}`" for name in exercise.solution)
    return "\n\n".join(parts) + "\n" + fill(_FOOTER, place=exercise.place, files=files)


def _tests(exercise: _Exercise, published: Mapping[str, bytes]) -> Files:
    language = exercise.language
    kept = {name: content for name, content in published.items() if name not in exercise.solution}
    if (manifest := _cargo(exercise)) is not None:
        kept["Cargo.toml"] = manifest
    script = fill(
        _TEST,
        name=shlex.quote(exercise.name),
        place=shlex.quote(exercise.place),
        taken=language.taken,
        tool=language.tool,
        limit=str(language.limit_s),
        command=shlex.quote(language.command),
        proof=shlex.quote(language.proof),
    )
    files: dict[str, str | bytes] = {f"exercise/{name}": content for name, content in kept.items()}
    return {"test.sh": script, "ATTRIBUTION.md": _attribution(exercise), **files}


def _cargo(exercise: _Exercise) -> bytes | None:
    """The manifest a Rust exercise is graded with: that of its example, which may need further crates."""
    for name in (".meta/Cargo-example.toml", "Cargo.toml"):
        path = exercise.folder / name
        if exercise.track == "rust" and path.is_file():
            return path.read_bytes()
    return None


def _environment(exercise: _Exercise, published: Mapping[str, bytes]) -> Files:
    language = exercise.language
    shown: dict[str, str | bytes] = {
        f"app/{name}": content for name, content in published.items() if not exercise.is_test(name)
    }
    if (manifest := _cargo(exercise)) is not None:
        shown["fetch/Cargo.toml"] = manifest
    copy = f"WORKDIR {exercise.place}\nCOPY app/ {exercise.place}/\n"
    return {**shown, "Dockerfile": language.image + copy + language.after}


def _gold(exercise: _Exercise) -> Files:
    """Example files in the place of the solution's."""
    targets = dict(_targets(exercise))
    if not targets:
        return {}
    files: dict[str, str | bytes] = {
        f"files/{target}": (exercise.folder / example).read_bytes() for target, example in targets.items()
    }
    return {"solve.sh": fill(_SOLVE, place=shlex.quote(exercise.place)), **files}


def _targets(exercise: _Exercise) -> Iterator[tuple[str, str]]:
    """(file of the solution, example that goes there)."""
    solution = exercise.solution
    examples = [name for name in exercise.listed("example") if (exercise.folder / name).is_file()]
    for example in examples:
        path = PurePosixPath(example)
        if exercise.track == "java":
            same = [name for name in solution if PurePosixPath(name).name == path.name]
            yield (same[0] if same else f"src/main/java/{path.name}"), example
        elif same := [name for name in solution if PurePosixPath(name).suffix == path.suffix]:
            yield same[0], example


def _attribution(exercise: _Exercise) -> str:
    """Return who wrote the exercise: its licence asks for that to stay with it."""
    about = {
        key: exercise.config[key]
        for key in ("authors", "contributors", "source", "source_url")
        if key in exercise.config
    }
    return (
        f"From the Exercism exercise {exercise.name} ({exercise.track} track), by way of the Aider polyglot "
        f"benchmark.\n\n```json\n{json.dumps(about, indent=1, ensure_ascii=False)}\n```\n"
    )
